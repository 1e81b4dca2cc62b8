"""Rails of the twelve layouts, and of machines that differ from them in one respect."""

from dataclasses import replace
from functools import cache

import pytest
from rackweave.cli.system import LocalSystem
from rackweave.errors import FabricError
from rackweave.fabric.block import read_fabric
from rackweave.fabric.rails import plan_rails
from rackweave.hardware.collect import collect_node

from tests.support.documents import ROCE, fabric, reference, with_nic, with_port
from tests.support.layouts import LAYOUTS
from tests.support.machines import Gpu, Machine, Nic, build, path


@pytest.fixture(scope="session")
def collected(tmp_path_factory):
    @cache
    def collect(name):
        root = build(LAYOUTS[name]().machine, tmp_path_factory.mktemp(name))
        return collect_node(LocalSystem([str(root)]), "gx01", "measured", "3.9.18", None)

    return collect


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout_gets_its_rails_in_gpu_order(name, collected):
    layout = LAYOUTS[name]()

    plan = plan_rails(collected(name), read_fabric(layout.fabric))

    assert tuple(member.device for member in plan.members) == layout.hcas
    assert tuple(rail.gpus for rail in plan.rails) == layout.gpus_of_rails
    assert plan.findings == ()


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_device_left_out_has_its_right_reason(name, collected):
    layout = LAYOUTS[name]()

    plan = plan_rails(collected(name), read_fabric(layout.fabric))

    excluded = {verdict.device: verdict.reason for verdict in plan.verdicts if verdict.role == "excluded"}
    assert set(excluded) == set(layout.excluded)
    for device, words in layout.excluded.items():
        assert words in excluded[device]


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_document_of_each_layout_is_without_warning(name, collected):
    assert collected(name).collection.warnings == ()


def test_the_operator_names_nics_by_address_in_the_order_of_the_gpus():
    document = reference()
    block = fabric(rail_subnets=None, nics={"use": [document.nics[3].bdf, document.nics[1].bdf]})

    plan = plan_rails(document, block)

    assert [member.device for member in plan.members] == ["mlx5_3", "mlx5_1"]
    assert [rail.gpus for rail in plan.rails] == [(0, 1, 2, 3), (4, 5, 6, 7)]


def test_the_operator_names_a_nic_by_its_physical_slot_on_one_host():
    block = fabric(hosts={"trn01": {"nics": {"exclude": ["8"]}}})

    here = plan_rails(reference("trn01"), block)
    there = plan_rails(reference("trn02"), block)

    assert "mlx5_7" not in [member.device for member in here.members]
    assert len(there.rails) == 8


def test_an_override_that_names_no_nic_of_the_node_is_refused():
    with pytest.raises(FabricError, match=r"trn01.*0000:ff:00\.0.*it has 0000:1c:00\.0 \(slot 1\)"):
        plan_rails(reference(), fabric(nics={"use": ["0000:ff:00.0"]}))


def flat_machine(hypervisor="QEMU"):
    gpus = tuple(Gpu(path("0000:00", f"0{index + 1}:00.0")) for index in range(4))
    nics = tuple(
        Nic(f"mlx5_{index}", path("0000:00", f"1{index}:00.0"), addresses=(f"198.51.100.{32 * index + 1}/27",))
        for index in range(4)
    )
    return Machine(gpus, nics, hypervisor=hypervisor, sockets=1)


def collect(machine, tmp_path):
    return collect_node(LocalSystem([str(build(machine, tmp_path))]), "vm01", "measured", None, None)


def test_a_flat_tree_of_a_virtual_machine_is_refused_with_advice(tmp_path):
    document = collect(flat_machine(), tmp_path)

    with pytest.raises(FabricError, match=r"virtual machine \(kvm\).*nics: use.*topology_file"):
        plan_rails(document, fabric())


def test_an_override_makes_a_virtual_machine_usable(tmp_path):
    document = collect(flat_machine(), tmp_path)
    order = [nic.bdf for nic in reversed(document.nics)]

    plan = plan_rails(document, fabric(rail_subnets=None, nics={"use": order}))

    assert [member.bdf for member in plan.members] == order


def test_a_flat_tree_on_bare_metal_is_no_virtual_machine(tmp_path):
    plan = plan_rails(collect(flat_machine(hypervisor=None), tmp_path), fabric())

    assert [rail.gpus for rail in plan.rails] == [(0,), (1,), (2,), (3,)]


def test_a_compute_nic_that_is_down_is_missed_by_name():
    document = with_port(reference(), "mlx5_5", state="DOWN")

    plan = plan_rails(document, fabric())

    (finding,) = plan.findings
    assert finding.kind == "compute-nic-count"
    assert "7 compute cards for 8 GPUs" in finding.message
    assert "mlx5_5" in finding.message
    assert "port 1 is DOWN" in finding.message


def test_a_compute_nic_with_a_slow_link_stays_a_compute_nic():
    plan = plan_rails(with_port(reference(), "mlx5_5", rate_gbps=100.0), fabric())

    assert len(plan.rails) == 8
    assert plan.rails[5].rate_gbps == 100.0


def test_a_ninth_card_of_the_same_kind_is_set_aside_as_extra():
    document = reference()
    spare = replace(
        document.nics[7], device="mlx5_8", bdf="0000:bd:00.0", sys_image_guid="0000:5eff:fe00:53ff", node_guid=None
    )
    document = replace(document, nics=(*document.nics, spare))

    plan = plan_rails(document, fabric(rail_subnets=None))

    assert len(plan.rails) == 8
    (finding,) = plan.findings
    assert finding.kind == "compute-nic-extra"
    assert "0000:bd:00.0" in finding.message


def test_rails_follow_the_subnets_of_the_fabric_where_it_names_them():
    turned = fabric(rail_subnets=list(reversed(ROCE["rail_subnets"])))

    plan = plan_rails(reference(), turned)

    assert [member.device for member in plan.members] == [f"mlx5_{number}" for number in reversed(range(8))]
    assert [rail.gpus for rail in plan.rails] == [(gpu,) for gpu in reversed(range(8))]


def test_of_a_card_with_two_kinds_of_port_only_the_right_one_is_used():
    document = reference()
    port = document.nics[2].ports[0]
    ports = (replace(port, port=1, link_layer="InfiniBand", gids=()), replace(port, port=2))

    plan = plan_rails(with_nic(document, "mlx5_2", ports=ports), fabric())

    assert [(member.device, member.port) for member in plan.rails[2].members] == [("mlx5_2", 2)]


def test_a_node_without_gpus_has_rails_in_bus_order():
    plan = plan_rails(replace(reference(), gpus=()), fabric())

    assert [member.device for member in plan.members] == [f"mlx5_{number}" for number in range(8)]
    assert plan.findings == ()


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_gpu_has_a_rail_and_every_rail_as_many_gpus(name, collected):
    document = collected(name)
    plan = plan_rails(document, read_fabric(LAYOUTS[name]().fabric))

    assert all(plan.hca_of_gpu(gpu.index) for gpu in document.gpus)
    assert len({len(rail.gpus) for rail in plan.rails}) == 1


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_order_of_devices_in_the_document_changes_nothing(name, collected):
    document, block = collected(name), read_fabric(LAYOUTS[name]().fabric)
    turned = replace(document, nics=tuple(reversed(document.nics)), gpus=tuple(reversed(document.gpus)))

    assert plan_rails(turned, block).rails == plan_rails(document, block).rails
