"""A cut between nodes, from what each of them reached."""

from __future__ import annotations

from rackweave.watch.reach import peer_line, standing_still, told_to_stand_still, unreachable


def _logs(**lost: list[str]) -> dict[str, str]:
    hosts = sorted(lost)
    return {
        f"evidence/{host}/peers.txt": "\n".join(
            peer_line(other, other not in lost[host], "ping, 0.1 s") for other in hosts if other != host
        )
        for host in hosts
    }


def test_where_all_answer_nobody_is_named() -> None:
    assert unreachable(_logs(a=[], b=[], c=[])) is None


def test_both_ends_of_a_cut_are_named_and_no_third() -> None:
    found = unreachable(_logs(a=["b"], b=["a"], c=[]))
    assert found is not None
    assert (found.kind, found.culprit) == ("cut", "host:a,host:b")


def test_a_host_that_nobody_reaches_is_named_alone() -> None:
    found = unreachable(_logs(a=["c"], b=["c"], c=["a", "b"]))
    assert found is not None
    assert found.culprit == "host:c"


def test_where_nobody_reaches_anybody_probes_are_forbidden_and_nobody_is_named() -> None:
    assert unreachable(_logs(a=["b", "c"], b=["a", "c"], c=["a", "b"])) is None


def test_of_two_ends_the_one_that_we_do_not_reach_either_is_named_alone() -> None:
    found = unreachable({"evidence/a/peers.txt": peer_line("b", False, "ports, 4.0 s")}, {"b": "no route to host"})
    assert found is not None
    assert (found.kind, found.culprit) == ("lost_host", "host:b")


def test_other_files_are_not_read_as_probes() -> None:
    assert unreachable({"logs/a/launch.log": "peer b does not answer (ping, 1 s)"}) is None


def test_a_stopped_process_is_named_by_its_rank_and_one_that_waits_in_the_kernel_is_not() -> None:
    listing = "7 1 Tl do_signal_stop 60 9000 python -m trainer\n8 1 D folio_wait 60 9000 python -m trainer"
    phases = {
        str(rank): {"rank": rank, "host": host, "pid": pid}
        for rank, host, pid in ((0, "a", 7), (1, "a", 8), (4, "b", 7), (5, "b", 9))
    }
    found = standing_still({"evidence/b/processes.txt": listing}, phases)
    assert found is not None
    assert (found.kind, found.culprit, found.hosts) == ("stopped", "rank:4", ("b",))
    assert standing_still({"evidence/c/processes.txt": listing}, phases) is None


def test_a_node_tells_which_of_its_ranks_stand_still() -> None:
    found = told_to_stand_still({"a": {"count": 9, "stopped": []}, "b": {"count": 9, "stopped": [5]}, "c": {}})
    assert found is not None
    assert (found.kind, found.culprit, found.hosts) == ("stopped", "rank:5", ("b",))
    assert told_to_stand_still({"a": {"stopped": []}}) is None
