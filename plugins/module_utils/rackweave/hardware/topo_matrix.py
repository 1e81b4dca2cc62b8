"""``nvidia-smi topo -m``: the matrix of distances, in the formats of old and new drivers.

Only tab-separated output is read. A copy aligned with spaces is refused: neighbouring cells fuse (``NODENODE``) and
empty cells vanish, so its columns can only be guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ParseError
from .text import excerpt, whole_lines

TOOL = "nvidia-smi topo -m"
_CELL = re.compile(r"X|SYS|NODE|PHB|PXB|PIX|NV\d+|C2C|SOC|PSB|N/A")
_GPU = re.compile(r"GPU\d+")
_AFFINITY_COLUMNS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
_LIST = re.compile(r"(\d+(-\d+)?)(,\d+(-\d+)?)*|N/A|")


@dataclass(frozen=True)
class TopoMatrix:
    """`cells[row][column]` by device name; `nic_devices` maps NIC0 to an RDMA device (itself, in the old format)."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...]
    cells: dict[str, dict[str, str]]
    cpu_affinity: dict[str, str | None]
    numa_affinity: dict[str, str | None]
    nic_devices: dict[str, str]


def parse_topo_matrix(text: str) -> TopoMatrix:
    """Read the matrix.

    Raises:
        ParseError: if the text is aligned with spaces, cut, or not the matrix at all.
    """
    lines = whole_lines(text, TOOL)
    at, header = _header(lines)
    devices = [name for name in header if name not in _AFFINITY_COLUMNS]
    _check_header(header, devices)
    rows = [line.split("\t") for line in lines[at + 1 : at + 1 + len(devices)]]
    if [_trim(row[0]) for row in rows] != devices:
        raise ParseError(f"{TOOL}: the rows are not those of the header ({', '.join(devices)}): cut or interleaved?")
    cells = {row[0].strip(): _cells(row, devices) for row in rows}
    _check_symmetry(cells)
    gpus = tuple(name for name in devices if _GPU.fullmatch(name))
    nics = tuple(name for name in devices if name not in gpus)
    affinities = {row[0].strip(): _affinities(row, len(devices), header) for row in rows}
    return TopoMatrix(
        gpus,
        nics,
        cells,
        {gpu: affinities[gpu].get("CPU Affinity") for gpu in gpus},
        {gpu: affinities[gpu].get("NUMA Affinity") for gpu in gpus},
        _nic_devices(lines[at + 1 + len(devices) :], nics),
    )


def _header(lines: list[str]) -> tuple[int, list[str]]:
    for at, line in enumerate(lines):
        cells = [_trim(cell) for cell in line.split("\t")]
        if len(cells) > 1 and cells[0] == "" and cells[1] == "GPU0":
            return at, [cell for cell in cells[1:] if cell]
        if line.split()[:1] == ["GPU0"] and "X" not in line.split():
            raise ParseError(
                f"{TOOL}: {excerpt(line)} is aligned with spaces; record the output in a file, not a screen"
            )
    raise ParseError(f"{TOOL}: no header line with GPU0 in {excerpt(lines[0])}")


def _check_header(header: list[str], devices: list[str]) -> None:
    if len(set(header)) != len(header):
        raise ParseError(f"{TOOL}: the header names a column twice: {', '.join(header)}")
    strange = [name for name in devices if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", name)]
    if strange:
        raise ParseError(f"{TOOL}: fused or unknown column(s) in the header: {', '.join(map(excerpt, strange))}")
    if [name for name in header if name in _AFFINITY_COLUMNS] != header[len(devices) :]:
        raise ParseError(f"{TOOL}: affinity columns stand between the devices")
    numbers = [int(name[3:]) for name in devices if _GPU.fullmatch(name)]
    if numbers != list(range(len(numbers))):
        raise ParseError(f"{TOOL}: the GPUs in the header are not numbered from 0 without a gap")
    if "CPU Affinity" not in header:
        raise ParseError(f"{TOOL}: the header has no column 'CPU Affinity': cut?")


def _cells(row: list[str], devices: list[str]) -> dict[str, str]:
    name = _trim(row[0])
    values = [_trim(cell) for cell in row[1 : 1 + len(devices)]]
    if len(values) != len(devices):
        raise ParseError(f"{TOOL}: row {name} has {len(values)} cells for {len(devices)} devices")
    for column, value in zip(devices, values):
        if not _CELL.fullmatch(value):
            raise ParseError(f"{TOOL}: row {name}, column {column}: {excerpt(value)} is no distance (fused columns?)")
        if (value == "X") != (name == column):
            raise ParseError(f"{TOOL}: row {name}, column {column} is {value}: the diagonal does not fit")
    return dict(zip(devices, values))


def _check_symmetry(cells: dict[str, dict[str, str]]) -> None:
    for row, values in cells.items():
        for column, value in values.items():
            if cells[column][row] != value:
                raise ParseError(f"{TOOL}: {row}-{column} is {value} but {column}-{row} is {cells[column][row]}")


def _affinities(row: list[str], devices: int, header: list[str]) -> dict[str, str | None]:
    # Empty cells are dropped first: newer drivers print two tabs before 'GPU NUMA ID'.
    name = _trim(row[0])
    values = [cell for cell in map(_trim, row[1 + devices :]) if cell]
    columns = header[devices:]
    if not _GPU.fullmatch(name):
        return {}
    if values == ["N/A"] and len(row) - 1 - devices >= len(columns):
        return {}  # virtual machines: nothing but 'GPU NUMA ID' is filled
    if len(values) > len(columns) or (values and not all(_LIST.fullmatch(value) for value in values)):
        raise ParseError(f"{TOOL}: row {name}: affinity {excerpt(' '.join(values))} does not fit {', '.join(columns)}")
    if values and len(values) < len(columns):
        raise ParseError(f"{TOOL}: row {name} has {len(values)} of {len(columns)} affinity cells: cut?")
    return {column: None if value == "N/A" else value for column, value in zip(columns, values)}


def _nic_devices(lines: list[str], nics: tuple[str, ...]) -> dict[str, str]:
    if not any(line.strip() == "Legend:" for line in lines):
        raise ParseError(f"{TOOL}: no legend after the matrix: cut?")
    numbered = [nic for nic in nics if re.fullmatch(r"NIC\d+", nic)]
    found = {nic: nic for nic in nics if nic not in numbered}
    for line in lines:
        match = re.fullmatch(r"\s*(NIC\d+): (\S+)\s*", line)
        if match:
            found[match[1]] = match[2]
    if set(found) != set(nics):
        missing = sorted(set(nics) ^ set(found))
        raise ParseError(f"{TOOL}: the NIC legend does not fit the columns ({', '.join(missing)}): cut?")
    if len(set(found.values())) != len(found):
        raise ParseError(f"{TOOL}: the NIC legend names a device twice")
    return found


def _trim(cell: str) -> str:
    return cell.strip(" ")
