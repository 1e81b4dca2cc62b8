"""Slowness that a tool reports in words or numbers; series of step times are a scene (``watch.series``)."""

from __future__ import annotations

from ..signature import Signature as S

TABLE = (
    S(
        "perf.straggler/text",
        "perf.straggler",
        r"(?i)stragglers?[^|\n]{0,60}?\brank[s]?[ :=#]*\[?\{?(?P<rank>\d+)|\brank[ :=#]*(?P<rank2>\d+)"
        r"[^|\n]{0,60}?(?:is|as|was|identified as|detected as|flagged as)? ?(?:a |the )?straggler\b|"
        r"(?:slow(?:est)? rank)\b[^|\n\d]{0,30}(?P<rank3>\d+)(?![\d.]|\s?(?:m?s|x|%)\b)(?=.{0,60}(?:slower|behind|"
        r"\b(?:1\.[3-9]\d*|"
        r"[2-9]\d*(?:\.\d+)?|1\d+) ?x\b))|"
        r"\brank[ :=#]*(?P<rank4>\d+) is (?:the )?(?:slow(?:est)?\b|lagging|far behind).{0,60}(?:slower|behind|"
        r"\b(?:1\.[3-9]\d*|[2-9]\d*(?:\.\d+)?|1\d+) ?x\b)",
        "WARNING:straggler: rank 12 is a straggler: forward 412 ms against a median of 201 ms",
        depth=83,
        unless=r"(?i)no stragglers?|0 stragglers|straggler[_-](?:detect|minmax|report|ctrlr)\w*\s*[=.:]|"
        r"straggler (?:detection|minmax|report interval)\s*[=.:]|stragglers?: \[\]|disabled|enabled",
    ),
    S(
        "perf.straggler/nemo",
        "perf.straggler",
        r"STRAGGLER DETECTION WARNING.*[Aa]ffected ranks?: \[?(?P<ranks>\d+(?:, ?\d+)*)",
        "[NeMo W 2026-08-02 03:11:07 straggler_det_callback:210] STRAGGLER DETECTION WARNING: Some GPUs have worse "
        "individual performance. Affected ranks: [3, 7]",
        depth=83,
    ),
    S(
        "perf.straggler/node",
        "perf.straggler",
        r"(?i)\bnode[ :=#]*(?P<host>[a-z][\w.-]*\d[\w.-]*)[^|\n]{0,40}straggler|stragglers?[^|\n]{0,30}node[s]?[ "
        r":=#]*\[?'?(?P<host2>[a-z][\w.-]*\d[\w.-]*)",
        "[2026-01-01 10:00:00] [WARNING] node host12 is a straggler (check took 41 s, median 12 s)",
        depth=83,
        unless=r"(?i)no stragglers?|0 stragglers|not a straggler",
    ),
    S(
        "perf.straggler/throttle",
        "perf.straggler",
        r"(?i)(?:HW|SW) (?:thermal |power brake )?slowdown\s*:\s*active\b|(?:gpu|clocks?)\b.{0,40}(?:thermal|"
        r"power)\w* throttl(?:ed|ing)",
        "host3:        HW Thermal Slowdown                        : Active",
        blame="both",
        depth=84,
        unless=r"(?i)not active|not throttl",
    ),
    S(
        "perf.slowdown/text",
        "perf.slowdown",
        r"(?i)throughput (?:has )?(?:dropped|degraded|fell)\b.{0,40}\d|(?:all ranks|every rank|step time|"
        r"iteration time)\b.{0,60}(?:slower than|[\d.]+x slower)|slowdown (?:was )?detected",
        "WARNING: throughput dropped from 412 to 201 TFLOP/s/GPU on all ranks",
        depth=84,
        unless=r"(?i)no slowdown|slowdown\s*:\s*(?:not )?active|rank \d+",
    ),
    S(
        "fact:step_time",
        "fact:step_time",
        r"(?i)\b(?:iteration|step)[ _]time\b.{0,20}\b(?:rose|grew|went(?: up)?|increased|jumped|climbed) from "
        r"(?P<was>[\d.]+) ?m?s\b"
        r".{0,12}\bto (?P<is>[\d.]+) ?m?s\b",
        "WARN iteration time rose from 5.1 s to 9.8 s on every rank after step 7000",
    ),
)
