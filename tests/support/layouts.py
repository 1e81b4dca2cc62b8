"""Twelve public machine layouts as descriptions, each with its right answer. All synthesised (see `machines.py`).

The kinds of machine are those that operators describe in public threads and vendors in their samples; bus numbers,
names and addresses are made up, except where an order is the point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.support.machines import Gpu, Machine, Nic, path


@dataclass(frozen=True)
class Layout:
    """A machine, the fabric block it belongs to, and what must come out: devices by rail, GPUs of each rail."""

    machine: Machine
    fabric: dict[str, object]
    hcas: tuple[str, ...]
    gpus_of_rails: tuple[tuple[int, ...], ...]
    excluded: dict[str, str]


INFINIBAND: dict[str, object] = {"kind": "infiniband"}
ROCE: dict[str, object] = {
    "kind": "roce",
    "dscp": 26,
    "ecn": True,
    "lossless_priority": 3,
    "cnp_dscp": 48,
    "cnp_priority": 6,
    "mtu": 9000,
    "rdma_mtu": 4096,
}
ONE_TO_ONE = tuple((gpu,) for gpu in range(8))


def below_switch(bus: int, device: int, position: int, depth: int = 1, domain: str = "0000") -> tuple[str, ...]:
    """Return the path of a device below the switch on host bridge ``bus``.

    Devices of one bus with one depth share a switch (PIX at depth 1); a greater depth puts another switch between.
    """
    steps = [f"{bus:02x}:01.0", f"{bus + 1:02x}:00.0"]
    for level in range(1, depth):
        steps += [f"{bus + 2 * level:02x}:{position + 8 * level:02x}.0", f"{bus + 2 * level + 1:02x}:{position:02x}.0"]
    steps += [f"{bus + 2 * depth:02x}:{position:02x}.0", f"{device:02x}:00.0"]
    return path(f"{domain}:{bus:02x}", *steps)


def direct(bus: int, device: int, domain: str = "0000", function: int = 0) -> tuple[str, ...]:
    """Return the path of a device in a root port of its own."""
    return path(f"{domain}:{bus:02x}", f"{bus:02x}:01.0", f"{device:02x}:00.{function}")


def function_of(steps: tuple[str, ...], function: int) -> tuple[str, ...]:
    """Return the path of another function of the same card."""
    return (*steps[:-1], f"{steps[-1].rsplit('.', 1)[0]}.{function}")


def gpus(buses: list[int], depth: int = 1) -> tuple[Gpu, ...]:
    return tuple(Gpu(below_switch(bus, bus + 10, 1, depth), index * 2 // len(buses)) for index, bus in enumerate(buses))


def compute(name: str, bus: int, numa: int, depth: int = 1, **values: object) -> Nic:
    """Return a compute NIC below the switch of ``bus``."""
    return Nic(name, below_switch(bus, bus + 12, 2, depth), numa, **values)  # type: ignore[arg-type]


def pair(first: str, second: str, bus: int, numa: int, **values: object) -> tuple[Nic, Nic]:
    """Return both functions of a dual-port card in a root port of its own."""
    steps, card = direct(bus, bus + 1), f"b8ce:f603:00{bus:02x}:0001"
    one = Nic(first, steps, numa, card=card, **values)  # type: ignore[arg-type]
    return one, replace(one, device=second, path=function_of(steps, 1))


EIGHT_BUSES = [0x10, 0x20, 0x30, 0x40, 0x80, 0x90, 0xA0, 0xB0]


def _eight(names: list[int], depth: int = 1, **values: object) -> list[Nic]:
    return [
        compute(f"mlx5_{number}", bus, index // 4, depth, **values)
        for index, (number, bus) in enumerate(zip(names, EIGHT_BUSES))
    ]


def _hcas(numbers: list[int]) -> tuple[str, ...]:
    return tuple(f"mlx5_{number}" for number in numbers)


def l01_twelve_devices() -> Layout:
    """DGX-like: 8 compute NICs two switches from their GPU, and two dual-port pairs for storage."""
    numbers = [0, 3, 4, 5, 6, 9, 10, 11]
    storage = {"rate": 200, "board": "MT_0000000911", "layer": "InfiniBand"}
    nics = _eight(numbers, depth=2, layer="InfiniBand")
    nics += [*pair("mlx5_1", "mlx5_2", 0xC0, 0, **storage), *pair("mlx5_7", "mlx5_8", 0xD0, 1, **storage)]
    excluded = dict.fromkeys(("mlx5_1", "mlx5_2", "mlx5_7", "mlx5_8"), "nearest to no GPU")
    return Layout(Machine(gpus(EIGHT_BUSES, 2), tuple(nics)), INFINIBAND, _hcas(numbers), ONE_TO_ONE, excluded)


def l02_pair_beside_a_gpu() -> Layout:
    """Ten devices: the pair for storage sits below a GPU's switch, so its distance says nothing."""
    numbers = [0, 1, 2, 5, 6, 7, 8, 9]
    nics = _eight(numbers, layer="InfiniBand")
    shared = below_switch(0x40, 0x4E, 3)
    for function, name in enumerate(("mlx5_3", "mlx5_4")):
        steps = function_of(shared, function)
        card = "b8ce:f603:0040:0001"
        nics.append(Nic(name, steps, 0, rate=200, layer="InfiniBand", board="MT_0000000911", card=card))
    excluded = dict.fromkeys(("mlx5_3", "mlx5_4"), "another kind of card")
    return Layout(Machine(gpus(EIGHT_BUSES), tuple(nics)), INFINIBAND, _hcas(numbers), ONE_TO_ONE, excluded)


def l03_interleaved() -> Layout:
    """Nine devices whose numbers do not follow the GPUs; device 0 is management."""
    numbers = [2, 4, 6, 8, 1, 3, 5, 7]
    nics = _eight(numbers, rate=200, layer="InfiniBand", hca_type="MT4123")
    management = Nic("mlx5_0", direct(0xC0, 0xC1), 0, rate=25, netdev="eno1", hca_type="MT4117", default_route=True)
    machine = Machine(gpus(EIGHT_BUSES), (*nics, management), management=None)
    return Layout(machine, INFINIBAND, _hcas(numbers), ONE_TO_ONE, {"mlx5_0": "link layer is Ethernet"})


def l04_dual_port_per_gpu() -> Layout:
    """Eighteen functions: a dual-port 200 Gb/s card for each GPU (16), and two front-end ports."""
    numbers = [0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17]
    nics: list[Nic] = []
    for index, bus in enumerate(EIGHT_BUSES):
        steps, card = below_switch(bus, bus + 12, 2), f"b8ce:f603:00{bus:02x}:0002"
        for function in (0, 1):
            address = (f"10.40.{index}.{function + 1}/24",)
            name = f"mlx5_{numbers[2 * index + function]}"
            nics.append(Nic(name, function_of(steps, function), index // 4, 200, card=card, addresses=address))
    for number, bus, name in ((2, 0xC0, "ens300"), (11, 0xD0, "ens340")):
        front = Nic(f"mlx5_{number}", direct(bus, bus + 1), bus // 0xD0, 100, hca_type="MT4125", netdev=name)
        nics.append(replace(front, addresses=(f"10.9.0.{number}/24",), default_route=number == 2))
    excluded = {"mlx5_2": "default route", "mlx5_11": "100 Gb/s"}
    machine = Machine(gpus(EIGHT_BUSES), tuple(nics), management=None)
    return Layout(machine, ROCE, _hcas(numbers), ONE_TO_ONE, excluded)


def l05_bluefield_bond() -> Layout:
    """Eight InfiniBand devices with gaps in their numbers; a bonded BlueField-3 carries storage over Ethernet."""
    numbers = [0, 1, 4, 5, 6, 7, 8, 9]
    nics = _eight(numbers, layer="InfiniBand")
    bond = Nic("mlx5_bond_0", direct(0xC0, 0xC1), 0, 200, hca_type="MT41692", netdev="bond0", slaves=("ens3", "ens4"))
    nics.append(replace(bond, firmware="32.41.1000", addresses=("10.9.0.5/24",)))
    machine = Machine(gpus(EIGHT_BUSES), tuple(nics))
    return Layout(machine, INFINIBAND, _hcas(numbers), ONE_TO_ONE, {"mlx5_bond_0": "link layer is Ethernet"})


def l06_roce_bonds() -> Layout:
    """Eight bonds of two ports each; the last GPU reaches its bond only through the host bridge."""
    nics = []
    for index, bus in enumerate(EIGHT_BUSES):
        steps = below_switch(bus, bus + 12, 2) if index < 7 else path("0000:b0", "b0:02.0", "c1:00.0")
        netdev, slaves = f"bond{index + 1}", (f"ens{index}f0", f"ens{index}f1")
        bond = Nic(f"mlx5_bond_{index + 1}", steps, index // 4, 400, netdev=netdev, slaves=slaves)
        nics.append(replace(bond, addresses=(f"10.40.{index}.9/24",)))
    hcas = tuple(f"mlx5_bond_{number}" for number in range(1, 9))
    return Layout(Machine(gpus(EIGHT_BUSES), tuple(nics)), ROCE, hcas, ONE_TO_ONE, {})


def l07_two_devices_per_gpu() -> Layout:
    """Sixteen 400 Gb/s devices, two for each GPU, among 22."""
    numbers = [0, 1, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 18, 19, 20, 21]
    nics: list[Nic] = []
    for index, bus in enumerate(EIGHT_BUSES):
        for half in (0, 1):
            steps = below_switch(bus, bus + 12 + half, 2 + half)
            nics.append(Nic(f"mlx5_{numbers[2 * index + half]}", steps, index // 4, 400, hca_type="MT4131"))
    others = [2, 3, 4, 5, 6, 15]
    for position, number in enumerate(others):
        steps = direct(0xC0 + 2 * position, 0xC1 + 2 * position)
        nics.append(Nic(f"mlx5_{number}", steps, position % 2, 200, hca_type="MT41692"))
    nics = [replace(nic, addresses=(f"10.40.{number}.1/24",)) for number, nic in enumerate(nics)]
    two_each = tuple((gpu,) for gpu in range(8) for _ in (0, 1))
    excluded = {f"mlx5_{number}": "200 Gb/s" for number in others}
    return Layout(Machine(gpus(EIGHT_BUSES), tuple(nics)), ROCE, _hcas(numbers), two_each, excluded)


def l08_four_gpus_in_many_domains() -> Layout:
    """Four GPUs with a PCI domain each; NICs hang off other domains of the same NUMA node."""
    bodies = [("0008", 0), ("0009", 0), ("0018", 1), ("0019", 1)]
    found = tuple(Gpu(path(f"{domain}:00", "00:00.0", "01:00.0"), numa) for domain, numa in bodies)
    numbers, nics = [0, 1, 3, 4], []
    for number, (domain, numa) in zip(numbers, (("0000", 0), ("0002", 0), ("0010", 1), ("0012", 1))):
        steps = path(f"{domain}:00", "00:00.0", "03:00.0")
        nics.append(Nic(f"mlx5_{number}", steps, numa, layer="InfiniBand"))
    for number, domain, numa in ((2, "0006", 0), (5, "0016", 1)):
        steps = path(f"{domain}:00", "00:00.0", "03:00.0")
        nics.append(Nic(f"mlx5_{number}", steps, numa, 200, hca_type="MT41692", netdev=f"bf{number}"))
    excluded = dict.fromkeys(("mlx5_2", "mlx5_5"), "link layer is Ethernet")
    rails = tuple((gpu,) for gpu in range(4))
    return Layout(Machine(found, tuple(nics), cores_per_socket=72), INFINIBAND, _hcas(numbers), rails, excluded)


def l09_cloud_names() -> Layout:
    """Devices named by a provider: mlx5_ib0 to mlx5_ib7, and mlx5_an0 for the network of the machine itself."""
    nics = [
        compute(f"mlx5_ib{index}", bus, index // 4, layer="InfiniBand", netdev=f"ibs{index}")
        for index, bus in enumerate(EIGHT_BUSES)
    ]
    accelerated = Nic("mlx5_an0", direct(0xC0, 0xC1), 0, 100, netdev="eth1", default_route=True, hca_type="MT4117")
    machine = Machine(gpus(EIGHT_BUSES), (accelerated, *nics), management=None)
    hcas = tuple(f"mlx5_ib{index}" for index in range(8))
    return Layout(machine, INFINIBAND, hcas, ONE_TO_ONE, {"mlx5_an0": "link layer is Ethernet"})


def _four_nics(numbers: list[int], others: list[int]) -> Layout:
    nics = []
    for index, (number, bus) in enumerate(zip(numbers, EIGHT_BUSES[::2])):
        steps = below_switch(bus, bus + 12, 2)
        nics.append(Nic(f"mlx5_{number}", steps, index // 2, 400, addresses=(f"10.40.{index}.7/24",)))
    for position, number in enumerate(others):
        steps = direct(0xC0 + 2 * position, 0xC1 + 2 * position)
        nics.append(Nic(f"mlx5_{number}", steps, position % 2, 100, hca_type="MT4125", netdev=f"front{number}"))
    found = []
    for index in range(8):
        bus = EIGHT_BUSES[index // 2 * 2]
        found.append(Gpu(below_switch(bus, bus + 10 + index % 2, 1 + 3 * (index % 2)), index // 4))
    rails = ((0, 1), (2, 3), (4, 5), (6, 7))
    excluded = {f"mlx5_{number}": "100 Gb/s" for number in others}
    return Layout(Machine(tuple(found), tuple(nics)), ROCE, _hcas(numbers), rails, excluded)


def l10_four_nics_node_a() -> Layout:
    """Four NICs for eight GPUs, numbered 0, 3, 5, 8 on this node."""
    return _four_nics([0, 3, 5, 8], [1, 2, 4, 6, 7])


def l10_four_nics_node_b() -> Layout:
    """The same model, numbered 0, 1, 4, 5 on that node."""
    return _four_nics([0, 1, 4, 5], [2, 3, 6, 7])


def l11_virtual_functions() -> Layout:
    """34 virtual functions, all near each other and near every GPU's switch."""
    numbers = list(range(8))
    nics = [replace(nic, addresses=(f"10.40.{index}.3/24",)) for index, nic in enumerate(_eight(numbers))]
    for number in range(34):
        steps = path("0000:10", "10:01.0", "11:00.0", "12:02.0", f"1c:{number // 8 + 1:02x}.{number % 8}")
        nics.append(Nic(f"mlx5_{8 + number}", steps, 0, 400, vf=True, netdev=f"vf{number}"))
    excluded = {f"mlx5_{8 + number}": "virtual function" for number in range(34)}
    return Layout(Machine(gpus(EIGHT_BUSES), tuple(nics)), ROCE, _hcas(numbers), ONE_TO_ONE, excluded)


def l12_all_equal() -> Layout:
    """PCIe cards: four GPUs and all NICs of a socket below one switch; most devices are virtual functions."""
    found, nics = [], []
    for socket, bus in enumerate((0x10, 0x80)):
        found += [Gpu(below_switch(bus, bus + 10 + slot, 1 + slot), socket) for slot in range(4)]
    places = {
        1: (0x10, 0),
        3: (0x10, 1),
        4: (0x10, 2),
        5: (0x10, 3),
        0: (0x80, 0),
        2: (0x80, 1),
        6: (0x80, 2),
        7: (0x80, 3),
    }
    for number in range(8):
        bus, part = places[number]
        steps = below_switch(bus, bus + 14, 6)
        steps = (*steps[:-1], f"{steps[-1].rsplit(':', 1)[0]}:00.{part}")
        netdev, card = f"ens{number}", f"b8ce:f603:00{bus:02x}:0003"
        nic = Nic(f"mlx5_{number}", steps, bus // 0x80, 200, hca_type="MT4123", netdev=netdev, card=card, vf=part > 0)
        nics.append(replace(nic, addresses=(f"10.40.0.{number + 1}/24",)))
    excluded = {f"mlx5_{number}": "virtual function" for number in (2, 3, 4, 5, 6, 7)}
    rails = ((0, 1, 2, 3), (4, 5, 6, 7))
    machine = Machine(tuple(found), tuple(nics), gpu_name="NVIDIA A100-PCIE-40GB")
    return Layout(machine, ROCE, ("mlx5_1", "mlx5_0"), rails, excluded)


LAYOUTS: dict[str, Callable[[], Layout]] = {
    name.split("_")[0] + name[3:].replace("_", "-"): make
    for name, make in list(globals().items())
    if name.startswith("l") and name[1:3].isdigit()
}
