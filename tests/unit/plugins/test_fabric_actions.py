"""The actions nccl_environment, fleet_gate and hardware_accept: files, check mode, second runs, absent hosts."""

import json
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rackweave.hardware.document import as_json

from tests.support.documents import EXAMPLES, ROCE, fleet, reference, with_port

LAB = {"kind": "ethernet"}


def write(directory, documents):
    directory.mkdir(parents=True, exist_ok=True)
    for document in documents:
        (directory / f"{document.host}.json").write_text(as_json(document.as_dict()))
    return str(directory)


@pytest.fixture
def observed(tmp_path):
    return write(tmp_path / "observed", fleet(3))


def environment(run_action, directory, **changes):
    arguments = {"documents_dir": directory, "fabric": ROCE, "nccl_version": "2.22.3", **changes}
    return run_action("nccl_environment", **arguments)


def test_files_of_all_hosts_are_written_in_one_call_and_once(run_action, observed, tmp_path):
    dest = tmp_path / "nccl"
    first = environment(run_action, observed, dest=str(dest))
    second = environment(run_action, observed, dest=str(dest))

    assert (first["changed"], second["changed"]) == (True, False)
    assert sorted(path.name for path in dest.iterdir()) == sorted(
        f"hgx-0{number}.{suffix}" for number in (1, 2, 3) for suffix in ("conf", "reasons.json")
    )
    assert first["environments"]["hgx-02"]["NCCL_IB_TC"] == "106"
    assert json.loads((dest / "hgx-01.reasons.json").read_text())["schema"] == "rackweave.nccl-reasons/1"


def test_check_mode_names_the_files_and_writes_none(run_action, observed, tmp_path):
    result = environment(run_action, observed, dest=str(tmp_path / "nccl"), check_mode=True)

    assert result["changed"]
    assert "hgx-01.conf" in result["files_changed"]
    assert not (tmp_path / "nccl").exists()


def test_documents_may_be_given_instead_of_a_directory(run_action):
    documents = [document.as_dict() for document in fleet(2)]
    result = run_action("nccl_environment", documents=documents, fabric=ROCE, nccl_version="2.22.3")

    assert set(result["environments"]) == {"hgx-01", "hgx-02"}


def test_only_the_named_hosts_are_rendered(run_action, observed):
    assert set(environment(run_action, observed, hosts=["hgx-02"])["environments"]) == {"hgx-02"}


def test_a_host_without_a_document_is_named_and_nothing_is_rendered(run_action, observed, tmp_path):
    result = environment(run_action, observed, hosts=["hgx-02", "hgx-09"], dest=str(tmp_path / "nccl"))

    assert result["failed"]
    assert "hgx-09" in result["msg"]
    assert not (tmp_path / "nccl").exists()


def test_bad_input_is_one_sentence(run_action, observed):
    result = environment(run_action, observed, fabric={**ROCE, "lossless_priority": 5})

    assert result["failed"]
    assert "lossless_priority=5" in result["msg"]


def test_a_blocking_finding_fails_the_task_unless_asked_not_to(run_action, tmp_path):
    broken = with_port(fleet(1)[0], "mlx5_2", gids=())
    directory = write(tmp_path / "documents", [broken])

    failed = environment(run_action, directory)
    told = environment(run_action, directory, fail_on_block=False)

    assert failed["failed"]
    assert "hgx-01: gid" in failed["msg"] or "compute-nic" in failed["msg"]
    assert not told.get("failed")
    assert told["findings"]


def test_the_lab_needs_no_nccl_version(run_action):
    document = {
        "schema": "rackweave.node/1",
        "host": "gpu01",
        "origin": "simulated",
        "interfaces": [{"name": "eth0", "addresses": ["10.89.77.21/24"], "default_route": True}],
    }
    result = run_action("nccl_environment", documents=[document], fabric=LAB, profile="lab")

    assert result["environments"]["gpu01"]["GLOO_SOCKET_IFNAME"] == "eth0"


@pytest.mark.parametrize("name", ["prod-8hca", "prod-4hca"])
def test_the_examples_of_the_reference_deployment_render_without_any_node(run_action, name):
    result = environment(run_action, str(EXAMPLES / name), image=True)

    assert set(result["environments"]) == {"trn01", "trn02", "trn03", "trn04"}
    assert result["findings"] == []


def gate(run_action, observed, **changes):
    hosts = ["hgx-01", "hgx-02", "hgx-03"]
    arguments = {"observed_dir": observed, "hosts": hosts, "fabric": ROCE, "nccl_version": "2.22.3", **changes}
    return run_action("fleet_gate", **arguments)


def test_equal_hosts_pass_and_the_verdict_is_written_once(run_action, observed, tmp_path):
    dest = tmp_path / "state/verify.json"
    first, second = (gate(run_action, observed, dest=str(dest)) for _ in range(2))

    assert (first["changed"], second["changed"]) == (True, False)
    verdict = json.loads(dest.read_text())
    assert verdict["schema"] == "rackweave.verify/1"
    assert verdict["blocked"] is False
    assert verdict["without_baseline"] == ["hgx-01", "hgx-02", "hgx-03"]


def test_the_odd_host_fails_the_task_and_the_verdict_is_written_all_the_same(run_action, tmp_path):
    nodes = fleet(3)
    nodes[1] = with_port(nodes[1], "mlx5_5", rate_gbps=200.0)
    dest = tmp_path / "verify.json"
    result = gate(run_action, write(tmp_path / "observed", nodes), dest=str(dest))

    assert result["failed"]
    assert "hgx-02: compute-nic-rate" in result["msg"]
    assert json.loads(dest.read_text())["blocked_hosts"] == ["hgx-02"]


def test_a_waived_finding_passes(run_action, tmp_path):
    nodes = fleet(3)
    nodes[1] = with_port(nodes[1], "mlx5_5", rate_gbps=200.0)
    waiver = {
        "kind": "compute-nic-rate",
        "host": "hgx-02",
        "by": "A. Operator",
        "until": "2999-01-01",
        "reason": "cable",
    }
    result = gate(run_action, write(tmp_path / "observed", nodes), waivers=[waiver])

    assert not result.get("failed")
    assert result["waived"][0]["by"] == "A. Operator"


def test_a_host_that_is_not_reachable_counts_with_its_accepted_document(run_action, observed, tmp_path):
    accepted = write(tmp_path / "accepted", [node.without_volatile() for node in fleet(3)])
    Path(observed, "hgx-02.json").unlink()

    result = gate(run_action, observed, accepted_dir=accepted)

    assert not result.get("failed")
    assert result["hosts"] == ["hgx-01", "hgx-02", "hgx-03"]


def test_a_host_of_which_nothing_is_known_is_named(run_action, observed):
    Path(observed, "hgx-02.json").unlink()

    result = gate(run_action, observed)

    assert result["failed"]
    assert "no node document of hgx-02" in result["msg"]


def test_a_difference_from_the_accepted_document_is_told_in_words(run_action, observed, tmp_path):
    accepted = fleet(3)
    accepted[0] = replace(accepted[0], identity=replace(accepted[0].identity, board_serial="OLD"))
    result = gate(run_action, observed, accepted_dir=write(tmp_path / "accepted", accepted))

    assert not result["blocked"]
    (change,) = result["differences"]["hgx-01"]["changes"]
    assert change["message"] == "board serial was OLD, is EXAMPLE-B1"


def test_examples_plan_but_never_launch(run_action, tmp_path):
    shutil.copytree(EXAMPLES / "prod-8hca", tmp_path / "observed")
    result = gate(run_action, str(tmp_path / "observed"), hosts=["trn01", "trn02", "trn03", "trn04"])

    assert result["blocked_hosts"] == ["trn01", "trn02", "trn03", "trn04"]
    assert "example" in result["findings"][0]["message"]


def accept(run_action, observed, accepted, hosts, **changes):
    return run_action("hardware_accept", observed_dir=observed, accepted_dir=str(accepted), hosts=hosts, **changes)


def test_accepting_writes_the_named_hosts_only_and_once(run_action, observed, tmp_path):
    accepted = tmp_path / "accepted"
    first = accept(run_action, observed, accepted, ["hgx-02"])
    second = accept(run_action, observed, accepted, ["hgx-02"])

    assert (first["changed"], second["changed"]) == (True, False)
    assert [path.name for path in accepted.iterdir()] == ["hgx-02.json"]
    assert first["acceptances"][0]["first"]
    assert "boot_id" in json.loads((accepted / "hgx-02.json").read_text())["identity"]


def test_accepting_in_check_mode_writes_nothing(run_action, observed, tmp_path):
    result = accept(run_action, observed, tmp_path / "accepted", ["hgx-02"], check_mode=True)

    assert result["changed"]
    assert not (tmp_path / "accepted").exists()


def test_accepting_tells_what_changed(run_action, observed, tmp_path):
    before = [replace(reference(), host="hgx-02", gpus=reference().gpus[:7])]
    result = accept(run_action, observed, write(tmp_path / "accepted", before), ["hgx-02"])

    assert "GPU 7" in result["acceptances"][0]["changes"][0]["message"]
    assert result["acceptances"][0]["consequences"]


def test_a_host_that_was_not_observed_cannot_be_accepted(run_action, observed, tmp_path):
    result = accept(run_action, observed, tmp_path / "accepted", ["hgx-02", "hgx-07"])

    assert result["failed"]
    assert "hgx-07: not observed" in result["msg"]
    assert not (tmp_path / "accepted").exists()


@pytest.mark.benchmark
def test_benchmark_of_200_and_800_hosts(run_action, tmp_path, capsys, pytestconfig):
    if "benchmark" not in pytestconfig.option.markexpr:
        pytest.skip("figures on request: pytest -m benchmark")
    seconds = {}
    for count in (1, 200, 800):
        documents = [replace(reference(), host=f"n{number:04d}") for number in range(count)]
        directory = write(tmp_path / str(count), documents)
        times = []
        for attempt in range(5):
            start = time.process_time()
            result = environment(run_action, directory, dest=str(tmp_path / f"{count}-{attempt}"))
            times.append(time.process_time() - start)
            assert len(result["files_changed"]) == 2 * count
        seconds[count] = min(times)
    ratio = (seconds[800] - seconds[1]) / (seconds[200] - seconds[1])
    with capsys.disabled():
        shown = ", ".join(f"{n}: {s:.2f}" for n, s in seconds.items())
        sys.stdout.write(f"\nnccl_environment, processor seconds by hosts (minimum of 5): {shown}\n")
        sys.stdout.write(f"ratio of 800 to 200 hosts, start-up subtracted: {ratio:.2f}\n")
    assert ratio <= 4.4
