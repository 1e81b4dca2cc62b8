"""Flight-recorder dumps of real 4-rank gloo runs (torch 2.13), and synthetic NCCL ones."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from rackweave.errors import ParseError
from rackweave.watch.flight import analyse, rank_of, read_dump

FIXTURES = Path(__file__).parents[3] / "fixtures" / "watch" / "flight"


def _dumps(case: str) -> dict[int, dict[str, object]]:
    return {
        rank_of(path.name) or 0: read_dump(path.read_bytes(), path.name) for path in sorted((FIXTURES / case).iterdir())
    }


@pytest.mark.parametrize(
    ("case", "diagnosis", "culprits"),
    [
        ("missing", "hang.desync", (2,)),
        ("dead", "hang.desync", (1,)),
        ("desync", "hang.desync", (3,)),
        ("healthy", "healthy", ()),
    ],
)
def test_real_gloo_dumps_name_the_rank_that_was_made_to_fail(
    case: str, diagnosis: str, culprits: tuple[int, ...]
) -> None:
    report = analyse(_dumps(case), world_size=4)
    assert (report.diagnosis_class, report.culprits) == (diagnosis, culprits)


def test_a_rank_that_left_no_dump_is_said_to_have_left_none() -> None:
    assert analyse(_dumps("dead"), world_size=4).without_dump == (1,)


def test_the_last_rank_without_a_dump_is_found_through_the_world_size() -> None:
    dumps = _dumps("missing")
    del dumps[3]
    assert 3 in analyse(dumps, world_size=4).without_dump


def _entry(
    group: tuple[str, str], sequence: int, done: bool, name: str = "nccl:all_reduce", at: int = 0
) -> dict[str, object]:
    return {
        "process_group": group,
        "collective_seq_id": sequence,
        "profiling_name": name,
        "input_sizes": [[8]],
        "state": "completed" if done else "started",
        "retired": done,
        "is_p2p": False,
        "time_created_ns": at,
    }


def test_a_rank_blocked_by_another_is_not_blamed_in_its_place() -> None:
    tensor, data = ("1", "TENSOR_MODEL_PARALLEL_GROUP"), ("2", "DATA_PARALLEL_GROUP")
    config = {"1": {"desc": tensor[1], "ranks": "[0, 1]"}, "2": {"desc": data[1], "ranks": "[1, 2]"}}
    dumps = {
        0: {"pg_config": config, "entries": [_entry(tensor, 5, False)]},
        1: {"pg_config": config, "entries": [_entry(tensor, 4, True), _entry(data, 9, False)]},
        2: {"pg_config": config, "entries": [_entry(data, 8, True)]},
    }
    assert analyse(dumps).culprits == (2,)


def test_ranks_of_the_group_are_mapped_to_global_ranks() -> None:
    group = ("7", "DATA_PARALLEL_GROUP")
    config = {"7": {"desc": group[1], "ranks": ["12", "13", "14", "15"]}}
    dumps = {rank: {"pg_config": config, "entries": [_entry(group, 3, False)]} for rank in (12, 13, 15)}
    assert analyse(dumps).culprits == (14,)


def test_point_to_point_entries_do_not_count_as_collectives() -> None:
    entry = {**_entry(("0", "default_pg"), 3, False), "is_p2p": True}
    assert analyse({0: {"entries": [entry]}, 1: {"entries": []}}).diagnosis_class == "healthy"


class _Hostile:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("true",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"entries": [_Hostile()]}),
        b"",
        b"\x80\x02",
        b"not a pickle",
        pickle.dumps([1]),
        b'{"entries": 3}',
        b"{" * 5000,
    ],
    ids=["hostile", "empty", "torn", "text", "list", "wrong", "deep"],
)
def test_a_hostile_or_damaged_dump_is_refused_in_one_sentence(data: bytes) -> None:
    with pytest.raises(ParseError):
        read_dump(data, "x")
