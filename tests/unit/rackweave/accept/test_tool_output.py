"""Output of real tools, and output that says nothing."""

import json

import pytest
from rackweave.accept.judge_hardware import judge_dcgm, judge_nvlinks
from rackweave.accept.tool_output import active_nvlinks, dcgm_diagnostic, write_bandwidth_gbps
from rackweave.errors import ParseError

from tests.support.acceptance import document, node, observations

WRITE = """---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      373200           0.00               391.31\t\t     0.746364
---------------------------------------------------------------------------------------
"""


def nvlink(links):
    lines = []
    for gpu, states in enumerate(links):
        lines.append(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu})")
        lines += [f"\t Link {number}: {state}" for number, state in enumerate(states)]
    return "\n".join(lines)


def dcgm(*statuses, key="DCGM Diagnostic"):
    results = [{"entity_group": "GPU", "entity_id": index, "status": status} for index, status in enumerate(statuses)]
    return json.dumps(
        {key: {"test_categories": [{"category": "Hardware", "tests": [{"name": "memory", "results": results}]}]}}
    )


def figures(**changed):
    return observations([node("trn01", **changed)]).nodes["trn01"]


def test_the_average_of_ib_write_bw_is_read():
    assert write_bandwidth_gbps(WRITE) == 391.31


@pytest.mark.parametrize("text", ["", "Unable to init the socket connection\n", WRITE.replace("Gb/sec", "MB/sec")])
def test_output_of_ib_write_bw_without_a_figure_in_gigabits_is_refused(text):
    with pytest.raises(ParseError):
        write_bandwidth_gbps(text)


def test_inactive_nvlinks_do_not_count():
    assert active_nvlinks(nvlink([["26.562 GB/s"] * 18, ["26.562 GB/s"] * 17 + ["<inactive>"]])) == {0: 18, 1: 17}


def test_a_gpu_with_a_lost_nvlink_is_named():
    run = {"code": 0, "text": nvlink([["26.562 GB/s"] * 18] * 7 + [["26.562 GB/s"] * 17 + ["<inactive>"]])}
    found = judge_nvlinks(figures(nvlink=run), document("trn01"))
    assert (found.verdict, found.value, found.bar) == ("fail", 17.0, 18)
    assert "GPU 7 has 17" in found.reason


def test_a_gpu_that_nvidia_smi_does_not_name_is_a_failure():
    run = {"code": 0, "text": nvlink([["26.562 GB/s"] * 18] * 7)}
    assert "names 7 of 8 GPUs" in judge_nvlinks(figures(nvlink=run), document("trn01")).reason


@pytest.mark.parametrize("key", ["DCGM Diagnostic", "DCGM GPU Diagnostic"])
def test_a_failed_diagnostic_names_test_and_gpu(key):
    found = dcgm_diagnostic(dcgm("Pass", "Fail", key=key))
    assert (found.passed, found.failed) == (1, ("memory on 1",))


def test_a_diagnostic_that_cannot_be_read_fails():
    assert (
        judge_dcgm(figures(dcgm={"code": 226, "text": "Error: unable to establish a connection"}), 2).verdict == "fail"
    )


def test_a_diagnostic_that_passed_but_ended_badly_fails():
    assert judge_dcgm(figures(dcgm={"code": 1, "text": dcgm("Pass")}), 2).verdict == "fail"
    assert judge_dcgm(figures(dcgm={"code": 0, "text": dcgm("Pass")}), 2).verdict == "pass"


def test_a_missing_tool_is_not_possible_here():
    assert judge_dcgm(figures(errors={"dcgm": "dcgmi is not on the node"}), 2).verdict == "not possible here"
