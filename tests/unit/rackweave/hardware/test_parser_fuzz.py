"""Every parser against damaged text: the right values, or one sentence; never a traceback or a wrong value."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rackweave.errors import ParseError
from rackweave.hardware import kernel
from rackweave.hardware.config_space import read_config_space
from rackweave.hardware.nvidia_smi import parse_nvidia_smi_xml
from rackweave.hardware.rdma_tools import (
    parse_ibdev2netdev,
    parse_ibv_devinfo,
    parse_rdma_link,
    parse_rdma_link_json,
    parse_show_gids,
)
from rackweave.hardware.tools import (
    parse_ip_addresses,
    parse_ip_default_routes,
    parse_lspci_acs,
    parse_mlnx_qos,
    parse_slurmd_c,
)
from rackweave.hardware.topo_matrix import parse_topo_matrix
from rackweave.hardware.vpd import serial_number

TOOLS = Path(__file__).parents[3] / "fixtures/nodes/tools"
CASES = {
    "topo_modern.txt": parse_topo_matrix,
    "topo_old.txt": parse_topo_matrix,
    "topo_without_nic.txt": parse_topo_matrix,
    "rdma_link.json": parse_rdma_link_json,
    "rdma_link.txt": parse_rdma_link,
    "ibv_devinfo.txt": parse_ibv_devinfo,
    "ibdev2netdev.txt": parse_ibdev2netdev,
    "ibdev2netdev_v.txt": parse_ibdev2netdev,
    "show_gids.txt": parse_show_gids,
    "slurmd_c.txt": parse_slurmd_c,
    "mlnx_qos.txt": parse_mlnx_qos,
    "lspci_acs.txt": parse_lspci_acs,
    "nvidia_smi.xml": parse_nvidia_smi_xml,
    "ip_address.json": parse_ip_addresses,
}
# These list independent rows, so a cut between two rows leaves a shorter list that looks whole: no end mark exists.
ROWS_WITHOUT_END = {"rdma_link.txt", "ibv_devinfo.txt", "ibdev2netdev.txt", "ibdev2netdev_v.txt", "lspci_acs.txt"}
ESCAPES = ("\x1b[4m", "\x1b[0m", "\x1b[1;31m", "\x1b[K", "\x1b]0;title\x07", "\x1b[?25l")
cases = pytest.mark.parametrize("name", sorted(CASES))


def text_of(name):
    return (TOOLS / name).read_text()


def outcome(name, text):
    """Return what the parser returns, or None where it refuses; any other error fails the test."""
    try:
        return CASES[name](text)
    except ParseError:
        return None


@cases
@given(cut=st.integers(min_value=0, max_value=10**6))
@settings(max_examples=200)
def test_a_cut_output_is_refused_or_read_right(name, cut):
    whole, text = CASES[name](text_of(name)), text_of(name)
    result = outcome(name, text[: cut % len(text)])

    if result is None or result == whole:
        return
    assert name in ROWS_WITHOUT_END
    assert result == whole[: len(result)]


@cases
@given(data=st.data())
@settings(max_examples=60)
def test_terminal_codes_change_nothing(name, data):
    text = text_of(name)
    for _ in range(data.draw(st.integers(1, 5))):
        at, code = data.draw(st.integers(0, len(text))), data.draw(st.sampled_from(ESCAPES))
        inside = text[:at].rfind("\x1b")
        if inside >= 0 and re.match(r"\x1b[\[\]][0-9;?]*$", text[inside:at]):
            continue  # not in the middle of another code
        text = text[:at] + code + text[at:]
    result = outcome(name, text)

    assert result is None or result == CASES[name](text_of(name))


@cases
def test_carriage_returns_at_line_ends_change_nothing(name):
    assert CASES[name](text_of(name).replace("\n", "\r\n")) == CASES[name](text_of(name))


@cases
@given(data=st.data())
@settings(max_examples=100)
def test_damaged_characters_never_end_in_a_traceback(name, data):
    text = list(text_of(name))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at] = data.draw(st.one_of(st.just(""), st.characters(), st.sampled_from("\t\n :=,0-9")))
    assert isinstance(outcome(name, "".join(text)), (type(CASES[name](text_of(name))), type(None)))


@cases
@given(text=st.text())
@settings(max_examples=60)
def test_any_text_is_refused_or_read(name, text):
    assert isinstance(outcome(name, text), (type(CASES[name](text_of(name))), type(None)))


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("mlnx_qos.txt", "Priority trust state", "Zustand der Prioritäten"),
        ("slurmd_c.txt", "RealMemory=2063751", "RealMemory=2.063.751"),
        ("slurmd_c.txt", "CPUs=224", "CPUs=224,0"),
        ("ibv_devinfo.txt", "PORT_ACTIVE", "AKTIV"),
        ("ibv_devinfo.txt", "link_layer", "couche_liaison"),
        ("ibdev2netdev.txt", "(Up)", "(Aktiv)"),
        ("show_gids.txt", "n_gids_found", "gids_trouvés"),
        ("rdma_link.txt", "ACTIVE", "ACTIF"),
        ("nvidia_smi.xml", "1980 MHz", "1.980 MHz"),
        ("nvidia_smi.xml", "81559 MiB", "81559 Mio"),
        ("topo_modern.txt", "CPU Affinity", "CPU-Affinität"),
        ("lspci_acs.txt", "SrcValid+ TransBlk- ReqRedir+", "SrcValid oui TransBlk- ReqRedir+"),
    ],
)
def test_another_locale_is_refused_not_misread(name, before, after):
    assert before in text_of(name)
    with pytest.raises(ParseError):
        CASES[name](text_of(name).replace(before, after))


@given(text=st.text())
def test_values_of_the_kernel_are_read_or_refused(text):
    readers = (kernel.cpu_list, kernel.link_rate_gbps, kernel.port_state, kernel.memlock_bytes)
    for parse in (*readers, kernel.memory_total_bytes, kernel.driver_version, parse_ip_default_routes):
        try:
            assert isinstance(parse(text), (str, int, float, tuple, frozenset))
        except ParseError as error:
            assert str(error)  # noqa: PT017


@given(cpus=st.sets(st.integers(0, 511), min_size=1))
def test_a_cpu_list_survives_a_round_trip(cpus):
    assert set(kernel.cpu_list(kernel.cpu_list_text(tuple(cpus)))) == cpus


@given(data=st.binary(max_size=4200))
def test_configuration_spaces_of_any_content_are_read(data):
    space = read_config_space(data)

    assert space.max_read_request is None or space.max_read_request in {128 << power for power in range(8)}
    assert (space.acs is None) == (len(data) < 4096)


@given(data=st.binary(max_size=300))
def test_vital_product_data_of_any_content_is_read(data):
    serial = serial_number(data)

    assert serial is None or serial.isprintable()
