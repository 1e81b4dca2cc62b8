"""The lab for fault runs; with RACKWEAVE_LAB_READY=1 one that stands and is provisioned is taken as it is."""

from __future__ import annotations

import os

import pytest

from tests.support import lab as support


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest) -> support.Lab:
    """Return the lab; provisioning it takes longer than a fault, so a series of runs need not repeat it."""
    if os.environ.get("RACKWEAVE_LAB_READY") == "1" and support.running_here():
        return support.Lab(support.addresses_of())
    found: support.Lab = request.getfixturevalue("lab")
    return found
