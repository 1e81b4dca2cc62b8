"""A long run on a simulated cluster: effective-time ratio with and without each policy. Everything here is simulated.

Meta's formula (arXiv 2410.21680): ETTR = (1 - N r (u + d/2)) / (1 + w/d) with N nodes, r failures per node and day,
restart cost u, checkpoint interval d and blocking write w, all in days.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

DAY_S = 86400.0


@dataclass(frozen=True)
class Cluster:
    """What fails and how often.

    Attributes:
        failures_per_node_day: mean over all nodes.
        lemon_share, lemon_part: this share of the nodes causes this part of the failures (0 for none).
        spares: healthy nodes beside the job that can replace an excluded one.
        repair_s: until an excluded node is back.
    """

    nodes: int
    failures_per_node_day: float
    lemon_share: float = 0.0
    lemon_part: float = 0.0
    spares: int = 0
    repair_s: float = 2 * DAY_S


@dataclass(frozen=True)
class Costs:
    """Seconds of each part of a restart, and of checkpoints."""

    detect_s: float
    requeue_s: float
    start_s: float
    checkpoint_interval_s: float
    checkpoint_write_s: float

    @property
    def restart_s(self) -> float:
        """From the failure to the first new step."""
        return self.detect_s + self.requeue_s + self.start_s


@dataclass(frozen=True)
class Policy:
    """What the watcher does beyond a plain requeue.

    Attributes:
        strikes_to_drain: a node leaves the job after this many blames; None keeps every node for ever.
        blame_right: share of failures whose node is named rightly.
    """

    strikes_to_drain: int | None = None
    blame_right: float = 1.0


@dataclass(frozen=True)
class Outcome:
    """Result of one simulated run."""

    effective_ratio: float
    failures: int
    drained: int


def expected_ratio(
    nodes: int, failures_per_node_day: float, restart_s: float, interval_s: float, write_s: float
) -> float:
    """Meta's first-order effective-time ratio."""
    lost = nodes * failures_per_node_day * (restart_s + interval_s / 2) / DAY_S
    return (1 - lost) / (1 + write_s / interval_s)


def simulate(cluster: Cluster, costs: Costs, policy: Policy, days: float, seed: int) -> Outcome:
    """Run one job for some days of wall-clock time; failures strike in training and in restarts alike."""
    chance = random.Random(seed)
    rates, total = _rates(cluster)
    strikes: dict[int, int] = {}
    returns: list[tuple[float, int]] = []
    now = useful = 0.0
    failures = drained = 0
    spares = cluster.spares
    end = days * DAY_S
    slice_s = costs.checkpoint_interval_s + costs.checkpoint_write_s
    while now < end:
        now, hit = _restart(now, costs.restart_s, total, chance)
        failures += hit
        while returns and returns[0][0] <= now:
            returns.pop(0)
            spares += 1
        up = chance.expovariate(total / DAY_S)
        up = min(up, end - now)
        whole = int(up // slice_s)
        useful += whole * costs.checkpoint_interval_s
        now += up
        if now >= end:
            useful += min(up - whole * slice_s, costs.checkpoint_interval_s)
            break
        failures += 1
        node = _who(rates, total, chance) if chance.random() < policy.blame_right else chance.randrange(cluster.nodes)
        strikes[node] = strikes.get(node, 0) + 1
        if policy.strikes_to_drain is not None and strikes[node] >= policy.strikes_to_drain and spares > 0:
            total += _replace(rates, node, cluster)
            strikes[node] = 0
            spares -= 1
            drained += 1
            returns.append((now + cluster.repair_s, node))
    return Outcome(useful / end, failures, drained)


def _rates(cluster: Cluster) -> tuple[list[float], float]:
    """Failures per day of each node; lemons first."""
    total = cluster.nodes * cluster.failures_per_node_day
    lemons = round(cluster.nodes * cluster.lemon_share)
    if not lemons:
        return [cluster.failures_per_node_day] * cluster.nodes, total
    bad = total * cluster.lemon_part / lemons
    good = total * (1 - cluster.lemon_part) / (cluster.nodes - lemons)
    return [bad] * lemons + [good] * (cluster.nodes - lemons), total


def _restart(now: float, restart_s: float, total: float, chance: random.Random) -> tuple[float, int]:
    """Time after a restart that went through, and how many were struck down again."""
    hits = 0
    while True:
        struck = chance.expovariate(total / DAY_S)
        if struck >= restart_s:
            return now + restart_s, hits
        now += struck
        hits += 1


def _who(rates: list[float], total: float, chance: random.Random) -> int:
    point = chance.random() * total
    for node, rate in enumerate(rates):
        point -= rate
        if point <= 0:
            return node
    return len(rates) - 1


def _replace(rates: list[float], node: int, cluster: Cluster) -> float:
    """Put an ordinary node in the place of an excluded one; returns the change of the total rate."""
    lemons = round(cluster.nodes * cluster.lemon_share)
    ordinary = cluster.failures_per_node_day
    if lemons:
        ordinary *= (1 - cluster.lemon_part) / (1 - lemons / cluster.nodes)
    change = ordinary - rates[node]
    rates[node] = ordinary
    return change
