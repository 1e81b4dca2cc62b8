"""Which ranks cannot run and which nodes no longer reach each other, from what was collected on the nodes.

A cut between two nodes that are both alive shows nowhere else: each sees a silent peer, and every rank is a victim.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ..run.outcome import Blame
from .collect import stopped_processes

_FILE = re.compile(r"(?:^|/)evidence/(?P<host>[^/]+)/(?:\d+/)?peers\.txt$")
_LINE = re.compile(r"^peer (?P<peer>\S+) (?P<state>answers|does not answer)")


_PROCESSES = re.compile(r"(?:^|/)evidence/(?P<host>[^/]+)/(?:\d+/)?processes\.txt$")


def standing_still(logs: Mapping[str, str], phases: Mapping[str, Mapping[str, Any]]) -> Blame | None:
    """Name the ranks whose process is stopped by a signal (state T), by the process id in their phase files.

    A process that waits in the kernel (D) is no proof: every rank does that for a moment while it reads or writes.
    """
    found: dict[int, str] = {}
    for name, text in logs.items():
        match = _PROCESSES.search(name)
        stopped = {pid for pid, state in stopped_processes(text).items() if state == "T"} if match else set()
        for phase in phases.values() if match else ():
            if phase.get("host") == match["host"] and phase.get("pid") in stopped:  # type: ignore[index]
                found[int(phase["rank"])] = match["host"]  # type: ignore[index]
    return _stopped(found, "evidence/{host}/processes.txt: rank {rank} is in process state T") if found else None


def told_to_stand_still(beats: Mapping[str, Mapping[str, Any]]) -> Blame | None:
    """Name the ranks that their nodes' supervisors see stopped, from the signs of life: known before any collecting."""
    found = {rank: host for host, beat in beats.items() for rank in beat.get("stopped") or () if isinstance(rank, int)}
    return _stopped(found, "alive/{host}.json: rank {rank} is stopped") if found else None


def _stopped(found: Mapping[int, str], line: str) -> Blame:
    ranks = tuple(sorted(found))
    words = ", ".join(f"rank {rank} on {found[rank]}" for rank in ranks)
    hosts = tuple(dict.fromkeys(found[rank] for rank in ranks))
    lines = tuple(line.format(host=found[rank], rank=rank) for rank in ranks)
    return Blame("stopped", ranks, hosts, f"{words} stood still (process state T) while the others waited", lines)


def peer_line(peer: str, answers: bool, detail: str) -> str:
    """Return the line of one probe, as ``peers.txt`` holds it."""
    return f"peer {peer} {'answers' if answers else 'does not answer'} ({detail})"


def probed_pairs(logs: Mapping[str, str]) -> dict[tuple[str, str], bool]:
    """Return for each pair of hosts that was probed, in order of names, whether both directions answered."""
    pairs: dict[tuple[str, str], bool] = {}
    for name, text in logs.items():
        found = _FILE.search(name)
        for line in text.splitlines() if found else ():
            probe = _LINE.match(line)
            if found and probe:
                pair = (min(found["host"], probe["peer"]), max(found["host"], probe["peer"]))
                pairs[pair] = pairs.get(pair, True) and probe["state"] == "answers"
    return pairs


def unreachable(logs: Mapping[str, str], silent: Iterable[str] = ()) -> Blame | None:
    """Name the host that most others miss, or both ends of a cut where no end is missed more than the other.

    Where nobody reaches anybody, among more than two, probes are forbidden rather than every link cut.

    Args:
        logs: text by path below the attempt directory.
        silent: hosts that we could not reach ourselves; those alone are named, if others miss them too.
    """
    probed = probed_pairs(logs)
    pairs = sorted(pair for pair, answers in probed.items() if not answers)
    if not pairs or (len(pairs) == len(probed) > 1):
        return None
    missed = Counter(host for pair in pairs for host in pair)
    most = max(missed.values())
    hosts = tuple(sorted(host for host, count in missed.items() if count == most))
    if gone := tuple(sorted(set(silent) & set(missed))):
        sentence = f"{', '.join(gone)} fell silent: neither the other nodes nor we reach it any more"
        return Blame("lost_host", (), gone, sentence, tuple(_lines(logs, pairs)))
    words = ", ".join(f"{one} and {other}" for one, other in pairs[:4])
    sentence = f"{words} do not reach each other, and {_ends(hosts)} stood still"
    return Blame("cut", (), hosts, sentence, tuple(_lines(logs, pairs)))


def _ends(hosts: Iterable[str]) -> str:
    return "the ranks on " + " and ".join(hosts)


def _lines(logs: Mapping[str, str], pairs: Iterable[tuple[str, str]]) -> list[str]:
    wanted = {host for pair in pairs for host in pair}
    lines = []
    for name, text in sorted(logs.items()):
        found = _FILE.search(name)
        if found and found["host"] in wanted:
            lines += [f"{name}: {line}" for line in text.splitlines() if "does not answer" in line]
    return lines[:8]
