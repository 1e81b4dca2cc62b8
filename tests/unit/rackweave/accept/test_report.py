"""The report over several runs."""

from rackweave.accept.judge import judge
from rackweave.accept.report import better, report_document, table

from tests.support.acceptance import collective, node, observations

HOSTS = ["trn01", "trn02"]


def judged(context, changed=None, pending=None, hosts=HOSTS):
    changed = changed or {}
    groups = [collective(host, [host], 470.0) for host in hosts]
    groups += [collective(host, HOSTS, 370.0) for host in HOSTS if hosts == HOSTS]
    return judge(hosts, observations([node(h, **changed.get(h, {})) for h in hosts], groups, pending=pending), context)


def written(report, time="2026-01-01T00:00:00Z", earlier=None, keep=HOSTS, digest="d"):
    return report_document(report, time, dict.fromkeys(HOSTS, digest), earlier or {}, keep)


def test_a_figure_that_is_good_the_second_time_does_not_count_as_failed(context):
    first = judged(context, {"trn02": {"steal": 0.5}})
    assert [host.verdict for host in first.hosts] == ["pass", "fail"]
    assert [host.verdict for host in better(first, judged(context)).hosts] == ["pass", "pass"]


def test_a_second_measurement_spoils_nothing_that_was_good(context):
    first, second = judged(context, {"trn02": {"steal": 0.5}}), judged(context, {"trn01": {"steal": 0.5}})
    assert [host.verdict for host in better(first, second).hosts] == ["pass", "pass"]


def test_hosts_of_earlier_runs_stay_and_hosts_that_are_gone_leave(context):
    before = written(judged(context))
    after = written(judged(context, hosts=["trn02"]), "2026-01-02T00:00:00Z", before)
    assert after["hosts"]["trn01"] == before["hosts"]["trn01"]
    assert after["hosts"]["trn02"]["time"] == "2026-01-02T00:00:00Z"
    assert list(written(judged(context, hosts=["trn02"]), earlier=before, keep=["trn02"])["hosts"]) == ["trn02"]


def test_a_node_that_is_still_pending_for_the_same_reason_leaves_the_report_as_it_was(context):
    pending = {"trn01": "a job holds the node", "trn02": "a job holds the node"}
    first = written(judged(context, pending=pending))
    assert first["verdict"] == "pending"
    assert written(judged(context, pending=pending), "2026-01-02T00:00:00Z", first) == first


def test_the_table_shows_every_figure_and_says_which_host_failed_and_why(context):
    lines = table(written(judged(context, {"trn02": {"steal": 0.5}})))
    text = "\n".join(lines)
    assert lines[-1] == "verdict: fail"
    assert "trn02: cpu-steal failed: 50.00 % of the CPU time" in text
    assert "trn01 trn02" in text
    assert "all" in text
    assert "p99_us" in text
