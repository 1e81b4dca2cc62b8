"""A cut between nodes, from what each of them reached."""

from __future__ import annotations

from rackweave.watch.reach import peer_line, unreachable


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


def test_other_files_are_not_read_as_probes() -> None:
    assert unreachable({"logs/a/launch.log": "peer b does not answer (ping, 1 s)"}) is None
