"""The node document and its reader."""

import json
from pathlib import Path

import pytest
from rackweave.errors import DocumentError
from rackweave.hardware.document import as_json, read_document

from tests.support.documents import reference

EXAMPLE = Path(__file__).parents[3] / "fixtures/contracts/node.json"


@pytest.fixture
def values():
    return json.loads(EXAMPLE.read_text())


def test_the_committed_example_survives_a_round_trip(values):
    document = read_document(values)

    assert document.as_dict() == values
    assert as_json(document.as_dict()) == EXAMPLE.read_text()


def test_another_schema_is_refused(values):
    values["schema"] = "rackweave.node/2"

    with pytest.raises(DocumentError, match=r"rackweave\.node/2.*rackweave\.node/1"):
        read_document(values)


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (lambda values: values, "gpu01"),
        (lambda values: values["nics"][1]["ports"][0], r"nics\[1\]: ports\[0\]"),
        (lambda values: values["nics"][0]["roce"], r"nics\[0\]: roce"),
        (lambda values: values["memory"], "memory"),
    ],
)
def test_an_unknown_key_is_refused_where_it_stands(values, place, name):
    place(values)["colour"] = "blue"

    with pytest.raises(DocumentError, match=rf"{name}.*unknown key\(s\) colour"):
        read_document(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.pop("host"), "host is missing"),
        (lambda values: values.update(host="../etc/passwd"), "host="),
        (lambda values: values.update(origin="guessed"), "origin='guessed' must be one of"),
        (lambda values: values["gpus"][0].update(bdf="1b:00.0"), "with its domain"),
        (lambda values: values["gpus"][0].update(index="0"), "index='0' must be a whole number"),
        (lambda values: values["gpus"][0].update(memory_bytes=True), "memory_bytes=True"),
        (lambda values: values["gpus"][1].update(index=0), "gpus\\[\\].index has 0 more than once"),
        (lambda values: values["nics"][1].update(device="mlx5_0"), "mlx5_0 more than once"),
        (lambda values: values["nics"][0]["roce"].update(dscp_to_priority=[0] * 8), "list of 64"),
        (lambda values: values["nics"][0]["roce"].update(pfc_priorities=[8]), "from 0 to 7"),
        (lambda values: values.update(nics={"mlx5_0": {}}), "list of objects"),
        (lambda values: values["slurm"].pop("cpus"), "cpus is missing"),
    ],
)
def test_a_wrong_value_is_one_sentence_with_its_place(values, change, message):
    change(values)

    with pytest.raises(DocumentError, match=message):
        read_document(values)


@pytest.mark.parametrize("junk", [None, [], "text", 3, {}])
def test_anything_but_a_node_document_is_refused(junk):
    with pytest.raises(DocumentError):
        read_document(junk)


def test_an_absent_value_reads_as_unknown(values):
    del values["gpudirect"]
    del values["nics"][0]["firmware"]

    document = read_document(values)

    assert document.gpudirect.peermem is None
    assert document.nics[0].firmware is None


def test_an_accepted_document_keeps_no_volatile_field(values):
    values["collection"]["warnings"] = ["a tool was missing"]

    accepted = read_document(values).without_volatile().as_dict()

    ports = [port for nic in accepted["nics"] for port in nic["ports"]]
    assert accepted["identity"]["boot_id"] is None
    assert accepted["collection"]["warnings"] == []
    assert not any({"state", "physical_state"} & set(row) for row in [*ports, *accepted["interfaces"]])
    assert ports[0]["gids"] == values["nics"][0]["ports"][0]["gids"]


def first_port(values):
    return values["nics"][0]["ports"][0]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda it: first_port(it)["gids"][1].update(index=10**9), "index=1000000000 must be a row from 0"),
        (lambda it: first_port(it)["gids"][1].update(index=-1), "index=-1 must be a row from 0"),
        (lambda it: first_port(it)["gids"][1].update(index=0), "one index more than once"),
        (lambda it: first_port(it)["gids"][1].update(gid="zz"), "gid='zz' must be a GID"),
        (lambda it: first_port(it).update(port=0), "port=0 must be a number from 1"),
        (lambda it: it["nics"][0]["ports"].append(first_port(it)), "more than once"),
        (lambda it: first_port(it).update(rate_gbps=float("nan")), "rate_gbps=nan must be a rate"),
        (lambda it: first_port(it).update(rate_gbps=-1), "rate_gbps=-1 must be a rate"),
        (lambda it: it["nics"][0].update(device="mlx5_0,mlx5_9"), "must be a device name"),
        (lambda it: it["nics"][0].update(device=""), "must be a device name"),
        (lambda it: it["interfaces"][0].update(addresses=["300.1.1.1/24"]), "must be a list of addresses"),
    ],
)
def test_a_value_that_no_machine_has_is_refused_when_it_is_read(damage, message):
    values = json.loads(json.dumps(reference().as_dict()))
    damage(values)

    with pytest.raises(DocumentError, match=message):
        read_document(values)
