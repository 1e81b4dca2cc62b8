"""Output of the tools that acceptance runs on nodes: `ib_write_bw`, `nvidia-smi nvlink`, `dcgmi diag`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ..errors import ParseError

_GPU_LINE = re.compile(r"^GPU (\d+):")
_LINK_LINE = re.compile(r"^\s*Link (\d+):\s*(.+?)\s*$")
_FAILED = ("fail", "failed", "error")
# Work completion status 12 is IBV_WC_RETRY_EXC_ERR: the peer never acknowledged.
_UNANSWERED = re.compile(r"failed status 12\b|transport retry counter exceeded", re.IGNORECASE)
_WAY_TO_PEER = (
    "; the peer never acknowledged: over RoCE v2, look for a filter of UDP port 4791, a smaller MTU, missing routes or "
    "access lists between the two rails' addresses (version 1 may pass there, and is no way out: it has neither "
    "routing nor ECN)"
)


def write_bandwidth_gbps(text: str) -> float:
    """Return the average bandwidth that ``ib_write_bw --report_gbits`` printed, in Gb/s.

    Raises:
        ParseError: if there is no row of results, or its unit is another one.
    """
    lines = text.splitlines()
    heads = [number for number, line in enumerate(lines) if "BW average" in line]
    if not heads:
        raise ParseError(f"ib_write_bw printed no table: {_last_line(text)!r}")
    if "BW average[Gb/sec]" not in lines[heads[-1]]:
        raise ParseError("ib_write_bw printed another unit than Gb/sec; it needs --report_gbits")
    for line in lines[heads[-1] + 1 :]:
        words = line.split()
        if len(words) >= 4 and words[0].isdigit() and re.fullmatch(r"\d+(\.\d+)?", words[3]):
            return float(words[3])
    hint = _WAY_TO_PEER if _UNANSWERED.search(text) else ""
    raise ParseError(f"ib_write_bw printed no row below its heading: {_last_line(text)!r}{hint}")


def active_nvlinks(text: str) -> dict[int, int]:
    """Return GPU index to the number of active links, of ``nvidia-smi nvlink --status``.

    Raises:
        ParseError: if the text names no GPU.
    """
    found: dict[int, int] = {}
    gpu = -1
    for line in text.splitlines():
        head, link = _GPU_LINE.match(line.strip()), _LINK_LINE.match(line)
        if head:
            gpu = int(head.group(1))
            found[gpu] = 0
        elif link and gpu >= 0 and re.match(r"\d", link.group(2)):
            found[gpu] += 1
    if not found:
        raise ParseError(f"nvidia-smi nvlink --status named no GPU: {_last_line(text)!r}")
    return found


@dataclass(frozen=True)
class Diagnostic:
    """What ``dcgmi diag -j`` found: how many tests passed, and the names of those that failed, with the entity."""

    passed: int
    failed: tuple[str, ...]


def dcgm_diagnostic(text: str) -> Diagnostic:
    """Read the JSON of ``dcgmi diag -j`` (DCGM 2 to 4).

    Raises:
        ParseError: if it holds no results.
    """
    start = text.find("{")
    try:
        content = json.loads(text[start:]) if start >= 0 else None
    except (ValueError, RecursionError) as error:
        raise ParseError(f"dcgmi diag printed no JSON: {_last_line(text)!r}") from error
    tests = list(_tests(content))
    statuses = [pair for test in tests for pair in _statuses(test)]
    if not statuses:
        raise ParseError(f"dcgmi diag reported no test: {_last_line(text)!r}")
    failed = tuple(name for name, status in statuses if status in _FAILED)
    return Diagnostic(sum(status == "pass" for _, status in statuses), failed)


def _tests(value: object) -> Iterator[Mapping[str, object]]:
    """Yield every test below any list of categories; the name of the outermost key differs between versions."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "tests" and isinstance(item, list):
                yield from (test for test in item if isinstance(test, Mapping))
            else:
                yield from _tests(item)
    elif isinstance(value, list):
        for item in value:
            yield from _tests(item)


def _statuses(test: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    results = test.get("results")
    for result in results if isinstance(results, list) else []:
        if not isinstance(result, Mapping):
            continue
        entity = result.get("gpu_id", result.get("entity_id", result.get("gpu_ids", "")))
        name = str(test.get("name", "test"))
        yield (f"{name} on {entity}" if entity != "" else name), str(result.get("status", "")).lower()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else ""
