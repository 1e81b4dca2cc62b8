"""Grammar of NCCL_IB_HCA and NCCL_SOCKET_IFNAME, as NCCL reads them.

``[^][=]name[:port[:rail[:plane]]],...``: a leading ``^`` excludes, a following ``=`` asks for the exact name. Without
``=`` a name is a prefix, so ``mlx5_1`` also takes mlx5_10 to mlx5_19. Both marks count once, at the very start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..errors import FabricError

MAX_DEVICES = 32
LIST_VARIABLES = ("NCCL_IB_HCA", "NCCL_SOCKET_IFNAME")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]*")


@dataclass(frozen=True)
class HcaEntry:
    """One device of a list; `port` None is any port; rail and plane exist from NCCL 2.30 on."""

    name: str
    port: int | None = None
    rail: int | None = None
    plane: int | None = None

    def text(self) -> str:
        numbers = [self.port, self.rail, self.plane]
        while numbers and numbers[-1] is None:
            numbers.pop()
        return ":".join([self.name, *("" if number is None else str(number) for number in numbers)])


@dataclass(frozen=True)
class HcaList:
    """A whole value. No entries: every device, or (as NCCL reads it) none excluded."""

    entries: tuple[HcaEntry, ...]
    exact: bool = False
    exclude: bool = False

    def text(self) -> str:
        """Return the value as NCCL reads it."""
        marks = ("^" if self.exclude else "") + ("=" if self.exact else "")
        return marks + ",".join(entry.text() for entry in self.entries)

    def selects(self, device: str, port: int = 1) -> bool:
        """Say whether NCCL would use a port of a device with this value."""
        if not self.entries:
            return True
        named = any(self._names(entry, device) and entry.port in (None, port) for entry in self.entries)
        return named != self.exclude

    def _names(self, entry: HcaEntry, device: str) -> bool:
        return device == entry.name if self.exact else device.startswith(entry.name)


def parse_hca_list(text: str, variable: str = "NCCL_IB_HCA") -> HcaList:
    """Read a value.

    Raises:
        FabricError: for marks in the wrong place (with the corrected form), empty or doubled names, white space,
            numbers that are none, or more devices than NCCL takes.
    """
    check_exclusion_syntax({variable: text})
    rest = text
    exclude = rest.startswith("^")
    rest = rest[1:] if exclude else rest
    exact = rest.startswith("=")
    rest = rest[1:] if exact else rest
    if not rest:
        if text:
            raise FabricError(f"{variable}={text!r} names no device")
        return HcaList(())
    entries = tuple(_entry(word, text, variable) for word in rest.split(","))
    if len(entries) > MAX_DEVICES:
        raise FabricError(f"{variable}={text!r} names {len(entries)} devices; NCCL reads {MAX_DEVICES}")
    seen = [(entry.name, entry.port) for entry in entries]
    twice = sorted({name for name, port in seen if seen.count((name, port)) > 1})
    if twice:
        raise FabricError(f"{variable}={text!r} names {', '.join(twice)} twice: was a name cut off?")
    return HcaList(entries, exact, exclude)


def _entry(word: str, text: str, variable: str) -> HcaEntry:
    name, *numbers = word.split(":")
    if not _NAME.fullmatch(name):
        raise FabricError(f"{variable}={text!r}: {name!r} is no device name")
    if len(numbers) > 3 or not all(number == "" or (number.isascii() and number.isdigit()) for number in numbers):
        raise FabricError(f"{variable}={text!r}: {word!r} is not name[:port[:rail[:plane]]]")
    if numbers and numbers[-1] == "":
        raise FabricError(f"{variable}={text!r}: {word!r} ends in a colon")
    values: list[int | None] = [int(number) if number else None for number in numbers]
    port, rail, plane = (values + [None] * 3)[:3]
    return HcaEntry(name, port, rail, plane)


def check_exclusion_syntax(variables: Mapping[str, str]) -> None:
    """Refuse marks that NCCL would read as part of a name.

    Raises:
        FabricError: with the form that was meant.
    """
    for variable in LIST_VARIABLES:
        text = variables.get(variable, "")
        if not re.search(r"(?<=.)\^|,=|[^^]=", text) and not text.startswith("=="):
            continue
        exclude = "^" if "^" in text else ""
        exact = "=" if "=" in text else ""
        corrected = exclude + exact + re.sub(r"[\^=\s]", "", text)
        raise FabricError(
            f"{variable}={text!r}: ^ and = count only at the very start, in this order; NCCL would read them as "
            f"part of a name. Write {corrected!r}"
        )


def check_devices(value: HcaList, devices: Iterable[str], variable: str = "NCCL_IB_HCA") -> None:
    """Refuse a list with a name that no device of the node has (a cut ``mlx5_1`` of ``mlx5_12`` looks valid).

    Raises:
        FabricError: naming the missing devices and those there are.
    """
    present = list(devices)
    missing = [entry.name for entry in value.entries if not _present(entry.name, value.exact, present)]
    if missing:
        raise FabricError(
            f"{variable}={value.text()!r}: the node has no {', '.join(missing)}; it has {', '.join(present) or 'none'}"
        )


def _present(name: str, exact: bool, devices: list[str]) -> bool:
    return any(device == name if exact else device.startswith(name) for device in devices)
