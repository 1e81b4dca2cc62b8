"""Which nodes are measured together: rounds of disjoint pairs, so that a round runs at once and nobody waits twice."""

from __future__ import annotations

from collections.abc import Sequence


def pair_rounds(hosts: Sequence[str], neighbours: Sequence[str] = (), partners: int = 2) -> list[list[tuple[str, str]]]:
    """Return rounds of pairs in which every host meets up to `partners` different others.

    Each pair holds at least one of `hosts`; `neighbours` are idle nodes that only serve as the other end. The number of
    rounds does not grow with the number of hosts.
    """
    everyone = list(dict.fromkeys([*hosts, *neighbours]))
    tested = set(hosts)
    if len(everyone) % 2:
        everyone.append("")  # the one paired with nobody sits this round out
    count = len(everyone)
    rounds = []
    met = dict.fromkeys(tested, 0)
    # The circle method: one stays, the others move on by one place; after count - 1 rounds everybody met everybody.
    for turn in range(count - 1):
        if all(times >= partners for times in met.values()):
            break
        circle = [everyone[0], *(everyone[1 + (place + turn) % (count - 1)] for place in range(count - 1))]
        pairs = [(circle[place], circle[count - 1 - place]) for place in range(count // 2)]
        pairs = [(one, two) for one, two in pairs if one and two and ({one, two} & tested)]
        pairs = [pair for pair in pairs if any(met.get(host, partners) < partners for host in pair)]
        for pair in pairs:
            for host in pair:
                met[host] = met.get(host, 0) + 1
        if pairs:
            rounds.append(pairs)
    return rounds
