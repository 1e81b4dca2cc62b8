"""What a swap changed, in words; what was lost keeps the node out; the acceptance run decides about the rest."""

import json
from dataclasses import replace

import pytest
from rackweave.hardware.accept import accept_document
from rackweave.hardware.document import read_document
from rackweave.hardware.node import AcceptanceTests
from rackweave.rebuild.swap import judge_acceptance, loss_words, losses, swap_report

from tests.support.documents import reference, request, with_nic, with_port


def report(after, before=None):
    return swap_report(after, before or reference(), "that was accepted", request())


def test_the_same_node_has_no_difference():
    same = report(reference())
    assert same.changes == ()
    assert same.effects == ()
    assert same.losses == ()
    assert same.lines == ("trn01: 0 difference(s) from the hardware that was accepted",)


def test_without_a_document_from_before_that_is_said():
    assert "nothing known from before" in swap_report(reference(), None, "none", request()).lines[0]


def test_replaced_gpus_are_named_and_are_no_loss():
    node = reference()
    gpus = tuple(replace(gpu, uuid=f"GPU-new-{gpu.index}") for gpu in node.gpus)
    after = report(replace(node, gpus=gpus))
    assert sum("was replaced" in line for line in after.lines) == 8
    assert after.losses == ()
    assert not after.replan


def test_a_renamed_nic_is_followed_into_the_environment_and_the_rail_map():
    after = report(with_nic(reference(), "mlx5_3", device="mlx5_9"))
    assert any("name moved mlx5_3 -> mlx5_9" in line for line in after.lines)
    assert any(line.startswith("  -> NCCL_IB_HCA:") and "mlx5_9" in line for line in after.lines)
    assert any(line.startswith("  -> rail map:") for line in after.lines)
    assert after.replan


def test_a_missing_gpu_is_a_loss_that_names_it():
    node = reference()
    after = report(replace(node, gpus=node.gpus[:-1]))
    assert after.losses == ("GPUs: 8 before, 7 now",)
    words = loss_words(after)
    assert words.startswith("GPUs: 8 before, 7 now; GPU 7 at ")
    assert "is missing" in words
    assert any("gres: " in effect for effect in after.effects)


def test_a_missing_or_slower_nic_is_a_loss():
    node = reference()
    assert losses(node, replace(node, nics=node.nics[1:])) == (
        f"RDMA devices: {len(node.nics)} before, {len(node.nics) - 1} now",
    )
    assert losses(node, with_port(node, "mlx5_0", rate_gbps=200.0)) == ("rate of mlx5_0 (Gb/s): 400 before, 200 now",)


@pytest.mark.parametrize(("share", "lost"), [(0.995, False), (0.97, True), (1.1, False)])
def test_memory_counts_as_lost_beyond_what_kernels_reserve(share, lost):
    node = replace(reference(), memory_total_bytes=2 * 2**40)
    after = replace(node, memory_total_bytes=int(2 * 2**40 * share))
    assert bool(losses(node, after)) == lost


def test_what_is_not_known_is_no_loss():
    node = reference()
    gpus = tuple(replace(gpu, memory_bytes=None, nvlink_links=None) for gpu in node.gpus)
    assert losses(node, replace(node, gpus=gpus, memory_total_bytes=None)) == ()


def accepted(verdict="pass", tests=(), pairs=()):
    return {"hosts": {"gpu02": {"verdict": verdict, "tests": list(tests)}}, "pairs": list(pairs), "verdict": verdict}


def result(name, verdict, **more):
    return {"name": name, "verdict": verdict, "value": None, "unit": "", "bar": None, "reason": "", **more}


def test_a_pass_without_a_neighbour_says_that_the_pair_test_is_pending():
    judged = judge_acceptance(accepted(tests=[result("storage write", "pass")]), "gpu02")
    assert judged.passed
    assert judged.pair_pending
    assert judged.words == "acceptance passed, pair test pending"


def test_a_pass_with_a_neighbour_is_whole():
    pair = {"hosts": ["gpu01", "gpu02"], "verdict": "pass", "tests": [result("all-reduce", "pass")]}
    judged = judge_acceptance(accepted(pairs=[pair]), "gpu02")
    assert judged.passed
    assert not judged.pair_pending


def test_a_failed_test_names_figure_and_bar():
    test = result("all-reduce", "fail", value=301.2, unit="GB/s", bar=460, reason="one NVLink is down")
    judged = judge_acceptance(accepted("fail", [test]), "gpu02")
    assert not judged.passed
    assert judged.words == "acceptance: all-reduce 301.2 GB/s (bar 460 GB/s): one NVLink is down"


def test_a_failed_pair_keeps_the_node_out():
    pair = {"hosts": ["gpu01", "gpu02"], "verdict": "fail", "tests": [result("pair latency", "fail", reason="slow")]}
    assert "pair latency: slow" in judge_acceptance(accepted(pairs=[pair]), "gpu02").words


@pytest.mark.parametrize("verdict", ["pending", "fail", "not possible here"])
def test_a_node_that_was_not_tested_is_not_accepted(verdict):
    assert not judge_acceptance(accepted(verdict), "gpu02").passed
    assert not judge_acceptance({}, "gpu02").passed


def test_the_baseline_says_that_the_pair_test_is_pending_and_keeps_saying_so():
    tests = AcceptanceTests("pass", "pending")
    first = read_document(json.loads(accept_document(reference(), None, tests).content))
    assert first.acceptance == tests
    again = accept_document(reference(), first)
    assert read_document(json.loads(again.content)).acceptance == tests
    other = accept_document(with_nic(reference(), "mlx5_3", firmware="1.2.3"), first)
    assert read_document(json.loads(other.content)).acceptance is None


def test_an_observed_document_has_no_acceptance():
    assert "acceptance" not in reference().as_dict()
