"""Accounting through slurmdbd: its configuration file, and the database that MariaDB keeps for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from .munge import PLACEHOLDERS, SlurmError
from .settings import check_name, merge

MARKER = "# Written by Rackweave; a change made here is lost at the next run."
_SQL_NAME = re.compile(r"^[A-Za-z][A-Za-z0-9_]{0,31}$")
SHORTEST_PASSWORD = 12


@dataclass(frozen=True)
class Accounting:
    """Where slurmdbd runs and what it stores in.

    Args:
        host: inventory name of the host of slurmdbd.
        storage_host: host of the database; ``localhost`` where slurmdbd runs.
        storage_name: name of the database.
        storage_user: user of the database.
        storage_password: password of that user; from a vault.
        parameters: further keys of slurmdbd.conf.
    """

    host: str
    storage_host: str
    storage_name: str
    storage_user: str
    storage_password: str
    parameters: Mapping[str, object]


def check_password(password: str) -> None:
    """Refuse a missing, short or placeholder password, and characters that slurmdbd.conf or SQL read otherwise.

    Raises:
        SlurmError: never with the password in it.
    """
    if len(password) < SHORTEST_PASSWORD or any(word in password.lower() for word in PLACEHOLDERS):
        raise SlurmError(
            f"slurm_dbd_storage_password is missing, a placeholder, or shorter than {SHORTEST_PASSWORD} characters: "
            "make one with `head -c 24 /dev/urandom | base64` and keep it in a vault"
        )
    if re.search(r"[\s#'\"\\]", password):
        raise SlurmError(
            "slurm_dbd_storage_password has a space, quote, backslash or '#', which slurmdbd.conf cannot hold"
        )


def slurmdbd_conf(accounting: Accounting) -> str:
    """Return slurmdbd.conf; it holds the password, so it belongs to SlurmUser with mode 0600.

    Raises:
        SlurmError: for a name or password that cannot be used.
    """
    check_password(accounting.storage_password)
    for what, name in (("storage_name", accounting.storage_name), ("storage_user", accounting.storage_user)):
        if not _SQL_NAME.match(name):
            raise SlurmError(f"slurm_dbd_{what} {name!r}: a letter, then up to 31 letters, digits and '_'")
    defaults = {
        "AuthType": "auth/munge",
        "DbdHost": check_name("slurm_dbd_host", accounting.host),
        "SlurmUser": "slurm",
        "LogFile": "/var/log/slurm/slurmdbd.log",
        "StorageType": "accounting_storage/mysql",
        "StorageHost": accounting.storage_host,
        "StorageLoc": accounting.storage_name,
        "StorageUser": accounting.storage_user,
    }
    owned = {key.lower() for key in ("StoragePass", "StorageLoc", "StorageUser", "StorageHost", "DbdHost")}
    wrong = sorted(key for key in accounting.parameters if str(key).lower() in owned)
    if wrong:
        raise SlurmError(f"slurm_dbd_parameters must not set {wrong[0]}: it has a variable of its own")
    settings = merge("slurm_dbd_parameters", defaults, accounting.parameters)
    lines = [f"{key}={value}" for key, value in sorted(settings.items())]
    return "\n".join([MARKER, *lines, f"StoragePass={accounting.storage_password}"]) + "\n"


def database_statements(accounting: Accounting) -> str:
    """Return SQL that makes database and user where they are missing, and sets the user's password.

    Raises:
        SlurmError: as :func:`slurmdbd_conf`.
    """
    slurmdbd_conf(accounting)
    name, user = accounting.storage_name, f"'{accounting.storage_user}'@'localhost'"
    return (
        f"CREATE DATABASE IF NOT EXISTS `{name}`;\n"
        f"CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{accounting.storage_password}';\n"
        f"ALTER USER {user} IDENTIFIED BY '{accounting.storage_password}';\n"
        f"GRANT ALL ON `{name}`.* TO {user};\n"
    )


def accounting_parameters(host: str, enabled: bool) -> dict[str, str]:
    """Return the keys of slurm.conf that send accounting to slurmdbd; none where it is switched off."""
    if not enabled:
        return {}
    return {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": check_name("slurm_dbd_host", host),
    }
