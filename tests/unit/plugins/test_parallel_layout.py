"""The action `rackweave.cluster.parallel_layout`: arguments in, plan.json out, refusals as a failed result."""

import json

import pytest
from rackweave.run.plan_file import parse_plan

CLASS = {"gpu": "H100", "gpus_per_host": 8}
HOSTS = ["gpu03", "gpu01", "gpu02", "gpu04"]


def layout(run_action, **arguments):
    given = {"model": "llama3-70b", "hosts": HOSTS, "hardware_class": CLASS, **arguments}
    return run_action("parallel_layout", **given)


def test_the_reference_sizes_come_out_with_a_table_of_ranks(run_action):
    result = layout(run_action, tensor_parallel_size=8, pipeline_parallel_size=2, run="demo")
    assert not result.get("failed")
    assert result["changed"] is False
    plan = parse_plan(json.dumps(result["layout"]))
    assert plan.parallel.data_parallel_size == 2
    assert plan.run == "demo"
    assert plan.hosts == tuple(HOSTS)
    assert result["layout"]["origin"] == "declared"


def test_a_layout_that_breaks_a_rule_fails_with_its_sentence(run_action):
    result = layout(run_action, tensor_parallel_size=8, pipeline_parallel_size=3)
    assert result["failed"] is True
    assert "24 does not divide the 32 GPUs" in result["msg"]


def test_a_model_that_does_not_fit_fails_and_still_shows_the_layout(run_action):
    result = layout(run_action, model="gpt3-175b")
    assert result["failed"] is True
    assert "does not fit" in result["msg"]
    assert result["layout"]["fits"] is False


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "unheard-of"}, "unknown model"),
        ({"model": {"num_layers": 0}}, "num_layers"),
        ({"hardware_class": {"gpu": "H100", "gpus_per_host": 8, "wings": 2}}, "unknown keys wings"),
        ({"hardware_class": {"gpu": "Potato", "gpus_per_host": 8}}, "unknown GPU"),
        ({"hosts": ["a", "a"]}, "appear twice"),
        ({"tensor_parallel_size": -1}, "tensor_parallel_size=-1"),
    ],
)
def test_bad_arguments_fail_with_one_sentence(run_action, changes, words):
    result = layout(run_action, **changes)
    assert result["failed"] is True
    assert words in result["msg"]


def test_a_model_is_read_from_a_json_file(run_action, tmp_path):
    path = tmp_path / "model.json"
    path.write_text(json.dumps({"num_layers": 8, "hidden_size": 1024, "num_attention_heads": 8, "vocab_size": 32000}))
    assert layout(run_action, model=str(path))["layout"]["model"]["num_layers"] == 8


def test_documents_decide_and_their_hosts_keep_the_given_order(run_action, tmp_path):
    for host in ("n1", "n2"):
        gpus = [
            {"index": index, "name": "NVIDIA H100 80GB HBM3", "bdf": f"0000:{index + 16:02x}:00.0"}
            for index in range(8)
        ]
        document = {"schema": "rackweave.node/1", "host": host, "origin": "example", "gpus": gpus}
        (tmp_path / f"{host}.json").write_text(json.dumps(document))
    result = layout(run_action, model="llama3-8b", documents_dir=str(tmp_path), hosts=["n2", "n1"])
    assert not result.get("failed"), result.get("msg")
    rows = result["layout"]["ranks"]
    assert [rows[0]["host"], rows[8]["host"]] == ["n2", "n1"]
    assert rows[3]["gpu_bdf"] == "0000:13:00.0"
    assert result["layout"]["origin"] == "example"


def test_a_host_without_a_document_is_named(run_action, tmp_path):
    document = {"schema": "rackweave.node/1", "host": "n1", "origin": "example", "gpus": [{"index": 0, "name": "H100"}]}
    (tmp_path / "n1.json").write_text(json.dumps(document))
    result = layout(run_action, documents_dir=str(tmp_path), hosts=["n1", "n9"])
    assert result["failed"] is True
    assert "n9" in result["msg"]
