"""Parsers of tool output: right values from each public format, and one sentence for everything else.

The recorded texts are made up in the public formats of the tools (see tests/fixtures/nodes/README.md).
"""

from pathlib import Path

import pytest
from rackweave.errors import ParseError
from rackweave.hardware.nvidia_smi import normal_bdf, parse_nvidia_smi_xml
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

TOOLS = Path(__file__).parents[3] / "fixtures/nodes/tools"


def recorded(name):
    return (TOOLS / name).read_text()


def test_the_modern_matrix_gives_cells_affinities_and_device_names():
    matrix = parse_topo_matrix(recorded("topo_modern.txt"))

    assert matrix.gpus == ("GPU0", "GPU1", "GPU2", "GPU3")
    assert matrix.nic_devices == {"NIC0": "mlx5_0", "NIC1": "mlx5_3", "NIC2": "mlx5_bond_0"}
    assert matrix.cells["GPU1"]["NIC1"] == "PXB"
    assert matrix.cells["GPU1"]["NIC2"] == "SYS"
    assert matrix.cells["GPU0"]["GPU3"] == "NV18"
    assert matrix.cpu_affinity["GPU2"] == "56-111,168-223"
    assert matrix.numa_affinity["GPU2"] == "1"


def test_the_old_matrix_names_devices_in_its_columns():
    matrix = parse_topo_matrix(recorded("topo_old.txt"))

    assert matrix.nics == ("mlx5_0", "mlx5_1")
    assert matrix.nic_devices == {"mlx5_0": "mlx5_0", "mlx5_1": "mlx5_1"}
    assert matrix.cells["GPU1"]["mlx5_1"] == "PIX"
    assert matrix.numa_affinity["GPU0"] is None


def test_a_machine_without_nic_has_a_matrix_of_gpus():
    matrix = parse_topo_matrix(recorded("topo_without_nic.txt"))

    assert matrix.nics == ()
    assert matrix.cells["GPU0"]["GPU1"] == "SYS"


def test_underlined_headers_of_a_terminal_are_read():
    text = recorded("topo_modern.txt")
    header, rest = text.split("\n", 1)
    underlined = "\t".join(f"\x1b[4m{cell}\x1b[0m" if cell else cell for cell in header.split("\t"))

    assert parse_topo_matrix(f"{underlined}\n{rest}") == parse_topo_matrix(text)


def test_a_matrix_aligned_with_spaces_is_refused():
    with pytest.raises(ParseError, match="aligned with spaces"):
        parse_topo_matrix(recorded("topo_aligned.txt"))


def test_fused_cells_are_refused():
    with pytest.raises(ParseError, match="'NODENODE' is no distance"):
        parse_topo_matrix(recorded("topo_modern.txt").replace("\tPXB\tNODE\t", "\tPXB\tNODENODE\t", 1))


def test_a_matrix_that_contradicts_itself_is_refused():
    with pytest.raises(ParseError, match="GPU0-NIC0 is PIX but NIC0-GPU0 is PXB"):
        parse_topo_matrix(recorded("topo_modern.txt").replace("PXB", "PIX", 1))


@pytest.mark.parametrize(
    "parse",
    [lambda: parse_rdma_link_json(recorded("rdma_link.json")), lambda: parse_rdma_link(recorded("rdma_link.txt"))],
)
def test_both_forms_of_rdma_link_say_the_same(parse):
    links = {link.device: link for link in parse()}

    assert links["mlx5_0"].netdev == "ens1np0"
    assert (links["rocep221s0"].state, links["rocep221s0"].physical_state) == ("DOWN", "DISABLED")
    assert links["ibp24s0"].netdev is None


def test_ibv_devinfo_gives_the_active_mtu_in_bytes():
    devices = {device.device: device for device in parse_ibv_devinfo(recorded("ibv_devinfo.txt"))}

    assert devices["mlx5_0"].ports[0].active_mtu == 4096
    assert devices["mlx5_1"].ports[0].active_mtu == 1024
    assert devices["ibp24s0"].ports[0].state == "DOWN"
    assert devices["ibp24s0"].vendor_part_id == 4123
    assert devices["mlx5_0"].sys_image_guid == "a088:c203:00ab:cd10"


def test_a_machine_without_devices_is_told_from_a_cut_output():
    with pytest.raises(ParseError, match="No IB devices found"):
        parse_ibv_devinfo("No IB devices found\n")


@pytest.mark.parametrize("name", ["ibdev2netdev.txt", "ibdev2netdev_v.txt"])
def test_every_spelling_of_up_and_down_is_read(name):
    links = {link.device: link for link in parse_ibdev2netdev(recorded(name))}

    assert (links["mlx5_0"].netdev, links["mlx5_0"].up) == ("ens1np0", True)
    assert (links["mlx5_1"].netdev, links["mlx5_1"].up) == ("ens2np0", False)


def test_show_gids_gives_rows_with_version_and_netdev():
    entries = parse_show_gids(recorded("show_gids.txt"))

    assert [entry.gid.index for entry in entries] == [0, 1, 2, 3]
    assert entries[3].gid.gid == "::ffff:198.51.100.7"
    assert entries[3].gid.type == "RoCE v2"
    assert entries[0].gid.gid == "fe80::200:5eff:fe00:5301"


def test_show_gids_whose_ipv4_column_contradicts_the_gid_is_refused():
    with pytest.raises(ParseError, match="not the address in the GID"):
        parse_show_gids(recorded("show_gids.txt").replace("198.51.100.7", "198.51.100.8", 1))


def test_mlnx_qos_gives_trust_map_and_pfc():
    settings = parse_mlnx_qos(recorded("mlnx_qos.txt"))

    assert settings.trust == "dscp"
    assert settings.pfc_priorities == (3,)
    assert settings.dscp_to_priority[26] == 3
    assert settings.dscp_to_priority[48] == 6


def test_mlnx_qos_that_trusts_pcp_has_no_map():
    lines = [line for line in recorded("mlnx_qos.txt").split("\n") if "dscp:" not in line]
    settings = parse_mlnx_qos("\n".join(lines).replace("trust state: dscp", "trust state: pcp"))

    assert settings.trust == "pcp"
    assert settings.dscp_to_priority is None


def test_slurmd_gives_the_node_line():
    node = parse_slurmd_c(recorded("slurmd_c.txt"))

    assert (node.cpus, node.cores_per_socket, node.real_memory_mib) == (224, 56, 2063751)


def test_a_node_line_that_contradicts_itself_is_refused():
    with pytest.raises(ParseError, match="CPUs=224 is neither the threads"):
        parse_slurmd_c(recorded("slurmd_c.txt").replace("CoresPerSocket=56", "CoresPerSocket=48"))


def test_acs_is_reported_for_switch_ports_and_root_ports_with_any_redirection():
    states = {state.bdf: state for state in parse_lspci_acs(recorded("lspci_acs.txt"))}

    on = {bdf for bdf, state in states.items() if state.bridge and state.controls}
    assert on == {"0000:16:01.0", "0000:40:01.1"}
    assert states["0000:40:01.1"].controls == {"SrcValid"}
    assert not states["0000:18:00.0"].bridge


def test_lspci_without_domains_means_domain_zero():
    states = parse_lspci_acs(recorded("lspci_acs.txt").replace("0000:", ""))

    assert states[0].bdf == "0000:16:01.0"


def test_lspci_of_an_ordinary_user_is_refused():
    with pytest.raises(ParseError, match="as root"):
        parse_lspci_acs("0000:16:01.0 PCI bridge: A Switch\n\tCapabilities: <access denied>\n\n")


def test_the_xml_report_gives_gpus_with_normal_addresses():
    reading = parse_nvidia_smi_xml(recorded("nvidia_smi.xml"))

    assert (reading.driver, reading.cuda) == ("560.35.05", "12.6")
    assert [gpu.bdf for gpu in reading.gpus] == ["0000:1b:00.0", "0000:9d:00.0"]
    assert reading.gpus[1].memory_bytes == 81559 << 20
    assert reading.gpus[1].max_sm_clock_mhz == 1980
    assert reading.gpus[1].power_limit_w == 700
    assert reading.gpus[1].ecc_enabled is True


def test_a_field_the_gpu_has_not_is_unknown():
    text = recorded("nvidia_smi.xml").replace("<serial>EXG0000</serial>", "<serial>N/A</serial>")

    assert parse_nvidia_smi_xml(text).gpus[0].serial is None


def test_a_driver_that_does_not_answer_is_one_sentence():
    message = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 560.35\n"

    with pytest.raises(ParseError, match="Driver/library version mismatch"):
        parse_nvidia_smi_xml(message)


@pytest.mark.parametrize(
    ("text", "bdf"),
    [("00000000:1B:00.0", "0000:1b:00.0"), ("0018:01:00.0", "0018:01:00.0"), ("00010000:01:00.0", "10000:01:00.0")],
)
def test_the_domain_of_an_address_is_kept(text, bdf):
    assert normal_bdf(text) == bdf


def test_ip_gives_addresses_and_default_routes():
    addresses = parse_ip_addresses(recorded("ip_address.json"))

    assert addresses["eno1"] == ("192.0.2.11/24", "fe80::200:5eff:fe00:5301/64")
    assert addresses["ens1np0"] == ()
    assert parse_ip_default_routes('[{"dst":"default","dev":"eno1"}]') == {"eno1"}
    assert parse_ip_default_routes('[{"dst":"default","nexthops":[{"dev":"a"},{"dev":"b"}]}]') == {"a", "b"}
    assert parse_ip_default_routes("") == frozenset()


def test_a_virtual_machine_prints_no_affinity_and_none_is_made_up():
    header = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    rows = "GPU0\t X \tNV18\t\t\t\tN/A\nGPU1\tNV18\t X \t\t\t\tN/A\n"
    matrix = parse_topo_matrix(header + rows + "\nLegend:\n\n  X    = Self\n")
    assert matrix.cpu_affinity == {"GPU0": None, "GPU1": None}
    assert matrix.numa_affinity == {"GPU0": None, "GPU1": None}
