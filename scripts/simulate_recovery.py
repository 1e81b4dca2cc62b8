"""Print what each part of recovery is worth on 1,024 simulated nodes, as the table of docs/operate.md.

The parts of a restart are given in seconds as they were measured; failures are simulated at the two rates that Meta
published (arXiv 2410.21680). Nothing here runs a job.
"""

import argparse
import sys
from dataclasses import replace

from rackweave.watch.simulate import Cluster, Costs, Policy, expected_ratio, simulate

NODES, DAYS, SEEDS = 1024, 60.0, range(12)
RATES = (6.50e-3, 2.34e-3)
LIBRARY_S = 600.0  # after which torch's process group gives up on a collective by itself
LEMONS = {"lemon_share": 0.03, "lemon_part": 0.5, "spares": 40}


def mean(cluster, costs, policy):
    return sum(simulate(cluster, costs, policy, DAYS, seed).effective_ratio for seed in SEEDS) / len(SEEDS)


def rows(costs, rate):
    """Yield name and effective-time ratio of each case at one failure rate."""
    even, uneven = Cluster(NODES, rate), Cluster(NODES, rate, **LEMONS)
    plain = Policy()
    yield (
        "Meta's formula",
        expected_ratio(NODES, rate, costs.restart_s, costs.checkpoint_interval_s, costs.checkpoint_write_s),
    )
    yield "plain requeue, detection as measured", mean(even, costs, plain)
    yield "plain requeue, detection by the library after 600 s", mean(even, replace(costs, detect_s=LIBRARY_S), plain)
    yield "half of the failures on 3 % of the nodes: plain requeue", mean(uneven, costs, plain)
    yield "… first strike drains", mean(uneven, costs, Policy(1))
    yield "… second strike drains (ours)", mean(uneven, costs, Policy(2))
    yield "… third strike drains", mean(uneven, costs, Policy(3))
    yield "… second strike drains, every second blame wrong", mean(uneven, costs, Policy(2, 0.5))
    yield "… second strike drains, but no spare", mean(replace(uneven, spares=0), costs, Policy(2))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, words in (
        ("detect", "from the failure to the end of the attempt"),
        ("requeue", "from there to the next start"),
        ("start", "from the start to the first new step"),
    ):
        parser.add_argument(f"--{name}-s", type=float, required=True, help=f"seconds {words}, measured")
    parser.add_argument("--interval-s", type=float, default=1800.0, help="seconds between checkpoints")
    parser.add_argument("--write-s", type=float, default=1.0, help="seconds that training waits for one")
    given = parser.parse_args()
    costs = Costs(given.detect_s, given.requeue_s, given.start_s, given.interval_s, given.write_s)
    head = ("", *(f"{rate * 1000:.2f} / 1,000 node-days" for rate in RATES))
    sys.stdout.write("| " + " | ".join(head) + " |\n|---|---|---|\n")
    for line in zip(*(list(rows(costs, rate)) for rate in RATES)):
        sys.stdout.write(f"| {line[0][0]} | " + " | ".join(f"{ratio:.4f}" for _, ratio in line) + " |\n")


if __name__ == "__main__":
    main()
