"""Signs of life: who fell silent, and when it is the shared file system instead."""

from __future__ import annotations

import random

import pytest
from rackweave.watch.alive import OTHERS_BEATS, SILENT_S, SLOW_S, Alive

EVERY_S = 3.0
LOOK_S = 3.5


def follow(hosts, until_s, counts, look_s=LOOK_S, ended=lambda now: ()):
    """Look at the numbers that ``counts(host, now)`` gives; return when which hosts were named, and what was said."""
    alive, named, said, now = Alive(), [], [], 0.0
    while now < until_s:
        alive.take({host: {"count": counts(host, now)} for host in hosts}, ended(now), now)
        if words := alive.slow_storage(now):
            said.append((now, words))
        if found := alive.silent(now):
            named.append((now, found.culprit))
        now += look_s
    return named, said


def until(gone_at):
    """Every host beats until its own end."""
    return lambda host, now: int(min(now, gone_at.get(host, 1e9)) // EVERY_S) + 1


@pytest.mark.parametrize("hosts", [2, 4, 64])
@pytest.mark.parametrize("gone_at", [50.0, 51.4, 53.9])
def test_a_node_without_power_is_named_within_thirty_seconds(hosts, gone_at) -> None:
    names = [f"n{number}" for number in range(hosts)]
    named, said = follow(names, 120, until({"n1": gone_at}))
    assert named[0][1] == "host:n1"
    assert named[0][0] - gone_at <= 26
    assert {culprit for _, culprit in named} == {"host:n1"}
    assert not said


def test_half_of_the_nodes_of_one_rack_are_named_together() -> None:
    names = [f"n{number}" for number in range(8)]
    named, _ = follow(names, 120, until(dict.fromkeys(names[:4], 40.0)))
    assert named[-1][1] == ",".join(f"host:{name}" for name in names[:4])


@pytest.mark.parametrize("stall_s", [20, 60, 300])
def test_a_file_system_that_stands_still_names_no_node_even_when_nodes_come_back_one_after_the_other(stall_s) -> None:
    names = [f"n{number}" for number in range(8)]
    chance = random.Random(stall_s)
    late = {name: chance.uniform(0, EVERY_S * (OTHERS_BEATS - 1)) for name in names}

    def counts(host, now):
        frozen = min(max(now - 100.0, 0.0), stall_s + late[host])
        return int((now - frozen) // EVERY_S) + 1

    named, said = follow(names, 100 + stall_s + 120, counts)
    assert named == []
    assert len(said) == (stall_s > SLOW_S)


def test_a_watch_that_slept_itself_names_nobody() -> None:
    alive = Alive()
    for now in (0.0, 3.0, 6.0, 300.0, 303.0, 306.0):
        alive.take({host: {"count": int(now // EVERY_S)} for host in ("a", "b", "c")}, (), now)
        assert alive.silent(now) is None
        assert alive.slow_storage(now) == ""


def test_slow_looks_name_a_node_all_the_same_and_nobody_else() -> None:
    named, _ = follow(["a", "b", "c"], 200, until({"b": 60.0}), look_s=15.0)
    assert {culprit for _, culprit in named} == {"host:b"}


def test_a_node_that_ended_in_order_is_not_missed() -> None:
    named, _ = follow(["a", "b", "c"], 120, until({"b": 30.0}), ended=lambda now: ("b",) if now > 30 else ())
    assert named == []


def test_the_only_node_of_a_job_is_never_named_from_its_own_silence() -> None:
    named, said = follow(["a"], 200, until({"a": 30.0}))
    assert named == []
    assert said


def test_a_node_that_comes_back_is_named_no_longer() -> None:
    alive = Alive()
    for now in range(0, 60, 3):
        alive.take({"a": {"count": now}, "b": {"count": min(now, 20)}}, (), float(now))
    assert alive.silent(59.0).culprit == "host:b"
    alive.take({"a": {"count": 70}, "b": {"count": 21}}, (), 61.0)
    assert alive.silent(61.0) is None


def test_zero_switches_it_off() -> None:
    alive = Alive(0.0)
    for now in range(0, 200, 3):
        alive.take({"a": {"count": now}, "b": {"count": 1}}, (), float(now))
    assert alive.silent(200.0) is None


def test_eight_hours_of_healthy_but_uneven_signs_name_nobody() -> None:
    chance = random.Random(5)
    names = [f"n{number}" for number in range(16)]
    alive, at, count = Alive(), dict.fromkeys(names, 0.0), dict.fromkeys(names, 1)
    now = 0.0
    while now < 8 * 3600:
        now += chance.uniform(2, 6)
        for name in names:
            while at[name] + EVERY_S <= now:
                # One in fifty takes up to 9 s, on a busy node or disk.
                at[name] += EVERY_S + (chance.uniform(0, 9) if chance.random() < 0.02 else 0)
                count[name] += 1
        alive.take({name: {"count": count[name]} for name in names}, (), now)
        assert alive.silent(now) is None


@pytest.mark.parametrize("beats", [{}, {"a": {}}, {"a": {"count": "x"}}, {"a": {"count": None}}])
def test_files_that_say_nothing_are_passed_over(beats) -> None:
    alive = Alive()
    alive.take(beats, ("z",), 0.0)
    assert alive.silent(SILENT_S * 9) is None
