"""Filters that turn facts of the inventory into texts for nodes, once per play instead of once per host."""

from __future__ import annotations

import ipaddress

from ..module_utils.rackweave.slurm.hostlist import compress


def hosts_lines(pairs):
    """Return the lines of /etc/hosts for pairs of name and address; a host whose address is a name needs none.

    A host without address (undefined in the inventory) is left to DNS too.
    """
    lines = []
    for name, address in pairs:
        try:
            parsed = ipaddress.ip_address(str(address))
        except ValueError:
            continue
        lines.append(f"{parsed} {name}")
    return "\n".join(lines)


def node_notes(facts_by_host):
    """Return one line for each thing that roles left out or held back, with the hosts it concerns.

    Args:
        facts_by_host: host to its variables; ``rackweave_skipped`` and ``rackweave_pending`` are lists of mappings with
            ``role``, ``reason`` and ``skipped`` or ``change``.
    """
    hosts = {}
    for host, facts in facts_by_host.items():
        for kind, what in (("pending", "change"), ("skipped", "skipped")):
            name = f"rackweave_{kind}"
            # Where facts are not injected as variables, the lists are found among the facts only.
            for note in facts.get(name) or (facts.get("ansible_facts") or {}).get(name) or []:
                line = f"{kind}: {note['role']}, {note[what]} ({note.get('reason', 'no reason given')})"
                hosts.setdefault(line, []).append(host)
    return [f"{compress(names)} {line}" for line, names in sorted(hosts.items())] or [
        "nothing was left out or has to wait"
    ]


class FilterModule:
    """Names of the filters."""

    def filters(self):
        return {"hosts_lines": hosts_lines, "node_notes": node_notes}
