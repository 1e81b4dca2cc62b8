"""What a lab leaves in the host's packet filter, and the commands that take it out again."""

from __future__ import annotations

import re
from collections.abc import Sequence

CHAIN_PREFIX = "NETAVARK"
BUILT_IN_CHAINS = ("INPUT", "OUTPUT", "FORWARD", "PREROUTING", "POSTROUTING")


def netavark_chains(iptables_save: str) -> dict[str, list[str]]:
    """Return the chains of podman's network tool by table, from the output of ``iptables-save``."""
    chains: dict[str, list[str]] = {}
    table = ""
    for line in iptables_save.splitlines():
        if line.startswith("*"):
            table = line[1:].strip()
        elif line.startswith(f":{CHAIN_PREFIX}"):
            chains.setdefault(table, []).append(line[1:].split()[0])
    return chains


def unused_chain_commands(iptables_save: str) -> list[list[str]]:
    """Return the iptables commands that remove podman's chains together with the jumps that lead to them.

    Only for a moment at which no podman network with containers is left.
    """
    chains = netavark_chains(iptables_save)
    commands: list[list[str]] = []
    table = ""
    for line in iptables_save.splitlines():
        if line.startswith("*"):
            table = line[1:].strip()
        words = line.split()
        if len(words) >= 4 and words[0] == "-A" and words[1] not in chains.get(table, ()):
            target = words[words.index("-j") + 1] if "-j" in words else ""
            if target in chains.get(table, ()):
                commands.append(["iptables", "-t", table, "-D", *_unquoted(line)[1:]])
    for name, members in chains.items():
        commands += [["iptables", "-t", name, "-F", chain] for chain in members]
        commands += [["iptables", "-t", name, "-X", chain] for chain in members]
    return commands


def _unquoted(rule: str) -> list[str]:
    return [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', rule)]


def empty_table_commands(iptables_save: str, tables_before: Sequence[str]) -> list[list[str]]:
    """Return the nft commands that remove iptables' own tables where they are empty and were not there before.

    Args:
        iptables_save: output of ``iptables-save`` after the chains are gone.
        tables_before: names of the ``ip`` tables that existed before the lab (``nat``, ``filter``).
    """
    content: dict[str, int] = {}
    table = ""
    for line in iptables_save.splitlines():
        if line.startswith("*"):
            table = line[1:].strip()
            content[table] = 0
        elif line.startswith("-A") or (line.startswith(":") and line[1:].split()[0] not in BUILT_IN_CHAINS):
            content[table] += 1
    return [
        ["nft", "delete", "table", "ip", name]
        for name, count in content.items()
        if not count and name not in tables_before
    ]
