"""Addresses that nothing can take apart are one sentence, never an error of Python's parser."""

import pytest
from rackweave.errors import ProvisionError
from rackweave.provision.addresses import split_address
from rackweave.provision.proxy import direct_hosts, proxy_environment
from rackweave.provision.repositories import check_repositories

BROKEN = ("http://[::1/x", "http://::1]/x", "http://[secret]/x", "http://proxy:99999", "http://proxy:port")


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("http://[2001:db8::1]:3128", "2001:db8::1", 3128),
        ("https://mirror.example.org/debian", "mirror.example.org", None),
        ("file:///srv/ofed", None, None),
    ],
)
def test_an_address_is_taken_apart(address, host, port):
    parts = split_address(address, "it")
    assert (parts.hostname, parts.port) == (host, port)


@pytest.mark.parametrize("address", BROKEN)
def test_a_broken_address_is_refused_wherever_one_is_read_and_not_repeated(address):
    entry = {"name": "site", "uris": address, "trusted": True}
    for call in (
        lambda: split_address(address, "it"),
        lambda: direct_hosts({"http": "http://proxy.example.org:3128"}, [address]),
        lambda: proxy_environment({"https": address}),
        lambda: check_repositories([entry], "node_base_repositories"),
    ):
        with pytest.raises(ProvisionError, match="has no host and port that can be read") as refusal:
            call()
        assert address not in str(refusal.value)
        assert "secret" not in str(refusal.value)
