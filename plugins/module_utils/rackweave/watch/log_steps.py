"""Step records of a program that is not our trainer, read from what it prints; the wordings are those of `series`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from .prefix import YEARLESS, take_apart
from .series import Series

# A printed rate is not always tokens; only these words say so.
_TOKENS = re.compile(r"(?:tokens_per_second|tokens/s(?:ec)?|tps|wps)(?!/)[\"']?\s*[:=]?\s*(?P<rate>\d[\d,.]*)")


def step_records(lines: Iterable[str], after_step: int, time: str) -> list[dict[str, Any]]:
    """Return one ``step`` record for each step that the lines report beyond ``after_step``, in rising order.

    Args:
        lines: of one log, in its order.
        after_step: steps up to this one are known already.
        time: ISO 8601 time for lines that carry none of their own.
    """
    found: dict[int, dict[str, Any]] = {}
    for text in lines:
        series = Series()
        line = take_apart(text)
        if not series.feed(line) or not series.samples:
            continue
        sample = series.samples[-1]
        if sample.step is None or sample.step <= after_step:
            continue
        dated = line.time is not None and line.time.year != YEARLESS
        rate = _TOKENS.search(text)
        record = {
            "kind": "step",
            "rank": line.rank,
            "time": f"{line.time.isoformat()}+00:00" if dated and line.time else time,
            "step": sample.step,
            "loss": sample.loss,
            "grad_norm": sample.norm,
            "step_time_s": sample.seconds,
            "tokens_per_second": float(rate["rate"].replace(",", "").rstrip(".")) if rate else None,
        }
        found[sample.step] = {name: value for name, value in record.items() if value is not None}
    return [found[step] for step in sorted(found)]
