"""The proxy of a site as environment of tasks."""

import pytest
from rackweave.errors import ProvisionError
from rackweave.provision.proxy import direct_hosts, proxy_environment


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


@pytest.mark.parametrize(
    ("no_proxy", "hosts"),
    [
        ([], []),
        ("localhost, pkg.example.org", ["localhost", "pkg.example.org"]),
        ([".example.org", "::1", "*.example.net"], ["mirror.example.org"]),
        ("example.org", ["example.org", "mirror.example.org"]),
        (["10.0.0.0/8"], ["10.1.2.3"]),
        ("*", ["10.1.2.3", "download.example.com", "mirror.example.org"]),
        (["xample.org"], ["xample.org"]),
    ],
)
def test_a_package_manager_without_domains_is_told_the_mirrors_that_they_cover(no_proxy, hosts):
    uris = ["https://mirror.example.org/debian", "http://10.1.2.3/ofed", "https://download.example.com/", "file:///srv"]
    assert direct_hosts({"http": "http://proxy.example.org:3128", "no_proxy": no_proxy}, uris) == hosts


def test_exceptions_in_one_text_are_read_like_a_list():
    settings = {"http": "http://proxy.example.org:3128", "no_proxy": " localhost , .example.org"}
    assert proxy_environment(settings)["no_proxy"] == "localhost,.example.org"
