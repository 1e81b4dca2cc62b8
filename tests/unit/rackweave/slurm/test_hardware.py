"""Machines that nobody here has seen: what Slurm is told of them must be something it starts with."""

import re
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rackweave.hardware.node import Cpu, Gpu, NodeDocument, NumaNode, SlurmNode
from rackweave.provision.inventory import expand_hosts
from rackweave.slurm.config import SlurmSite, slurm_files
from rackweave.slurm.hardware import configured_memory_mib, gpu_type, memory_classes
from rackweave.slurm.munge import SlurmError
from rackweave.slurm.processors import Processors

from tests.support.slurm_nodes import h100_node, node

SITE = SlurmSite("prod", "ctl01", ("gpu01",), partitions={"training": {}})


def rendered(*documents, **changes):
    return slurm_files(replace(SITE, hosts=tuple(document.host for document in documents), **changes), documents)


def rows(text, start):
    return [row for row in text.splitlines() if row.startswith(start)]


def cores(*documents):
    return [re.sub(r".*(Cores=\S+)|.*", r"\1", row) for row in rows(rendered(*documents)["gres.conf"], "NodeName=")]


def quarters(processors):
    """Return the CPU lists of eight NUMA nodes, four per socket, with the second threads at the end."""
    total = processors[0] * processors[1]
    part = total // 8
    second = processors[2] > 1
    return [
        f"{part * index}-{part * (index + 1) - 1}"
        + (f",{total + part * index}-{total + part * (index + 1) - 1}" if second else "")
        for index in range(8)
    ]


@pytest.mark.parametrize("threads", [1, 2])
def test_four_numa_nodes_per_socket_give_cores_of_the_whole_socket(threads):
    shape = (2, 96, threads)
    document = node("gpu01", shape, quarters(shape), [3, 1, 1, 0, 7, 5, 5, 4])
    assert cores(document) == ["Cores=0-95", "Cores=96-191"]


def test_numa_nodes_without_processors_do_not_move_the_sockets():
    lists = ["0-71", "72-143", "", "", "", "", "", "", "", ""]
    document = node("gpu01", (2, 72, 1), lists, [0, 0, 1, 1], name="NVIDIA GB200")
    assert cores(document) == ["Cores=0-71", "Cores=72-143"]


def test_a_gpu_at_a_numa_node_without_processors_or_at_none_has_no_cores():
    document = node("gpu01", (2, 72, 1), ["0-71", "72-143", ""], [2, 0])
    assert cores(document) == ["", "Cores=0-71"]
    unknown = replace(document, gpus=tuple(replace(gpu, numa_node=None) for gpu in document.gpus))
    assert cores(unknown) == [""]


def test_numa_numbers_that_leave_gaps_are_taken_in_their_order():
    document = node("gpu01", (2, 20, 4), ["0-79", "80-159"], [0, 8])
    power = replace(document, cpu=replace(document.cpu, numa_nodes=(NumaNode(0, "0-79"), NumaNode(8, "80-159"))))
    assert cores(power) == ["Cores=0-19", "Cores=20-39"]


def test_sockets_of_different_size_get_no_cores_instead_of_wrong_ones():
    document = node("gpu01", (2, 32, 1), ["0-39", "40-63"], [0, 1])
    assert cores(document) == [""]


def test_caches_called_sockets_give_all_cores_of_the_numa_node():
    # SlurmdParameters=l3cache_as_socket: slurmd -C counts 8 "sockets" of 8 cores on a machine of two NUMA nodes.
    document = node("gpu01", (8, 8, 2), ["0-31,64-95", "32-63,96-127"], [0, 1])
    assert cores(document) == ["Cores=0-31", "Cores=32-63"]


def test_three_numa_nodes_on_two_sockets_are_not_guessed_at():
    assert cores(node("gpu01", (2, 24, 1), ["0-15", "16-31", "32-47"], [0, 1, 2])) == [""]


def test_one_socket_needs_no_cores():
    assert cores(node("gpu01", (1, 64, 2), ["0-127"], [0, 0])) == [""]


@pytest.mark.parametrize(
    ("online", "cpus"), [(224, 224), (223, 112), (112, 112), (111, 110), (57, 56), (3, 2), (1, 1), (230, 224)]
)
def test_a_node_is_never_told_to_have_more_processors_than_are_online(online, cpus):
    processors = Processors.counted(2, 56, 2, online)
    assert processors.cpus == cpus <= max(online, 1)
    # slurm.conf(5): CPUs is the number of cores or of threads.
    total = processors.sockets * processors.cores_per_socket
    assert processors.cpus in (total, total * processors.threads_per_core)


def test_an_offline_processor_is_no_reason_to_stop_but_cores_are_not_numbered_any_more():
    document = node("gpu01", (2, 56, 2), ["0-55,112-166", "56-111,168-223"], [0, 1], cpus=223)
    (line,) = rows(rendered(document)["slurm.conf"], "NodeName=")
    assert "CPUs=112 Sockets=2 CoresPerSocket=56 ThreadsPerCore=2" in line
    assert cores(document) == [""]


def test_a_divided_gpu_is_refused_with_the_way_out():
    document = node("gpu01", (2, 56, 1), ["0-55", "56-111"], [0], name="NVIDIA A100-SXM4-40GB MIG 3g.20gb")
    with pytest.raises(SlurmError, match="nvidia-smi -mig 0"):
        rendered(document)
    by_uuid = replace(h100_node("gpu01"), gpus=(replace(h100_node("gpu01").gpus[0], uuid="MIG-6f2a"),))
    with pytest.raises(SlurmError, match="divided"):
        rendered(by_uuid)


def test_nodes_without_a_gpu_have_no_gres_and_need_no_type():
    cpu_only = replace(h100_node("cpu01"), gpus=())
    files = rendered(cpu_only)
    assert "Gres" not in files["slurm.conf"]
    assert rows(files["gres.conf"], "NodeName=") == []
    files = rendered(cpu_only, h100_node("gpu01"))
    assert "Gres" not in rows(files["slurm.conf"], "NodeName=cpu01")[0]
    assert "GresTypes=gpu" in files["slurm.conf"]
    assert all("cpu01" not in row for row in rows(files["gres.conf"], "NodeName="))


def test_two_kinds_of_gpu_in_one_node_are_counted_apart():
    gpus = tuple(
        Gpu(
            index,
            name="NVIDIA H100 PCIe" if index < 2 else "NVIDIA L40S",
            numa_node=0,
            device_file=f"/dev/nvidia{index}",
        )
        for index in range(4)
    )
    files = rendered(replace(h100_node("gpu01"), gpus=gpus))
    assert "Gres=gpu:h100:2,gpu:l40s:2 " in files["slurm.conf"]


def test_a_gpu_without_a_name_beside_named_ones_gets_a_type_too():
    gpus = (
        Gpu(0, name="NVIDIA H100 PCIe", device_file="/dev/nvidia0"),
        Gpu(1, name=None, device_file="/dev/nvidia1"),
    )
    assert "Gres=gpu:h100:1,gpu:unknown:1 " in rendered(replace(h100_node("gpu01"), gpus=gpus))["slurm.conf"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA GeForce RTX 4090", "nvidia_geforce_rtx_4090"),
        ("NVIDIA RTX 6000 Ada Generation", "nvidia_rtx_6000_ada_generation"),
        ("NVIDIA RTX A6000", "a6000"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA H200 NVL", "h200"),
        ("Tesla T4", "t4"),
    ],
)
def test_every_product_has_a_type_that_is_a_piece_of_its_name(name, kind):
    assert gpu_type(name) == kind
    assert kind in re.sub(r"[^a-z0-9]+", "_", name.lower())


def test_two_gpus_with_one_device_file_or_a_strange_one_are_refused():
    document = h100_node("gpu01", gpus=2)
    same = tuple(replace(gpu, device_file="/dev/nvidia0") for gpu in document.gpus)
    with pytest.raises(SlurmError, match="more than one GPU of gpu01"):
        rendered(replace(document, gpus=same))
    strange = (replace(document.gpus[0], device_file="/dev/nvidia0 Count=8"),)
    with pytest.raises(SlurmError, match="device file"):
        rendered(replace(document, gpus=strange))


@pytest.mark.parametrize("reported", [3_145_728, 24_576 * 1024, 200, 1])
def test_real_memory_of_any_size_stays_below_what_is_reported(reported):
    assert 0 < configured_memory_mib(reported, 2.0) <= reported


def test_nodes_with_twice_the_memory_keep_it_and_small_differences_share_a_line():
    documents = [h100_node("gpu01", 1031000), h100_node("gpu02", 1031900), h100_node("gpu03", 2063900)]
    lines = rows(rendered(*documents)["slurm.conf"], "NodeName=")
    assert [line.split()[0] for line in lines] == ["NodeName=gpu[01-02]", "NodeName=gpu03"]
    gres = rows(rendered(*documents)["gres.conf"], "NodeName=")
    assert [row.split()[0] for row in gres] == ["NodeName=gpu[01-03]"] * 2


@given(st.lists(st.integers(1000, 4_000_000), min_size=1, max_size=40))
def test_no_class_of_memory_promises_more_than_a_member_has(amounts):
    members = [(f"n{index}", amount) for index, amount in enumerate(amounts)]
    classes = memory_classes(members)
    assert sorted(host for hosts, _ in classes for host in hosts) == sorted(host for host, _ in members)
    for hosts, bound in classes:
        assert bound == min(dict(members)[host] for host in hosts)


def test_a_thousand_nodes_fold_into_a_few_lines_quickly():
    documents = [h100_node(f"trn-{number:04d}", 2063937 - number) for number in range(1, 1001)]
    documents += [h100_node(f"big-a{number}", 4127800) for number in range(8, 12)]
    start = time.process_time()
    files = rendered(*documents)
    assert time.process_time() - start < 5
    lines = rows(files["slurm.conf"], "NodeName=")
    assert [line.split()[0] for line in lines] == ["NodeName=trn-[0001-1000]", "NodeName=big-a[8-11]"]
    assert len(files["gres.conf"].splitlines()) == 4


@pytest.mark.parametrize("host", ["DEFAULT", "all", "gpu[01]", "gpu 01", "gpu01,gpu02", "gpu=1", "-gpu", ""])
def test_a_host_name_that_slurm_reads_as_something_else_is_refused(host):
    with pytest.raises(SlurmError, match="cannot be a name"):
        rendered(replace(h100_node("gpu01"), host=host))


def test_a_host_given_twice_is_refused():
    with pytest.raises(SlurmError, match="gpu01 more than once"):
        slurm_files(replace(SITE, hosts=("gpu01", "gpu01")), [h100_node("gpu01")])


COUNTS = st.tuples(st.integers(1, 4), st.integers(1, 64), st.sampled_from([1, 2, 4]))


@settings(max_examples=60)
@given(COUNTS, st.integers(1, 8), st.integers(0, 8), st.integers(1, 600), st.integers(1, 4_000_000), st.data())
def test_any_machine_gives_lines_that_slurm_accepts(shape, numa_count, gpu_count, online, memory, data):
    numa = [data.draw(st.sampled_from(["", "0", "0-7", "0-7,16-23"])) for _ in range(numa_count)]
    gpus = [data.draw(st.integers(0, numa_count)) for _ in range(gpu_count)]
    document = node("gpu01", shape, numa, gpus, memory, cpus=online)
    files = rendered(document)
    (line,) = rows(files["slurm.conf"], "NodeName=")
    values = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)(?=\s)", line)}
    total = values["Sockets"] * values["CoresPerSocket"]
    assert values["CPUs"] in (total, total * values["ThreadsPerCore"])
    assert values["CPUs"] <= max(online, 1)
    assert 0 < values["RealMemory"] <= memory
    named = []
    for row in rows(files["gres.conf"], "NodeName="):
        named += expand_hosts(row.split("File=")[1].split()[0].replace("/dev/", ""))
        if match := re.search(r"Cores=(\d+)(?:-(\d+))?", row):
            first, last = int(match[1]), int(match[2] or match[1])
            assert first % values["CoresPerSocket"] == 0
            assert last < total
            assert (last + 1) % values["CoresPerSocket"] == 0
    assert sorted(named) == sorted(f"nvidia{index}" for index in range(gpu_count))


def test_a_document_that_only_counts_logical_processors_serves():
    bare = NodeDocument("gpu01", "measured", cpu=Cpu(logical=24), memory_total_bytes=64 * 1024**3)
    assert "CPUs=24 Sockets=1 CoresPerSocket=24 ThreadsPerCore=1" in rendered(bare)["slurm.conf"]


def test_boards_count_as_sockets():
    document = replace(h100_node("gpu01"), slurm=SlurmNode(224, 2, 1, 56, 2, 2063937))
    assert "Sockets=2 CoresPerSocket=56" in rendered(document)["slurm.conf"]
    assert cores(document) == ["Cores=0-55", "Cores=56-111"]
