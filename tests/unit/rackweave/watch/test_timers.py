"""Megatron's timers of all ranks name the one that computes longer."""

from __future__ import annotations

from rackweave.watch.verdict import diagnose


def _printing(slow: dict[int, float], ranks: int = 8, timers: tuple[str, ...] = ("forward", "backward")) -> list[str]:
    lines = ["times across ranks (ms):"]
    for name in timers:
        lines.append(f"  {name}-compute:")
        lines += [f"     rank {rank:2d}: {1000.0 * slow.get(rank, 1.0) + rank:.2f}" for rank in range(ranks)]
    return lines


def test_one_rank_that_computes_longer_is_a_straggler() -> None:
    verdict = diagnose(_printing({3: 2.5}))
    assert (verdict.diagnosis_class, verdict.culprit, verdict.alarm) == ("perf.straggler", "rank:3", True)


def test_even_ranks_are_healthy() -> None:
    assert diagnose(_printing({})).diagnosis_class == "healthy"


def test_one_slow_printing_of_several_names_nobody() -> None:
    assert not diagnose([*_printing({3: 2.5}), *_printing({}), *_printing({})]).alarm


def test_a_rank_slow_from_some_time_on_is_named_by_the_last_printings() -> None:
    lines = [line for at in range(40) for line in _printing({3: 2.5} if at > 20 else {}, ranks=64)]
    assert diagnose(lines).culprit == "rank:3"


def test_the_last_stage_may_compute_longer_by_design() -> None:
    assert not diagnose(_printing({7: 1.6})).alarm
    assert not diagnose(_printing({6: 1.6, 7: 1.6})).alarm


def test_half_of_the_ranks_are_no_exception() -> None:
    assert not diagnose(_printing(dict.fromkeys(range(2, 6), 2.5))).alarm


def test_waiting_for_a_neighbour_is_no_own_work() -> None:
    lines = [line.replace("-compute", "-recv") for line in _printing({3: 2.5})]
    assert diagnose(lines).diagnosis_class == "healthy"
