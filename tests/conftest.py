"""What more than one tier of tests needs: the lab, which all its tests share."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

from tests.support import lab as support

if importlib.util.find_spec("torch"):
    # ansible-core puts an object in place of sys.intern when it is imported, which torch's compiler then refuses to
    # register. In one process with both, torch comes first; the product never has both in one.
    import torch._dynamo  # noqa: F401


@pytest.fixture(scope="session")
def lab() -> Iterator[support.Lab]:
    """Return the lab, started and provisioned; it is taken down at the end only if it was not there before."""
    if os.geteuid() != 0:
        pytest.skip("the lab needs root")
    found = support.running_here()
    support.play("playbooks/lab_up.yml")
    support.play("playbooks/provision.yml")
    yield support.Lab(support.addresses_of())
    if not found:
        support.play("playbooks/lab_down.yml")
