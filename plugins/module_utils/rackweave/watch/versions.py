"""Different versions of NCCL in one job: who is the odd one out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeVar

from .evidence import Finding, Store, finding_of, to_finding
from .lifecycle import Lifecycle

_T = TypeVar("_T")

PAIRS = "nccl.version_mismatch/nccl"
# Of two ranks that differ, neither is the odd one.
_ENOUGH = 3


def mismatch(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """Findings of NCCL's own comparison, or of the versions that it printed at its start."""
    hits = store.of(PAIRS)
    ranks: dict[str, set[int]] = defaultdict(set)
    homes: dict[int, str] = {}
    for hit in hits:
        named = hit.groups
        for rank, version in (("rank", "version"), ("rank2", "version2")):
            if version in named:
                ranks[named[version]].add(int(named[rank]))
        if "rank2" in named and hit.line.host:
            homes[int(named["rank2"])] = hit.line.host  # each rank compares the others with itself, the second one
    if sum(map(len, ranks.values())) < _ENOUGH:
        printed = list(_printed(store, life))
        # Two ranks that differ do not tell who is odd, but what all of them printed at the start may.
        yield from printed if any(finding.hosts for finding in printed) else [*map(to_finding, hits), *printed]
        return
    odd = _fewest(ranks)
    # The library belongs to a node; ranks are named only where it is not known.
    hosts = {homes[rank] for rank in odd if rank in homes}
    yield finding_of("nccl.version_mismatch", hits[0], 24, ranks=odd - set(homes), hosts=hosts)


def _printed(store: Store, life: Lifecycle) -> Iterator[Finding]:
    """Two versions of the library on different hosts of one job."""
    if life.restarted:
        return
    seen: dict[str, set[str]] = defaultdict(set)
    hits = store.of("fact:nccl_version")
    for hit in hits:
        version = hit.groups.get("version") or hit.groups.get("version2") or ""
        if hit.line.host:
            seen[version].add(hit.line.host)
    if len(seen) < 2 or set.intersection(*seen.values()):
        return
    yield finding_of("nccl.version_mismatch", hits[-1], 24, hosts=_fewest(seen))


def _fewest(by_version: dict[str, set[_T]]) -> set[_T]:
    """All who have not the version of most; nobody where no version has more than half."""
    everybody: set[_T] = set().union(*by_version.values())
    most = max(by_version.values(), key=len)
    return everybody - most if len(most) * 2 > len(everybody) else set()
