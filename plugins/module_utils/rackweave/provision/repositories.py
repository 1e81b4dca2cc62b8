"""Package repositories that an inventory names: mirrors of the distribution and those of the vendors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ..errors import ProvisionError
from .addresses import split_address

_KEYS = ("name", "uris", "suites", "components", "signed_by", "trusted", "gpgkey")
# apt passes over a file with any other character in its name, and says so in one line of a notice at most.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*:/")


def check_repositories(entries: object, variable: str, manager: str = "") -> list[dict[str, object]]:
    """Return the entries, if the package manager can use each of them.

    Args:
        entries: the value of ``variable``.
        variable: its name, for the message.
        manager: ``apt`` or ``dnf``; empty where that is not known yet, and then only what both need is checked.

    Raises:
        ProvisionError: for the first entry that is none, with the way out.
    """
    if not isinstance(entries, (list, tuple)):
        raise ProvisionError(f"{variable} must be a list of repositories, not {entries!r}")
    seen: set[str] = set()
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, Mapping):
            raise ProvisionError(f"{variable}: entry {number} must have name and uris, it is {entry!r}")
        name = str(entry.get("name") or "")
        _check_entry(entry, name, f"{variable}: entry {number} ({name or 'without a name'})", manager)
        if name in seen:
            raise ProvisionError(
                f"{variable} has two repositories named {name}, which are one file: name one otherwise"
            )
        seen.add(name)
    return [dict(entry) for entry in entries]


def repository_clashes(variables: Mapping[str, object]) -> list[str]:
    """Return a sentence for each name that two lists give to different repositories: both would write the same file.

    Args:
        variables: values by name; only those that end in ``_repositories`` and are lists count.
    """
    owners: dict[str, tuple[str, Mapping[str, object]]] = {}
    found = []
    for variable, entries in sorted(variables.items()):
        if not variable.endswith("_repositories") or not isinstance(entries, (list, tuple)):
            continue
        for entry in (it for it in entries if isinstance(it, Mapping) and it.get("name")):
            first, content = owners.setdefault(str(entry["name"]), (variable, entry))
            if first != variable and dict(content) != dict(entry):
                found.append(
                    f"{first} and {variable} both have a repository named {entry['name']}, with different content: "
                    "both would write the same file at every run; give one of them another name"
                )
    return found


def leftover_files(paths: Sequence[str], entries: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the repository files that Rackweave wrote once and that no entry of the inventory names any more.

    Args:
        paths: files named ``rackweave-NAME.sources`` or ``rackweave-NAME.repo``.
        entries: repositories of all roles.
    """
    names = {str(entry.get("name")) for entry in entries}
    stems = ((path, path.rpartition("/")[2].rpartition(".")[0]) for path in sorted(paths))
    return [path for path, stem in stems if stem.startswith("rackweave-") and stem[len("rackweave-") :] not in names]


def _check_entry(entry: Mapping[str, object], name: str, where: str, manager: str) -> None:
    unknown = sorted(str(key) for key in entry if key not in _KEYS)
    if unknown:
        raise ProvisionError(f"{where} has {', '.join(unknown)}; a repository has {', '.join(_KEYS)}")
    if not _NAME.fullmatch(name):
        raise ProvisionError(
            f"{where} needs a name of letters, digits, '.', '_' and '-': it becomes the name of a file"
        )
    addresses = _texts(entry.get("uris"))
    wrong = [address for address in addresses if not _ADDRESS.match(address)]
    if not addresses or wrong:
        shown = f"; it has {', '.join(wrong)}" if wrong else ""
        raise ProvisionError(f"{where} needs uris such as https://mirror.example.org/debian{shown}")
    for address in addresses:
        split_address(address, f"{where}: an address in uris")
    if manager == "apt":
        _check_apt(entry, where)
    key = {"apt": "signed_by", "dnf": "gpgkey"}.get(manager)
    keys = [key] if key else ["signed_by", "gpgkey"]
    if entry.get("trusted") is not True and not any(_texts(entry.get(key)) for key in keys):
        raise ProvisionError(
            f"{where} needs {' or '.join(keys)} (a key's URL, or its file on the node); trusted: true takes packages "
            "that nobody signed"
        )


def _check_apt(entry: Mapping[str, object], where: str) -> None:
    suites, components = _texts(entry.get("suites")), _texts(entry.get("components"))
    if not suites:
        raise ProvisionError(
            f"{where} needs suites: names such as bookworm, or a path such as ./ for a flat repository"
        )
    flat = [suite for suite in suites if suite.endswith("/")]
    if flat and components:
        raise ProvisionError(f"{where}: the suite {flat[0]} is a path, which has no components; leave components out")
    if len(flat) < len(suites) and not components:
        raise ProvisionError(f"{where} needs components for the suite {next(it for it in suites if it not in flat)}")


def _texts(value: object) -> Sequence[str]:
    values = value if isinstance(value, (list, tuple)) else [value]
    return [str(it) for it in values if it not in (None, "")]
