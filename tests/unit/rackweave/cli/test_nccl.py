"""The command ``rackweave nccl``: offline, exit status by verdict, one sentence for bad input."""

import json

import pytest
from rackweave.cli import main
from rackweave.hardware.document import as_json

from tests.support.documents import EXAMPLES, ROCE, fleet, with_port
from tests.support.layouts import l06_roce_bonds
from tests.support.machines import build


@pytest.fixture
def fabric_file(tmp_path):
    path = tmp_path / "fabric.json"
    path.write_text(json.dumps(ROCE))
    return str(path)


@pytest.fixture
def run(capsys):
    def command(*words):
        status = main(["nccl", *words])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return command


def nodes(tmp_path, documents):
    directory = tmp_path / "nodes"
    directory.mkdir()
    for document in documents:
        (directory / f"{document.host}.json").write_text(as_json(document.as_dict()))
    return str(directory)


def test_the_reference_deployment_has_environments_gids_and_no_finding(run, fabric_file):
    status, out, _ = run("--nodes", str(EXAMPLES / "prod-4hca"), "--fabric", fabric_file, "--json")

    report = json.loads(out)
    assert status == 0
    assert report["schema"] == "rackweave.nccl/1"
    assert report["hosts"]["trn02"]["environment"]["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1"
    assert [row["index"] for row in report["hosts"]["trn02"]["gids"]] == [3, 3, 3, 3]
    assert report["fleet"]["findings"] == []
    assert report["expectations"]["pfc"] == "0,0,0,1,0,0,0,0"


def test_the_text_form_gives_a_reason_for_each_value(run, fabric_file):
    _, out, _ = run("--nodes", str(EXAMPLES / "prod-8hca"), "--fabric", fabric_file)

    assert "NCCL_IB_TC=106\n      DSCP 26 and ECN on" in out
    assert "(NCCL_IB_GID_INDEX is not set: NCCL 2.22.3 searches the table itself" in out
    assert "Fleet of 4: nothing blocks a launch" in out


def test_a_blocking_difference_ends_with_status_1_and_names_the_node(run, fabric_file, tmp_path):
    documents = fleet(3)
    documents[2] = with_port(documents[2], "mlx5_4", rate_gbps=200.0)
    status, out, _ = run("--nodes", nodes(tmp_path, documents), "--fabric", fabric_file, "--json")

    fleet_report = json.loads(out)["fleet"]
    assert status == 1
    assert fleet_report["blocked_hosts"] == ["hgx-03"]


def test_a_waiver_file_is_judged_on_the_day_given(run, fabric_file, tmp_path):
    documents = fleet(3)
    documents[2] = with_port(documents[2], "mlx5_4", rate_gbps=200.0)
    directory = nodes(tmp_path, documents)
    waivers = tmp_path / "waivers.json"
    row = {"kind": "compute-nic-rate", "host": "hgx-03", "by": "A. Operator", "until": "2027-01-31", "reason": "cable"}
    waivers.write_text(json.dumps([row]))
    words = ("--nodes", directory, "--fabric", fabric_file, "--waivers", str(waivers), "--today")

    assert run(*words, "2027-01-31")[0] == 0
    assert run(*words, "2027-02-01")[0] == 1


def test_files_are_written_for_each_host(run, fabric_file, tmp_path):
    run("--nodes", str(EXAMPLES / "prod-4hca"), "--fabric", fabric_file, "--output", str(tmp_path / "out"))

    assert "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1\n" in (tmp_path / "out/trn04.conf").read_text()


def test_differences_from_accepted_documents_are_told(run, fabric_file, tmp_path):
    accepted = tmp_path / "accepted"
    accepted.mkdir()
    values = json.loads((EXAMPLES / "prod-8hca/trn01.json").read_text())
    values["gpus"].pop()
    (accepted / "trn01.json").write_text(json.dumps(values))
    words = ("--nodes", str(EXAMPLES / "prod-8hca"), "--fabric", fabric_file, "--accepted", str(accepted), "--json")

    differences = json.loads(run(*words)[1])["differences"]

    assert "GPU 7" in differences["trn01"]["changes"][0]["message"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "--nodes DIR and --fabric FILE.json are needed"),
        (("--nodes", "/nowhere", "--fabric", "FABRIC"), "/nowhere has no node document"),
        (("--nodes", "NODES", "--fabric", "/nowhere.json"), "/nowhere.json: No such file or directory"),
        (("--nodes", "NODES", "--fabric", "FABRIC", "--today", "soon"), "--today soon"),
        (("--nodes", "NODES", "--fabric", "FABRIC", "--nccl-version", "latest"), "nccl_version='latest'"),
        (("--inside", "/nowhere.conf"), "/nowhere.conf: No such file"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(run, fabric_file, words, sentence):
    places = {"NODES": str(EXAMPLES / "prod-8hca"), "FABRIC": fabric_file}
    status, _, err = run(*(places.get(word, word) for word in words))

    assert status == 2
    assert err.startswith("rackweave nccl: ")
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b'{"schema": "rackweave.node/9"}', b"[" * 200_000]
)
def test_a_damaged_document_is_one_sentence_and_status_2(run, fabric_file, tmp_path, damage):
    directory = tmp_path / "nodes"
    directory.mkdir()
    (directory / "trn01.json").write_bytes(damage)

    status, _, err = run("--nodes", str(directory), "--fabric", fabric_file)

    assert status == 2
    assert err.count("\n") == 1
    assert "trn01.json" in err


def matrix(**changed):
    """Return the output of ``nvidia-smi topo -m`` for a reference node whose NICs are all two switches away."""
    gpus = [f"GPU{index}" for index in range(8)]
    nics = [f"NIC{index}" for index in range(8)]

    def cell(row, column):
        if row == column:
            return " X "
        if row in gpus and column in gpus:
            return "NV18"
        same_side = (int(row[3:]) < 4) == (int(column[3:]) < 4)
        far = "NODE" if same_side else "SYS"
        near = row[3:] == column[3:] and row[:3] != column[:3]
        return changed.get(f"{row}_{column}", changed.get(f"{column}_{row}", "PXB" if near else far))

    lines = ["\t".join(["", *gpus, *nics, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for row in (*gpus, *nics):
        affinity = ["0-55", "0", "", "N/A"] if row in gpus else ["", "", "", ""]
        lines.append("\t".join([row, *(cell(row, column) for column in (*gpus, *nics)), *affinity]))
    legend = [f"  NIC{index}: mlx5_{index}" for index in range(8)]
    return "\n".join([*lines, "", "Legend:", "", "NIC Legend:", "", *legend, ""])


@pytest.mark.parametrize(
    ("changed", "messages"),
    [({}, []), ({"GPU3_NIC3": "PHB"}, ["GPU 3 to mlx5_3: PXB by the paths in sysfs, PHB in the matrix"])],
)
def test_distances_are_compared_with_the_matrix_of_the_machine(run, fabric_file, tmp_path, changed, messages):
    path = tmp_path / "topo.txt"
    path.write_text(matrix(**changed))
    words = ("--nodes", str(EXAMPLES / "prod-8hca"), "--fabric", fabric_file, "--matrix", f"trn01={path}", "--json")

    findings = json.loads(run(*words)[1])["fleet"]["findings"]

    assert [finding["message"] for finding in findings] == messages


def test_a_machine_is_collected_from_a_tree(run, tmp_path):
    tree = build(l06_roce_bonds().machine, tmp_path / "tree")
    status, out, _ = run("--collect", "gx01", "--root", str(tree))

    assert status == 0
    assert json.loads(out)["host"] == "gx01"
    assert len(json.loads(out)["nics"]) == 8
