"""A cluster that acceptance judges."""

import pytest
from rackweave.accept.context import Context

from tests.support.acceptance import document


@pytest.fixture
def context():
    """Return what a verdict on four H100 nodes with 8 rails of 400 Gb/s needs."""
    hosts = ["trn01", "trn02", "trn03", "trn04"]
    return Context({host: document(host) for host in hosts}, dict.fromkeys(hosts, (400.0,) * 8))
