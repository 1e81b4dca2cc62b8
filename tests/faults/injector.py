"""Injects one fault into a running job of the lab; a process of its own, so that what judges cannot know.

Fault, seed and run come in; target and moment are drawn from the seed alone. What was done is written to a record that
nobody reads before the verdict is there. Usage: python -m tests.faults.injector FAULT SEED RUN RECORD
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.support.lab import STATE, Lab, addresses_of

LONGEST_WAIT_S = 12.0
FILL = "/dev/shm/filled-by-a-fault-run"


@dataclass
class Injection:
    """One fault on its way: where it may strike, and what it did."""

    lab: Lab
    run: str
    chance: random.Random
    ranks: dict[int, str]
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def hosts(self) -> list[str]:
        return sorted(set(self.ranks.values()))

    def draw_rank(self) -> int:
        return self.chance.choice(sorted(self.ranks))

    def aims(self, culprits: list[str], classes: list[str], **more: Any) -> None:
        """Note who is to be named (any one of them), and what the cause may be called."""
        self.record.update({"culprits": culprits, "classes": classes, **more})


def strike(injection: Injection) -> None:
    """Note the moment; called right before the fault is there."""
    injection.record["time"] = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    injection.record["monotonic_s"] = time.monotonic()


def pid_of(lab: Lab, host: str, rank: int) -> str:
    find = (
        f"for d in /proc/[0-9]*; do tr '\\0' '\\n' 2>/dev/null <$d/environ | grep -qx RANK={rank} && "
        "tr '\\0' ' ' 2>/dev/null <$d/cmdline | grep -q 'program.py' && echo ${d#/proc/} && break; done"
    )
    pid = lab.ssh(host, find, check=False).strip()
    if not pid.isdigit():
        raise SystemExit(f"no process of rank {rank} on {host}")
    return pid


def signal_rank(injection: Injection, rank: int, name: str) -> None:
    host = injection.ranks[rank]
    pid = pid_of(injection.lab, host, rank)
    strike(injection)
    injection.lab.ssh(host, f"kill -{name} {pid}")


def tell_rank(injection: Injection, rank: int, **order: Any) -> None:
    """Leave an order for the program of a rank; the moment is when the rank took it."""
    path = STATE / "shared" / "faults" / "ear" / f"{rank}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(order))
    part.rename(path)
    deadline = time.monotonic() + 60
    while path.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"rank {rank} did not take its order")
        time.sleep(0.05)
    strike(injection)


def kill_rank(injection: Injection) -> None:
    rank = injection.draw_rank()
    injection.aims([f"rank:{rank}"], ["launch.sigkill_unconfirmed"])
    signal_rank(injection, rank, "KILL")


def stop_rank(injection: Injection) -> None:
    rank = injection.draw_rank()
    injection.aims([f"rank:{rank}"], ["hang.no_progress"])
    signal_rank(injection, rank, "STOP")


def raise_in_rank(injection: Injection) -> None:
    rank = injection.draw_rank()
    injection.aims([f"rank:{rank}"], ["app.exception"])
    tell_rank(injection, rank, action="raise", number=injection.chance.randrange(10**6))


def kill_node(injection: Injection) -> None:
    host = injection.chance.choice(injection.hosts)
    injection.aims([f"host:{host}"], ["slurm.node_fail", "hang.process_dead"], node=host)
    strike(injection)
    injection.lab.podman("kill", injection.lab.container(host))


def cut_power(injection: Injection) -> None:
    """Take a node away without a last word: its network dies before its processes, so no connection is closed."""
    host = injection.chance.choice(injection.hosts)
    injection.aims([f"host:{host}"], ["slurm.node_fail", "hang.process_dead"], node=host)
    rules = "add table inet fault; add chain inet fault in { type filter hook input priority -300; policy drop; }; "
    rules += "add chain inet fault out { type filter hook output priority -300; policy drop; }"
    strike(injection)
    in_network_of(injection.lab, host, ["nft", rules])
    injection.lab.podman("kill", injection.lab.container(host))


def cut_link(injection: Injection) -> None:
    one, other = injection.chance.sample(injection.hosts, 2)
    both = [f"host:{one}", f"host:{other}"]
    injection.aims(both, ["net.bootstrap_unreachable", "hang.collective_timeout"], cut=one)
    address = injection.lab.addresses[other]
    rules = "add table inet fault; add chain inet fault in { type filter hook input priority -300; }; "
    rules += "add chain inet fault out { type filter hook output priority -300; }; "
    rules += f"add rule inet fault in ip saddr {address} drop; add rule inet fault out ip daddr {address} drop"
    strike(injection)
    in_network_of(injection.lab, one, ["nft", rules])


def in_network_of(lab: Lab, host: str, command: list[str]) -> None:
    pid = lab.podman("inspect", "--format", "{{.State.Pid}}", lab.container(host)).strip()
    subprocess.run(["nsenter", "--target", pid, "--net", *command], check=True)


def slow_rank(injection: Injection) -> None:
    rank = injection.draw_rank()
    injection.aims([f"rank:{rank}"], ["perf.straggler"], rank=rank)
    tell_rank(injection, rank, action="slow", seconds=round(injection.chance.uniform(0.8, 1.5), 2))


def make_nan(injection: Injection) -> None:
    rank = injection.draw_rank()
    injection.aims([f"rank:{rank}"], ["num.nan"])
    tell_rank(injection, rank, action="nan", number=injection.chance.randrange(10**6))


def exhaust_memory(injection: Injection) -> None:
    rank = injection.draw_rank()
    injection.aims([f"rank:{rank}"], ["mem.host_oom"])
    tell_rank(injection, rank, action="allocate", mib=injection.chance.randrange(4096, 8192))


def fill_shm(injection: Injection) -> None:
    rank = injection.draw_rank()
    host = injection.ranks[rank]
    injection.aims([f"rank:{rank}"], ["mem.shm_exhausted"], filled=host)
    injection.lab.ssh(host, f"dd if=/dev/zero of={FILL} bs=1M 2>/dev/null || true")
    tell_rank(injection, rank, action="share", mib=64)


def fill_checkpoints(injection: Injection) -> None:
    injection.aims(["none"], ["ckpt.write_failed", "storage.quota"])
    strike(injection)
    path = f"/mnt/shared/runs/{injection.run}/checkpoints/filled-by-a-fault-run"
    injection.lab.ssh(injection.hosts[0], f"dd if=/dev/zero of={path} bs=1M 2>/dev/null || true")


def restart_slurmctld(injection: Injection) -> None:
    injection.aims(["none"], ["healthy"])
    strike(injection)
    injection.lab.ssh("ctl", "systemctl restart slurmctld")


def kill_controller(injection: Injection) -> None:
    """Kill the play that watches, with every process it has; nothing on the nodes is touched."""
    injection.aims(["none"], ["healthy"])
    words = f"playbooks/watch.yml.*{injection.run}"
    found = subprocess.run(["pgrep", "--full", words], capture_output=True, text=True, check=False).stdout.split()
    strike(injection)
    subprocess.run(["kill", "-9", *found], check=False)


def two_faults(injection: Injection) -> None:
    killed, stopped = injection.chance.sample(sorted(injection.ranks), 2)
    injection.aims([f"rank:{killed}", f"rank:{stopped}"], ["launch.sigkill_unconfirmed", "hang.no_progress"])
    pid = pid_of(injection.lab, injection.ranks[stopped], stopped)
    signal_rank(injection, killed, "KILL")
    injection.lab.ssh(injection.ranks[stopped], f"kill -STOP {pid} 2>/dev/null || true")


FAULTS: dict[str, Callable[[Injection], None]] = {
    "rank killed": kill_rank,
    "rank stopped": stop_rank,
    "exception in one rank": raise_in_rank,
    "node killed": kill_node,
    "power cut": cut_power,
    "link cut": cut_link,
    "slow rank": slow_rank,
    "NaN": make_nan,
    "host memory exhausted": exhaust_memory,
    "shared memory full": fill_shm,
    "checkpoint disk full": fill_checkpoints,
    "slurmctld restarted": restart_slurmctld,
    "controller killed": kill_controller,
    "two faults at once": two_faults,
}


def main(fault: str, seed: str, run: str, record: Path) -> None:
    """Draw, wait, strike, and write down what was done."""
    chance = random.Random(f"{fault}/{seed}")
    plan = json.loads((STATE / "plan" / run / "plan.json").read_text())
    ranks = {row["rank"]: row["host"] for row in plan["ranks"]}
    injection = Injection(Lab(addresses_of()), run, chance, ranks, {"fault": fault, "seed": seed})
    time.sleep(chance.uniform(0, LONGEST_WAIT_S))
    FAULTS[fault](injection)
    record.write_text(json.dumps(injection.record))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
