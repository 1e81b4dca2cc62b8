"""The shorter file form of documents of machines with many devices."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rackweave.cli.system import LocalSystem
from rackweave.errors import DocumentError
from rackweave.hardware.collect import collect_node
from rackweave.hardware.compact import LIMIT_BYTES, compacted, document_text
from rackweave.hardware.document import read_document
from rackweave.hardware.node import Gid, Gpu, Interface, Nic, NodeDocument, Port

from tests.support.documents import reference
from tests.support.layouts import LAYOUTS
from tests.support.machines import build


@pytest.fixture(scope="module", params=LAYOUTS)
def collected(request, tmp_path_factory):
    root = build(LAYOUTS[request.param]().machine, tmp_path_factory.mktemp(request.param))
    return collect_node(LocalSystem([str(root)]), "gx01", "measured", "3.9.18", None)


def filled(document):
    """Return the document with everything that a real machine has and a synthesised tree lacks."""
    gpus = tuple(
        replace(gpu, serial=f"165402203{gpu.index:04d}", slot=str(gpu.index), memory_bytes=85520809984, nvlink_links=18)
        for gpu in document.gpus
    )
    nics = []
    for number, nic in enumerate(document.nics):
        slaac = [Gid(len(nic.ports[0].gids) + row, f"2001:db8:40:{number:x}:a288:c2ff:feab:cd{number:02x}",
                     kind) for row, kind in enumerate(("IB/RoCE v1", "RoCE v2"))]  # fmt: skip
        ports = tuple(replace(port, gids=(*port.gids, *slaac)) for port in nic.ports)
        real = nic.virtual_function is not True
        nics.append(replace(nic, serial=f"MT2345X{number:05d}", slot=str(number), ports=ports) if real else nic)
    return replace(document, gpus=gpus, nics=tuple(nics))


def test_the_file_of_every_layout_is_under_the_limit_and_says_the_same(collected):
    for document in (collected, filled(collected), collected.without_volatile()):
        text = document_text(document)

        assert len(text.encode()) < LIMIT_BYTES
        assert read_document(json.loads(text)) == document


def test_the_file_of_an_ordinary_node_has_the_plain_form():
    values = json.loads(document_text(reference()))

    assert "common" not in values
    assert values["nics"][0]["ports"][0]["gids"][0]["index"] == 0


def short(document):
    return json.loads(json.dumps(compacted(document.as_dict())))


TEXTS = st.none() | st.sampled_from(["a", "b", ""])
GIDS = st.lists(
    st.builds(Gid, st.integers(0, 9), st.sampled_from(["fe80::1", "::"]), TEXTS, TEXTS),
    max_size=3,
    unique_by=lambda it: it.index,
)
PORTS = st.builds(Port, st.integers(1, 2), state=TEXTS, mtu=st.none() | st.integers(0, 1), gids=GIDS.map(tuple))
PATHS = st.sampled_from([(), ("pci0008:00", "0008:00:00.0", "0008:01:00.0"), ("pci0000:10", "10000:e1:00.0")])


@given(data=st.data())
def test_the_shorter_form_loses_nothing(data):
    nics = data.draw(
        st.lists(
            st.builds(
                Nic,
                st.integers(0, 99).map(str),
                firmware=TEXTS,
                virtual_function=st.none() | st.booleans(),
                max_read_request=st.none() | st.integers(0, 1),
                pcie_path=PATHS,
                ports=st.lists(PORTS, max_size=2, unique_by=lambda it: it.port).map(tuple),
            ),
            max_size=5,
            unique_by=lambda nic: nic.device,
        )
    )
    names = data.draw(st.lists(TEXTS, max_size=4))
    gpus = tuple(Gpu(index, name=name) for index, name in enumerate(names))
    interfaces = (Interface("eth0", default_route=True), Interface("eth1", addresses=("192.0.2.1/24",)))
    document = NodeDocument("gx01", "measured", gpus=gpus, nics=tuple(nics), interfaces=interfaces)

    assert read_document(short(document)) == document


def test_a_part_that_states_null_is_unknown_and_not_the_common_value():
    document = reference()
    document = replace(document, nics=(replace(document.nics[0], firmware=None), *document.nics[1:]))

    values = short(document)

    assert values["common"]["nics"]["firmware"] == document.nics[1].firmware
    assert values["nics"][0]["firmware"] is None
    assert read_document(values).nics[0].firmware is None


@pytest.mark.parametrize(
    ("common", "words"),
    [
        ([], "must be an object of objects"),
        ({"gpus": 1}, "must be an object of objects"),
        ({"cpu": {}}, "unknown key"),
        ({"nics": {"colour": "red"}}, "unknown key"),
        ({"nics": {"firmware": 28}}, "must be text"),
        ({"ports": {"gids": ["3 ::ffff:192.0.2.1"]}}, "GID row"),
        ({"ports": {"gids": ["x ::1 RoCE v2"]}}, "GID row"),
        ({"nics": {"ports": 7}}, "must be a list"),
    ],
)
def test_a_wrong_common_part_is_refused_in_one_sentence(common, words):
    nics = [{"device": "mlx5_0", "ports": [{"port": 1}]}, {"device": "mlx5_1"}]
    values = {"schema": "rackweave.node/1", "host": "gx01", "origin": "measured", "nics": nics, "common": common}

    with pytest.raises(DocumentError, match=words):
        read_document(values)


@pytest.mark.parametrize(
    "nics", [7, ["mlx5_0"], [{"device": "mlx5_0", "ports": ["one"]}], [{"device": "a", "gids": 1}]]
)
def test_wrong_parts_beside_a_common_one_are_refused(nics):
    values = {"schema": "rackweave.node/1", "host": "gx01", "origin": "measured", "nics": nics, "common": {"nics": {}}}

    with pytest.raises(DocumentError):
        read_document(values)
