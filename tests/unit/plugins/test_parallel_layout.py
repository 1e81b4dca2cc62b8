"""The action `rackweave.cluster.parallel_layout`: arguments in, plan.json out, refusals as a failed result."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from rackweave.fabric.hca_list import parse_hca_list
from rackweave.run.plan_file import parse_plan

from tests.support.documents import EXAMPLES, ROCE, fleet

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


def test_stored_calibration_is_applied_and_a_broken_file_is_one_sentence(run_action, tmp_path):
    sizes = {"tensor_parallel_size": 8, "pipeline_parallel_size": 2}
    plain = layout(run_action, **sizes)["layout"]["prediction"]
    file = tmp_path / "calibration.json"
    factors = {"step_factors": {plain["cluster_key"]: 1.5}, "memory_factors": {}}
    file.write_text(json.dumps({"schema": "rackweave.calibration/1", **factors}))
    found = layout(run_action, **sizes, calibration=str(file))["layout"]["prediction"]
    assert found["step_time_s"] == pytest.approx(1.5 * plain["step_time_s"], rel=1e-3)
    assert "No such file" in layout(run_action, **sizes, calibration=str(tmp_path / "none"))["msg"]
    file.write_text("{")
    assert "is not JSON" in layout(run_action, **sizes, calibration=str(file))["msg"]


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


def first_hca(nodes, bdf):
    return next(f"{nic.device}:{nic.ports[0].port}" for nic in nodes[0].nics if nic.bdf == bdf)


def overridden(nodes):
    """Two compute NICs, in another order than the evidence would give."""
    bdfs = [nic.bdf for nic in nodes[0].nics if any((port.rate_gbps or 0) >= 400 for port in nic.ports)]
    return [bdfs[5], bdfs[1]]


@pytest.mark.parametrize("how", ["nothing", "nics", "host", "variable"])
def test_the_nic_of_each_rank_is_one_that_its_nccl_environment_names(run_action, how):
    nodes = fleet(2)
    fabric = {key: value for key, value in ROCE.items() if key != "rail_subnets"}
    use = overridden(nodes)
    if how == "nics":
        fabric["nics"] = {"use": use}
    elif how == "host":
        fabric["hosts"] = {"hgx-02": {"nics": {"use": use}}}
    elif how == "variable":
        fabric["variables"] = {"NCCL_IB_HCA": "=" + ",".join(first_hca(nodes, bdf) for bdf in use)}
    documents = {node.host: node.as_dict() for node in nodes}
    environments = run_action(
        "nccl_environment", documents=documents, fabric=fabric, nccl_version="2.22.3", fail_on_block=False
    )["environments"]
    rows = planned(run_action, nodes, fabric)
    for host, variables in environments.items():
        listed = [f"{entry.name}:{entry.port}" for entry in parse_hca_list(variables["NCCL_IB_HCA"]).entries]
        used = [row["hca"] for row in rows if row["host"] == host]
        assert set(used) == set(listed)
        if how in ("nics", "variable"):
            assert len(listed) == 2


def planned(run_action, nodes, fabric):
    with TemporaryDirectory() as directory:
        files = {}
        for node in nodes:
            files[node.host] = str(Path(directory) / f"{node.host}.json")
            Path(files[node.host]).write_text(json.dumps(node.as_dict()))
        hosts = [node.host for node in nodes]
        result = run_action(
            "parallel_layout", model="llama3-8b", document_files=files, hosts=hosts, fabric=fabric,
            tensor_parallel_size=8,
        )  # fmt: skip
    assert not result.get("failed"), result["msg"]
    return result["layout"]["ranks"]


def test_a_wrong_override_is_one_sentence_of_the_layout(run_action):
    files = {"trn01": str(EXAMPLES / "prod-8hca/trn01.json")}
    fabric = {**ROCE, "nics": {"use": ["0000:ff:00.0"]}}
    result = run_action("parallel_layout", model="llama3-8b", document_files=files, hosts=["trn01"], fabric=fabric)
    assert result["failed"]
    assert "0000:ff:00.0" in result["msg"]


def test_a_declared_host_stands_beside_hosts_with_documents(run_action):
    files = {host: str(EXAMPLES / f"prod-8hca/{host}.json") for host in ("trn01", "trn02")}
    result = layout(run_action, model="llama3-8b", document_files=files, hosts=["trn02", "new9", "trn01"])
    assert not result.get("failed"), result.get("msg")
    plan = result["layout"]
    assert plan["origin"] == "declared"
    assert plan["cluster"]["source"] == "documents; declared: new9"
    assert [plan["ranks"][rank]["host"] for rank in (0, 8, 16)] == ["trn02", "new9", "trn01"]
    assert plan["ranks"][8]["gpu_bdf"] is None
    assert plan["ranks"][0]["gpu_bdf"]


def test_a_declared_host_of_another_kind_is_refused(run_action):
    files = {"trn01": str(EXAMPLES / "prod-8hca/trn01.json")}
    other = {"gpu": "A100-80GB", "gpus_per_host": 8}
    result = layout(run_action, document_files=files, hosts=["trn01", "new9"], hardware_class=other)
    assert result["failed"]
    assert "declared as A100" in result["msg"]
