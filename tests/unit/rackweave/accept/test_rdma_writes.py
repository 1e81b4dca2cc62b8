"""Writes from GPU memory over each rail."""

import pytest
from rackweave.accept.bars import write_bar
from rackweave.accept.judge import judge

from tests.support.acceptance import node, observations, verdicts

HEAD = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"


def runs(host, peer, figures):
    text = {
        rail: f"{HEAD} 65536      376900           0.00               {value}             0.748\n"
        for rail, value in figures.items()
    }
    rows = [
        {"peer": peer, "rail": rail, "device": f"mlx5_{rail}", "code": 0, "text": text[rail]} for rail in sorted(text)
    ]
    return {"schema": "rackweave.acceptance_rails/1", "host": host, "runs": rows}


def judged(context, *found, errors=None):
    seen = observations([node("trn01", errors=errors or {}), node("trn02"), node("trn03")], rails=found)
    return verdicts(judge(["trn01"], seen, context), "trn01")["rdma-write"]


def test_the_slowest_rail_is_the_value_and_is_named(context):
    figures = dict.fromkeys(range(8), 392.5)
    found = judged(context, runs("trn01", "trn02", {**figures, 5: 210.1}))
    assert (found.verdict, found.value) == ("fail", 210.1)
    assert "rail 5 reaches 210.1 Gb/s" in found.reason


def test_a_rail_that_is_good_with_another_peer_is_not_this_hosts_fault(context):
    figures = dict.fromkeys(range(8), 392.5)
    found = judged(context, runs("trn01", "trn02", {**figures, 5: 210.1}), runs("trn03", "trn01", figures))
    assert found.verdict == "pass"


def test_a_rail_without_result_fails_with_the_tools_last_line(context):
    broken = runs("trn01", "trn02", dict.fromkeys(range(8), 392.5))
    broken["runs"][2]["text"] = "Couldn't allocate MR\n"
    found = judged(context, broken)
    assert found.verdict == "fail"
    assert "rail 2: trn01 to trn02" in found.reason
    assert "Couldn't allocate MR" in found.reason


def test_p031_a_rail_whose_writes_are_never_acknowledged_points_at_the_way_between_the_rails(context):
    """NVIDIA/nccl#1131, nccl-tests#192: version 2 times out where version 1 passes."""
    broken = runs("trn01", "trn02", dict.fromkeys(range(8), 392.5))
    broken["runs"][4]["text"] = (
        f"{HEAD} Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\nscnt=128, ccnt=0\n"
    )
    found = judged(context, broken)
    assert found.verdict == "fail"
    assert "rail 4: trn01 to trn02" in found.reason
    assert "UDP port 4791" in found.reason
    assert "rail 5" not in found.reason


def test_without_the_tool_it_is_not_possible_here(context):
    found = judged(context, errors={"rails": "ib_write_bw is not on the node"})
    assert (found.verdict, found.reason) == ("not possible here", "ib_write_bw is not on the node")


@pytest.mark.parametrize(("rate", "bar"), [(400.0, 380.0), (200.0, 180.0), (100.0, 90.0)])
def test_the_bar_is_the_published_fraction_of_the_ports_rate(rate, bar):
    assert write_bar(rate).value == pytest.approx(bar)


def test_writes_from_host_memory_are_judged_and_say_so(context):
    figures = dict.fromkeys(range(8), 392.5)
    found = runs("trn01", "trn02", figures)
    for row in found["runs"]:
        row["memory"] = "host"
    good = judged(context, found)
    assert good.verdict == "pass"
    assert good.reason == "from host memory: ib_write_bw of trn01 has no CUDA, so GPU memory is not measured"
    found["runs"][5]["text"] = found["runs"][5]["text"].replace("392.5", "210.1")
    slow = judged(context, found)
    assert slow.verdict == "fail"
    assert "rail 5 reaches 210.1" in slow.reason
    assert "has no CUDA" in slow.reason
