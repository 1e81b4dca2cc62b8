"""Where pip takes the trainer's packages from, as a site says."""

import importlib

import pytest

venv = importlib.import_module("ansible_collections.rackweave.cluster.plugins.modules.trainer_venv")
NOTHING = {"find_links": [], "index_url": "", "extra_index_urls": [], "ca_bundle": "", "cache_dir": ""}


@pytest.mark.parametrize(
    ("said", "arguments"),
    [
        ({}, ["--no-cache-dir"]),
        ({"index_url": "none", "find_links": ["/srv/w"]}, ["--find-links=/srv/w", "--no-index", "--no-cache-dir"]),
        (
            {"index_url": "https://i.example.org", "ca_bundle": "/etc/ssl/c.crt", "cache_dir": "/c"},
            ["--index-url=https://i.example.org", "--cert=/etc/ssl/c.crt", "--cache-dir=/c"],
        ),
    ],
)
def test_pip_is_told_what_the_site_says_and_nothing_else(said, arguments):
    assert venv.sources({**NOTHING, **said}) == arguments


def test_every_way_to_packages_is_an_option_of_the_module():
    assert set(NOTHING) <= set(venv.SPEC)
