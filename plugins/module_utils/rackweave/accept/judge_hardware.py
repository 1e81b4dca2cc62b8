"""Verdicts on what the hardware says of itself: PCIe links, NVLink lanes, the DCGM diagnostic."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import ParseError
from ..hardware.node import NodeDocument
from .bars import nvlink_bar
from .figures import Link, NodeFigures
from .report import FAIL, NOT_HERE, PASS, TestResult
from .tool_output import active_nvlinks, dcgm_diagnostic


def judge_links(node: NodeFigures, warm: Mapping[str, Link]) -> TestResult:
    """Judge PCIe width and speed of GPUs and network cards.

    Args:
        node: links as they were before traffic.
        warm: links right after the all-reduce; only these say how fast a GPU's link is, for it is slow while idle.
    """
    if not node.links:
        return TestResult("pcie-links", NOT_HERE, reason="no GPU or network card with a PCI address")
    faults = []
    for bdf, link in sorted(node.links.items()):
        if link.width < link.max_width:
            faults.append(f"{bdf} has {link.width} of {link.max_width} lanes")
        speeds = [link.speed] + ([warm[bdf].speed] if bdf in warm else [])
        if bdf in warm and max(speeds) < link.max_speed:
            faults.append(f"{bdf} runs at {max(speeds):g} of {link.max_speed:g} GT/s under load")
    note = "" if warm else "; speed not judged: nothing was measured under load"
    source = f"what each device of {len(node.links)} can do, by the kernel{note}"
    return TestResult("pcie-links", FAIL if faults else PASS, float(len(faults)), 0.0, source, "; ".join(faults))


def judge_nvlinks(node: NodeFigures, document: NodeDocument) -> TestResult:
    """Judge how many NVLinks of each GPU are active."""
    name = document.gpus[0].name if document.gpus else None
    bar = nvlink_bar(name)
    if node.nvlink is None:
        return TestResult("nvlink-lanes", NOT_HERE, reason=node.errors.get("nvlink", "nvidia-smi is not on the node"))
    try:
        active = active_nvlinks(node.nvlink.text)
    except ParseError as error:
        return TestResult("nvlink-lanes", FAIL, reason=str(error))
    fewest = min(active.values())
    if bar is None:
        reason = f"how many links a {name or 'GPU'} has is not known"
        return TestResult("nvlink-lanes", NOT_HERE, float(fewest), reason=reason)
    missing = [f"GPU {gpu} has {count}" for gpu, count in active.items() if not bar.holds(count)]
    if len(active) < len(document.gpus):
        missing.append(f"nvidia-smi names {len(active)} of {len(document.gpus)} GPUs")
    verdict = FAIL if missing else PASS
    return TestResult("nvlink-lanes", verdict, float(fewest), bar.value, bar.source, "; ".join(missing))


def judge_dcgm(node: NodeFigures, level: int) -> TestResult:
    """Judge the diagnostic of DCGM."""
    if level == 0:
        return TestResult("dcgm-diagnostic", NOT_HERE, reason="switched off (acceptance_dcgm_level is 0)")
    if node.dcgm is None:
        return TestResult("dcgm-diagnostic", NOT_HERE, reason=node.errors.get("dcgm", "dcgmi is not on the node"))
    try:
        found = dcgm_diagnostic(node.dcgm.text)
    except ParseError as error:
        return TestResult("dcgm-diagnostic", FAIL, reason=f"exit status {node.dcgm.code}: {error}")
    reason = "; ".join(found.failed)
    if not found.failed and node.dcgm.code != 0:
        reason = f"no test failed, but dcgmi ended with status {node.dcgm.code}"
    verdict = FAIL if reason else PASS
    return TestResult(
        "dcgm-diagnostic", verdict, float(len(found.failed)), 0.0, f"dcgmi diag, run level {level}", reason,
        {"passed": found.passed},
    )  # fmt: skip
