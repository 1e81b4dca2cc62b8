"""Which host and GPU each rank gets. Ranks fill hosts in order, because torchrun numbers them that way.

With the tensor axis fastest, a tensor group never leaves its host; data-parallel peers have the same local rank and so
meet on one rail; pipeline stages lie farthest apart, which suits their small point-to-point messages.
"""

from __future__ import annotations

from dataclasses import dataclass

from .cluster import Cluster, Host
from .ranks import ParallelSizes


@dataclass(frozen=True)
class RankPlace:
    """One row of the rank table of plan.json."""

    rank: int
    host: str
    local_rank: int
    gpu_index: int
    gpu_bdf: str | None
    hca: str | None
    tp_rank: int
    dp_rank: int
    pp_rank: int
    cp_rank: int


def by_leaf(hosts: tuple[Host, ...]) -> tuple[Host, ...]:
    """Return hosts with those of one leaf switch together, leafs in order of first appearance.

    Data-parallel traffic, the larger part, then stays below a leaf, and pipeline stages cross leafs.
    """
    if any(host.leaf is None for host in hosts):
        return hosts
    leafs = list(dict.fromkeys(host.leaf for host in hosts))
    return tuple(sorted(hosts, key=lambda host: leafs.index(host.leaf)))


def used_hosts(cluster: Cluster, world_size: int) -> tuple[Host, ...]:
    """Return the hosts that a job of this size runs on: the first ones."""
    return by_leaf(cluster.hosts)[: -(-world_size // cluster.gpus_per_host)]


def place_ranks(cluster: Cluster, sizes: ParallelSizes, limit: int | None = None) -> list[RankPlace]:
    """Return the rank table in rank order, or its first rows; a job smaller than one host takes its first GPUs."""
    per_host = min(cluster.gpus_per_host, sizes.world_size)
    hosts = used_hosts(cluster, sizes.world_size)
    table = []
    for rank in range(min(sizes.world_size, limit or sizes.world_size)):
        node_rank, local_rank = divmod(rank, per_host)
        host, where = hosts[node_rank], sizes.coordinates(rank)
        slot = host.slots[local_rank]
        table.append(
            RankPlace(
                rank=rank,
                host=host.name,
                local_rank=local_rank,
                gpu_index=slot.index,
                gpu_bdf=slot.bdf,
                hca=slot.hca,
                tp_rank=where.tp_rank,
                dp_rank=where.dp_rank,
                pp_rank=where.pp_rank,
                cp_rank=where.cp_rank,
            )
        )
    return table
