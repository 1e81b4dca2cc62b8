"""The proxy of a site as environment of tasks."""

import pytest
from rackweave.errors import ProvisionError
from rackweave.provision.proxy import proxy_environment


def test_both_spellings_are_set_and_exceptions_are_joined():
    environment = proxy_environment(
        {"https": "http://proxy.example.org:3128", "no_proxy": ["10.0.0.0/8", ".example.org"]}
    )
    assert environment["https_proxy"] == environment["HTTPS_PROXY"] == "http://proxy.example.org:3128"
    assert environment["no_proxy"] == "10.0.0.0/8,.example.org"
    assert "http_proxy" not in environment


def test_no_proxy_gives_no_environment():
    assert proxy_environment({}) == {}
    assert proxy_environment({"no_proxy": ["localhost"]}) == {}


@pytest.mark.parametrize(
    "settings",
    [
        {"http": "proxy:3128"},
        {"http": "http://user:pw@proxy:3128"},
        {"https": "http://token@proxy:1"},
        {"ftp": "http://p:1"},
    ],
)
def test_what_would_not_work_or_would_leak_is_refused_without_printing_it(settings):
    with pytest.raises(ProvisionError, match="rackweave_proxy") as caught:
        proxy_environment(settings)
    assert "pw" not in str(caught.value).replace("password", "")
    assert "token" not in str(caught.value)
