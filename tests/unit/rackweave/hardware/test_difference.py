"""What changed on a node, in words; what follows; and what may become the baseline."""

from dataclasses import replace

import pytest
from rackweave.errors import DocumentError
from rackweave.hardware.accept import accept_document
from rackweave.hardware.difference import compare_documents, consequences
from rackweave.hardware.document import read_document
from rackweave.hardware.node import Interface

from tests.support.documents import gids, reference, with_nic, with_port


def messages(before, after):
    return [change.message for change in compare_documents(before, after)]


def test_the_same_node_has_no_difference():
    assert compare_documents(reference(), reference()) == ()


def test_volatile_values_are_no_difference():
    before = reference()
    after = replace(before, identity=replace(before.identity, boot_id="another"))
    after = with_port(after, "mlx5_0", state="DOWN", physical_state="Polling")

    assert compare_documents(before, after) == ()


def test_a_swapped_nic_is_told_by_slot_serial_mac_and_firmware():
    before = reference()
    after = with_nic(before, "mlx5_3", serial="EXAMPLE-N99", node_guid="0000:5eff:fe00:53ee", firmware="28.40.1000")
    after = with_port(after, "mlx5_3", mac="00:00:5e:00:53:ee")

    found = messages(before, after)

    assert any(
        "NIC mlx5_3 at 0000:4c:00.0 in slot 4 was replaced: serial EXAMPLE-N13 -> EXAMPLE-N99" in it for it in found
    )
    assert any("firmware was 28.39.1002, is 28.40.1000" in it for it in found)
    assert any("MAC 00:00:5e:00:53:03 -> 00:00:5e:00:53:ee" in it for it in found)
    assert any("MAC address" in sentence for sentence in consequences(compare_documents(before, after)))


def test_a_renamed_nic_is_told_and_the_plan_is_out_of_date():
    before = reference()
    after = with_nic(before, "mlx5_3", device="mlx5_9")

    (change,) = compare_documents(before, after)

    assert change.message == "0000:4c:00.0: name moved mlx5_3 -> mlx5_9"
    assert "rail map and the HCA list" in consequences([change])[0]


def test_a_card_in_another_slot_has_moved_and_is_not_lost():
    before = reference()
    path = (*before.nics[3].pcie_path[:-1], "0000:4d:00.0")
    after = with_nic(before, "mlx5_3", bdf="0000:4d:00.0", pcie_path=path, slot="9")

    changes = compare_documents(before, after)

    assert {change.kind for change in changes} == {"nic-moved", "nic-setting"}
    assert "in slot 9" in changes[0].message


def test_a_bus_number_that_moved_renames_the_interface_of_the_same_card():
    before = with_port(reference(), "mlx5_3", netdev="enp97s0")
    after = with_nic(with_port(before, "mlx5_3", netdev="enp96s0"), "mlx5_3", bdf="0000:60:00.0")

    found = messages(before, after)

    assert any("interface renamed enp97s0 -> enp96s0" in it for it in found)


def test_an_interface_that_was_renamed_is_found_by_its_mac():
    before = reference()
    interfaces = tuple(replace(it, name="enp1s0") if it.name == "eno1" else it for it in before.interfaces)

    assert messages(before, replace(before, interfaces=interfaces)) == [
        f"interface with MAC {before.interfaces[0].mac} renamed eno1 -> enp1s0"
    ]


def test_a_missing_gpu_is_told_with_its_serial_and_keeps_the_node_drained():
    before = reference()
    after = replace(before, gpus=before.gpus[:7])

    (change,) = compare_documents(before, after)

    assert change.message == "GPU 7 at 0000:ba:00.0, serial EXAMPLE-G17, is missing"
    sentences = consequences([change])
    assert any("gres" in sentence for sentence in sentences)
    assert any("drained" in sentence for sentence in sentences)


def test_a_swapped_gpu_is_told_by_uuid_and_serial():
    before = reference()
    swapped = replace(before.gpus[2], uuid="GPU-00000000-0000-4000-8000-00000000ffff", serial="EXAMPLE-G99")
    after = replace(before, gpus=(*before.gpus[:2], swapped, *before.gpus[3:]))

    (change,) = compare_documents(before, after)

    assert change.kind == "gpu-replaced"
    assert "serial EXAMPLE-G12 -> EXAMPLE-G99" in change.message


def test_a_simulated_gpu_without_address_is_matched_by_its_index():
    before = reference()
    bare = tuple(replace(gpu, bdf=None, pcie_path=()) for gpu in before.gpus)
    other = (*bare[:3], replace(bare[3], uuid="GPU-00000000-0000-4000-8000-00000000ffff"), *bare[4:])

    (change,) = compare_documents(replace(before, gpus=bare), replace(before, gpus=other))

    assert change.kind == "gpu-replaced"
    assert "GPU 3 at /dev/nvidia3" in change.message


def test_another_board_other_memory_and_another_driver_are_told():
    before = reference()
    after = replace(
        before,
        identity=replace(before.identity, board_serial="EXAMPLE-B9"),
        memory_total_bytes=before.memory_total_bytes // 2,
        versions=replace(before.versions, nvidia_driver="565.57.01"),
    )

    found = messages(before, after)

    assert "board serial was EXAMPLE-B1, is EXAMPLE-B9" in found
    assert any(it.startswith("memory was 2015.4 GiB, is 1007.7 GiB") for it in found)
    assert "versions: nvidia driver was 560.35.05, is 565.57.01" in found


def test_a_little_less_memory_after_a_boot_is_no_difference():
    before = reference()

    assert compare_documents(before, replace(before, memory_total_bytes=before.memory_total_bytes - (64 << 20))) == ()


def test_a_gid_table_that_moved_is_told():
    before = reference()
    after = with_port(before, "mlx5_0", gids=gids("fe80::1", "2001:db8::7", before.nics[0].ports[0].gids[2].gid))

    assert {change.kind for change in compare_documents(before, after)} == {"gid-moved"}


def test_an_interface_that_is_gone_is_told():
    before = reference()
    before = replace(before, interfaces=(*before.interfaces, Interface("eno2", mac="00:00:5e:00:53:f0", mtu=1500)))

    assert messages(before, reference()) == ["interface eno2 (00:00:5e:00:53:f0) is gone"]


def test_what_is_accepted_can_be_read_again_and_is_no_difference():
    import json

    observed = reference()
    acceptance = accept_document(observed, None)
    accepted = read_document(json.loads(acceptance.content))

    assert acceptance.first
    assert compare_documents(accepted, observed) == ()
    assert accept_document(observed, accepted).content == acceptance.content


def test_an_example_is_never_accepted():
    with pytest.raises(DocumentError, match="describes no machine"):
        accept_document(replace(reference(), origin="example"), None)


def test_a_simulated_document_never_replaces_a_measured_one():
    with pytest.raises(DocumentError, match="must not replace"):
        accept_document(replace(reference(), origin="simulated"), reference())


def test_a_baseline_of_another_host_is_refused():
    with pytest.raises(DocumentError, match="of trn02"):
        accept_document(reference("trn01"), reference("trn02"))


def test_an_interface_on_another_card_under_another_name_is_found_by_its_address():
    before = reference()
    first = before.interfaces[0]
    other = replace(first, name="enp9s0", mac="00:00:5e:00:53:f1")
    found = messages(before, replace(before, interfaces=(other, *before.interfaces[1:])))
    assert found == [
        f"interface with address {', '.join(first.addresses)} renamed {first.name} -> enp9s0",
        f"interface enp9s0: MAC {first.mac} -> 00:00:5e:00:53:f1",
    ]


def test_an_interface_that_is_new_is_told():
    before = reference()
    after = replace(before, interfaces=(*before.interfaces, Interface("eno9", mac="00:00:5e:00:53:f2")))
    assert messages(before, after) == ["interface eno9 (00:00:5e:00:53:f2) is new"]
