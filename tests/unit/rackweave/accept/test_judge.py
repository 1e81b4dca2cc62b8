"""Which figures pass, fail, are not possible here, or pending, and which host is named."""

import pytest
from rackweave.accept.bars import read_overrides
from rackweave.accept.context import Context
from rackweave.accept.judge import judge
from rackweave.errors import FabricError

from tests.support.acceptance import GPU_BDF, collective, document, node, observations, verdicts

HOSTS = ["trn01", "trn02", "trn03", "trn04"]
RING = [("trn01", "trn02"), ("trn03", "trn04"), ("trn01", "trn04"), ("trn02", "trn03")]


def fleet(changed=None, inside=None, pairs=None):
    """Return observations of four good nodes; arguments change one host or pair."""
    inside, pairs, changed = inside or {}, pairs or {}, changed or {}
    groups = [collective(host, [host], inside.get(host, 470.0)) for host in HOSTS]
    groups += [collective(host, list(pair), pairs.get(pair, 370.0)) for pair in RING for host in pair]
    return observations([node(host, **changed.get(host, {})) for host in HOSTS], groups)


def failures(report):
    return {(result.host, test.name) for result in report.hosts for test in result.tests if test.verdict == "fail"}


def test_good_nodes_pass(context):
    report = judge(HOSTS, fleet(), context)
    assert failures(report) == set()
    assert verdicts(report, "trn01")["allreduce-node"].bar == 460.0
    assert all(pair.verdict == "pass" for pair in report.pairs)


def test_a_node_below_the_published_bar_of_its_gpu_fails(context):
    report = judge(HOSTS, fleet(inside={"trn02": 459.0}), context)
    assert failures(report) == {("trn02", "allreduce-node")}


def test_a_gpu_without_a_published_bar_is_compared_with_the_other_nodes():
    gpus = [{"index": index, "name": "NVIDIA L40S"} for index in range(8)]
    documents = {host: document(host, gpus=gpus) for host in HOSTS}
    report = judge(HOSTS, fleet(inside={"trn03": 200.0}), Context(documents, {}))
    assert ("trn03", "allreduce-node") in failures(report)
    assert "median of 3 other nodes" in verdicts(report, "trn03")["allreduce-node"].source


def test_the_node_that_is_slow_with_all_its_partners_is_named_and_they_are_not(context):
    slow = {pair: 100.0 for pair in RING if "trn03" in pair}
    report = judge(HOSTS, fleet(pairs=slow), context)
    assert failures(report) == {("trn03", "allreduce-pair")}
    assert {pair.hosts for pair in report.pairs if pair.verdict == "fail"} == set(slow)


def test_one_bad_pair_of_two_good_nodes_is_reported_and_fails_neither(context):
    report = judge(HOSTS, fleet(pairs={("trn01", "trn02"): 100.0}), context)
    assert failures(report) == set()
    assert "1 of 2 pairs failed" in verdicts(report, "trn01")["allreduce-pair"].reason


def test_a_collective_that_hung_is_a_failure_with_its_sentence(context):
    broken = collective("trn01", ["trn01"], 0.0, sizes=[], error="Timed out waiting 60000ms")
    seen = observations([node("trn01")], [broken])
    found = verdicts(judge(["trn01"], seen, context), "trn01")["allreduce-node"]
    assert (found.verdict, found.reason) == ("fail", "Timed out waiting 60000ms")


def test_late_single_calls_fail_as_jitter_though_the_median_is_good(context):
    groups = [collective(host, [host], 470.0, p99_s=0.05 if host == "trn04" else 0.0101) for host in HOSTS]
    report = judge(HOSTS, observations([node(host) for host in HOSTS], groups), context)
    assert failures(report) == {("trn04", "allreduce-node-jitter")}


@pytest.mark.parametrize(
    ("change", "test"),
    [
        ({"cpu_work_bytes_per_second": 3e8}, "cpu-work"),
        ({"round_trip": {"p50_s": 0.02, "p99_s": 0.021, "max_s": 0.03, "count": 100}}, "round-trip"),
        ({"write": {"bytes": 9 * 10**8, "start": 0.0, "end": 1.0, "direct": True}}, "storage-write"),
        ({"read": None, "errors": {"storage": "read in /mnt/shared: Stale file handle"}}, "storage-read"),
        ({"memlock_soft_bytes": 8388608, "memlock_hard_bytes": 8388608}, "memlock"),
        ({"hypervisor_flag": True}, "bare-metal"),
        ({"steal": 0.1}, "cpu-steal"),
        ({"links": {GPU_BDF: {"width": 8, "max_width": 16, "speed_gts": 32.0, "max_speed_gts": 32.0}}}, "pcie-links"),
    ],
)
def test_a_deviating_node_fails_with_its_name(context, change, test):
    assert failures(judge(HOSTS, fleet({"trn02": change}), context)) == {("trn02", test)}


def test_a_round_trip_far_below_a_millisecond_is_no_fault_however_much_it_differs(context):
    change = {"round_trip": {"p50_s": 9e-4, "p99_s": 9e-4, "max_s": 9e-4, "count": 100}}
    assert failures(judge(HOSTS, fleet({"trn02": change}), context)) == set()


def test_the_speed_of_an_idle_gpus_link_is_judged_only_under_load(context):
    links = {GPU_BDF: {"width": 16, "max_width": 16, "speed_gts": 2.5, "max_speed_gts": 32.0}}
    cold = judge(["trn01"], observations([node("trn01", links=links)]), context)
    slow = collective("trn01", ["trn01"], 470.0, links=links)
    warm = judge(["trn01"], observations([node("trn01", links=links)], [slow]), context)
    assert verdicts(cold, "trn01")["pcie-links"].verdict == "pass"
    assert "runs at 2.5 of 32 GT/s" in verdicts(warm, "trn01")["pcie-links"].reason


def test_a_node_that_left_no_figures_fails_with_what_the_log_says_of_it(context):
    seen = observations([], log="srun: error: trn01: task 0: launch failed\nother line")
    found = judge(["trn01"], seen, context).hosts[0]
    assert found.verdict == "fail"
    assert "trn01: task 0: launch failed" in found.tests[0].reason


def test_a_node_with_a_job_is_pending_and_has_no_tests(context):
    report = judge(["trn01"], observations([], pending={"trn01": "a job holds the node"}), context)
    assert (report.hosts[0].verdict, report.hosts[0].tests) == ("pending", ())


def test_a_node_alone_passes_but_its_pair_test_stays_pending(context):
    report = judge(["trn01"], observations([node("trn01")], [collective("trn01", ["trn01"], 470.0)]), context)
    assert verdicts(report, "trn01")["allreduce-pair"].verdict == "pending"
    assert (report.hosts[0].verdict, report.hosts[0].complete) == ("pass", False)


def test_figures_of_earlier_runs_are_the_peers_of_a_node_measured_alone(context):
    earlier = Context(context.documents, earlier={"cpu-work": {"trn02": 1000.0, "trn03": 1000.0}})
    seen = observations([node("trn01", cpu_work_bytes_per_second=2e8)])
    assert verdicts(judge(["trn01"], seen, earlier), "trn01")["cpu-work"].verdict == "fail"


def test_the_operators_own_bar_replaces_ours(context):
    own = Context(context.documents, context.rails_gbps, read_overrides({"allreduce-node": 475.0}))
    assert len(failures(judge(HOSTS, fleet(), own))) == 4


@pytest.mark.parametrize("bars", [{"speed": 1.0}, {"cpu-work": "fast"}, {"cpu-work": True}, {"cpu-work": -1}])
def test_a_bar_that_is_none_is_refused(bars):
    with pytest.raises(FabricError, match="acceptance_bars"):
        read_overrides(bars)


def test_a_container_is_not_called_bare_metal_and_its_limit_is_not_held_against_it():
    identity = {"virtualization": "container"}
    documents = {"gpu01": document("gpu01", identity=identity)}
    seen = observations([node("gpu01", memlock_soft_bytes=8388608, virtualization="podman")])
    found = verdicts(judge(["gpu01"], seen, Context(documents)), "gpu01")
    assert found["bare-metal"].verdict == found["memlock"].verdict == "not possible here"


def test_the_total_of_the_storage_counts_from_the_first_start_to_the_last_end(context):
    late = {"write": {"bytes": 4 * 10**9, "start": 1.0, "end": 2.0, "direct": True}}
    report = judge(HOSTS, fleet({"trn04": late}), context)
    assert report.totals[0].value == pytest.approx(8000.0)
