#!/usr/bin/env python3
"""All-reduce on one node, then with one other node after the other; runs once on every node, inside a job step.

    collective.py DIRECTORY

Each group makes its own rendezvous, so that a node that fails spoils only the groups it is in. What is measured is what
`python -m trainer.bench allreduce` measures, without Megatron, whose import takes longer than everything here.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

# Before the fork: torch is imported once for all ranks of the node. It touches no GPU until a rank asks for one.
import torch
import torch.distributed as dist
from probe import read_links, write_result

from trainer.bench.allreduce import sweep

SCHEMA = "rackweave.acceptance_collective/1"


def free_port():
    """Return a port that nobody on this node listens on."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def groups_of(schedule, host, own_port):
    """Return the groups of this host in the order in which it meets them, with a port for each.

    Ports between nodes follow from the job, since both ends must know them.
    """
    base = 20000 + int(os.environ["SLURM_JOB_ID"]) % 4000 * 8
    groups = [([host], own_port)]
    for number, pairs in enumerate(schedule["rounds"]):
        groups += [(list(pair), base + number % 8) for pair in pairs if host in pair]
    return groups


def measure(schedule, hosts, port, host, local_rank):
    """Return the figures of one group, on local rank 0; every rank of the group must call this."""
    ranks = schedule["ranks"]
    device = torch.device("cuda", local_rank) if schedule["backend"] == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        schedule["backend"],
        init_method=f"tcp://{hosts[0]}:{port}",
        rank=hosts.index(host) * ranks + local_rank,
        world_size=len(hosts) * ranks,
        timeout=timedelta(seconds=schedule["group_timeout_s"]),
    )
    try:
        result = sweep(device, schedule["calls"], sizes=schedule["message_bytes"])
    finally:
        dist.destroy_process_group()
    sizes = [asdict(size) for size in result.sizes]
    return {"backend": result.backend, "steal": result.steal, "sizes": sizes}


def rank_main(directory, schedule, host, local_rank, own_port):
    for number, (hosts, port) in enumerate(groups_of(schedule, host, own_port)):
        if schedule["ranks"] * len(hosts) < 2:
            continue
        found, error = {"backend": schedule["backend"]}, None
        try:
            found = measure(schedule, hosts, port, host, local_rank)
        except (RuntimeError, OSError, ValueError) as problem:  # what torch raises when a peer is missing or late
            error = str(problem).splitlines()[0][:300]
        if local_rank == 0:
            content = {"schema": SCHEMA, "host": host, "hosts": hosts, "ranks": schedule["ranks"] * len(hosts), **found}
            content.update(error=error, links=read_links(schedule["bdfs"].get(host, ())))
            write_result(directory, f"collective.{number}.{host}", content)


def main(arguments):
    directory, host = Path(arguments[0]), os.environ["RACKWEAVE_HOST"]
    schedule = json.loads((directory / "schedule.json").read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    context, port = multiprocessing.get_context("fork"), free_port()
    ranks = [
        context.Process(target=rank_main, args=(directory, schedule, host, rank, port))
        for rank in range(schedule["ranks"])
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return max(abs(process.exitcode or 0) for process in ranks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
