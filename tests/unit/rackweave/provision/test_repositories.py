"""Repositories of the inventory, before a package manager stumbles over them."""

import pytest
from rackweave.errors import ProvisionError
from rackweave.provision.repositories import check_repositories, leftover_files, repository_clashes
from rackweave.provision.variables import check_host

MIRROR = {
    "name": "site",
    "uris": "https://mirror.example.org/debian",
    "suites": ["bookworm", "bookworm-updates"],
    "components": "main",
    "signed_by": "/usr/share/keyrings/site.gpg",
}
FLAT = {"name": "ofed", "uris": ["file:///srv/ofed"], "suites": "./", "trusted": True}
DNF = {"name": "cuda", "uris": "https://mirror.example.org/cuda/", "gpgkey": "https://mirror.example.org/key"}


def without(entry, key):
    return {name: value for name, value in entry.items() if name != key}


@pytest.mark.parametrize(
    ("entries", "manager"), [([], "apt"), ([MIRROR, FLAT], "apt"), ([DNF], "dnf"), ([MIRROR, FLAT, DNF], "")]
)
def test_repositories_that_can_be_used_come_back_as_they_are(entries, manager):
    assert check_repositories(entries, "v", manager) == entries


@pytest.mark.parametrize(
    ("entries", "manager", "words"),
    [
        ({"name": "site"}, "", "must be a list"),
        (["https://mirror.example.org"], "", "entry 1 must have name and uris"),
        ([without(MIRROR, "name")], "", "without a name"),
        ([{**MIRROR, "name": "site mirror"}], "", "becomes the name of a file"),
        ([{**MIRROR, "name": "../../cron.d/x"}], "", "becomes the name of a file"),
        ([MIRROR, {**MIRROR, "uris": "https://other.example.org/"}], "", "two repositories named site"),
        ([without(MIRROR, "uris")], "", "needs uris"),
        ([{**MIRROR, "uris": "mirror.example.org/debian"}], "", "it has mirror.example.org/debian"),
        ([{**MIRROR, "url": "https://mirror.example.org"}], "", "has url; a repository has name, uris"),
        ([without(MIRROR, "signed_by")], "", "needs signed_by or gpgkey"),
        ([{**without(MIRROR, "signed_by"), "trusted": "no"}], "apt", "needs signed_by"),
        ([without(MIRROR, "signed_by")], "apt", "trusted: true takes packages that nobody signed"),
        ([MIRROR], "dnf", "needs gpgkey"),
        ([without(MIRROR, "suites")], "apt", "needs suites"),
        ([without(MIRROR, "components")], "apt", "needs components for the suite bookworm"),
        ([{**FLAT, "components": ["main"]}], "apt", "has no components"),
    ],
)
def test_a_repository_that_cannot_be_used_is_named_with_the_way_out(entries, manager, words):
    with pytest.raises(ProvisionError) as refusal:
        check_repositories(entries, "node_base_repositories", manager)
    assert str(refusal.value).startswith("node_base_repositories")
    assert words in str(refusal.value)


def test_two_roles_do_not_write_one_file_in_turns():
    other = {**MIRROR, "uris": "https://other.example.org/debian"}
    lists = {"node_base_repositories": [MIRROR], "gpu_driver_repositories": [other, FLAT], "x_repositories": None}
    assert ["node_base_repositories" in it and "named site" in it for it in repository_clashes(lists)] == [True]
    assert repository_clashes({**lists, "gpu_driver_repositories": [dict(MIRROR), FLAT]}) == []
    specs = {
        "node_base": {"node_base_repositories": {"type": "list"}},
        "gpu_driver": {"gpu_driver_repositories": {"type": "list"}},
    }
    assert any("write the same file" in problem.text for problem in check_host("h", lists, specs))


def test_files_of_repositories_that_no_entry_names_are_found():
    apt, dnf = "/etc/apt/sources.list.d", "/etc/yum.repos.d"
    paths = [f"{apt}/rackweave-old.cuda.sources", f"{apt}/rackweave-cuda.sources", f"{dnf}/rackweave-doca.repo"]
    assert leftover_files(paths, [{"name": "cuda"}]) == [
        f"{apt}/rackweave-old.cuda.sources",
        f"{dnf}/rackweave-doca.repo",
    ]
    assert leftover_files(paths[1:2], [{"name": "cuda"}]) == []
