"""NCCL's RAS report as JSON, in the layout of its writer (client_support.cc of NCCL 2.28): whom it names."""

from __future__ import annotations

import json

import pytest
from rackweave.watch.verdict import diagnose

OPERATIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


def _rank(number: int, host: str, all_reduces: int) -> dict[str, object]:
    return {
        "rank": number,
        "host": host,
        "pid": 4000 + number,
        "cuda_dev": number % 2,
        "nvml_dev": number % 2,
        "status": {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": False,
            "destroy_flag": False,
            "abort_flag": False,
        },
        "collective_counts": {**dict.fromkeys(OPERATIONS, 7), "AllReduce": all_reduces},
    }


def _missing(number: int, host: str, unresponsive: bool, dead: bool) -> dict[str, object]:
    return {
        "rank": number,
        "host": host,
        "pid": 4000 + number,
        "cuda_dev": 0,
        "nvml_dev": 0,
        "status": {"unresponsive": unresponsive, "considered_dead": dead},
    }


def _report(ranks: list[dict[str, object]], missing: list[dict[str, object]]) -> dict[str, object]:
    world = {
        "hash": "0x1f2e",
        "secondary_hash": "0x1:0x2",
        "size": len(ranks) + len(missing),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing),
        "ranks": ranks,
        "missing_ranks": missing,
    }
    group = {**world, "hash": "0x77", "size": 2, "ranks": [_rank(0, "192.0.2.1", 9), _rank(1, "192.0.2.1", 9)]}
    return {
        "nccl_version": "2.28.3",
        "cuda_runtime_version": 12090,
        "cuda_driver_version": 13000,
        "timestamp": "2026-08-02 07:00:00",
        "communicators_count": 2,
        "communicators": [world, {**group, "missing_ranks": []}],
        "ras": {"collection_time_sec": 0.01, "timeouts_count": 0},
    }


@pytest.mark.parametrize("indent", [2, None], ids=["printed", "one line"])
def test_a_lagging_rank_is_named_with_its_host(indent: int | None) -> None:
    ranks = [_rank(number, f"192.0.2.{number // 2 + 1}", 12 if number == 3 else 40) for number in range(4)]
    verdict = diagnose(json.dumps(_report(ranks, []), indent=indent))
    assert (verdict.diagnosis_class, verdict.culprit) == ("hang.desync", "rank:3,host:192.0.2.2")


@pytest.mark.parametrize("indent", [2, None], ids=["printed", "one line"])
def test_a_dead_rank_is_named_and_explains_those_that_wait(indent: int | None) -> None:
    ranks = [_rank(number, "192.0.2.1", 40) for number in range(3)]
    verdict = diagnose(json.dumps(_report(ranks, [_missing(3, "192.0.2.9", True, True)]), indent=indent))
    assert (verdict.diagnosis_class, verdict.culprit) == ("hang.process_dead", "rank:3,host:192.0.2.9")


def test_a_rank_that_answers_without_the_communicator_has_left_it() -> None:
    ranks = [_rank(number, "192.0.2.1", 40) for number in range(3)]
    verdict = diagnose(json.dumps(_report(ranks, [_missing(3, "192.0.2.9", False, False)]), indent=2))
    assert (verdict.diagnosis_class, verdict.culprit) == ("hang.desync", "rank:3")


def test_one_operation_of_difference_is_normal() -> None:
    ranks = [_rank(number, "192.0.2.1", 40 + number % 2) for number in range(4)]
    assert not diagnose(json.dumps(_report(ranks, []), indent=2)).alarm


def test_the_text_of_newer_versions_names_an_incomplete_rank() -> None:
    text = (
        "Errors\n======\n\n#0-0 (27a079b828ff1a75) INCOMPLETE\n  Missing communicator data from 1 rank\n"
        "  Rank 5 -- GPU 1 managed by process 3487984 on node 192.0.2.12\n\n"
    )
    verdict = diagnose(text)
    assert (verdict.diagnosis_class, verdict.culprit) == ("hang.process_dead", "rank:5,host:192.0.2.12")


@pytest.mark.parametrize(
    "log",
    [
        "+ torchrun --nnodes=2 --nproc-per-node=8 --node-rank=0 train.py",
        "gpu01: + torchrun --nnodes=2 --node-rank=0 train.py\ngpu01: torchrun --nnodes=2 --node-rank=0 train.py",
        "+ torchrun --nnodes=2 --node-rank=0 train.py\nrestarting\n+ torchrun --nnodes=2 --node-rank=0 train.py",
    ],
    ids=["one line", "shown twice", "started again"],
)
def test_a_valid_node_rank_is_no_early_expansion(log: str) -> None:
    assert not diagnose(log).alarm
