"""Numerical trouble that a program reports in words; series of losses are a scene (``watch.series``)."""

from __future__ import annotations

from ..signature import Signature as S

TABLE = (
    S(
        "num.sdc_persistent/megatron",
        "num.sdc_persistent",
        r"Rank (?P<rank>\d+), node (?P<host>[\w.-]+), device \d+.*(?:Possible persistent error|not reproducible "
        r"on a different GPU)|"
        r"Possible persistent error!|not reproducible on a different GPU",
        "ERROR:megatron.core.rerun_state_machine:Rank 3, node host1, device 3, iteration #3021: Possible "
        "persistent error!",
        depth=17,
    ),
    S(
        "num.sdc_suspect/megatron",
        "num.sdc_suspect",
        r"Rank (?P<rank>\d+), node (?P<host>[\w.-]+), device \d+.*(?:Possible transient error|reproducible "
        r"within the tolerance|rerun on a different GPU)|"
        r"rank (?P<rank2>\d+) on node (?P<host2>[\w.-]+):.*(?:possible transient error|GPU for disambiguation)|"
        r"Possible transient error!|First rerun: unexpected result is (?:not )?reproducible|Need to rerun "
        r"on a different GPU",
        "ERROR:megatron.core.rerun_state_machine:Rank 3, node host1, device 3, iteration #3021: Possible "
        "transient error!",
        depth=18,
    ),
    S(
        "fact:rerun_agrees",
        "fact:rerun_agrees",
        r"unexpected result is reproducible on a different GPU|Correct result \(but possible Application error\)",
        "WARNING:megatron.core.rerun_state_machine:Second rerun: unexpected result is reproducible on a different GPU, "
        "therefore it was likely correct (nan = nan)",
    ),
    S(
        "fact:rerun_same_gpu",
        "fact:rerun_same_gpu",
        r"Got rescheduled on the same GPU.*\(node: (?P<host>[\w.-]+), gpu: \d+\)",
        "ERROR:megatron.core.rerun_state_machine:Got rescheduled on the same GPU. Need to resume again from the same "
        "checkpoint (node: host1, gpu: 3)",
    ),
    S(
        "num.sdc_persistent/other",
        "num.sdc_persistent",
        r"(?i)\b(?:persistent|repeatable|reproducible|permanent)\b.{0,24}\b(?:corruption|SDC|miscomput\w+|wrong "
        r"results?)\b|"
        r"\b(?:wrong|incorrect|bad|mismatch\w*) (?:checksum|result|hash)\w*.{0,40}\b(?:every time|all \d+|(?:in "
        r")?(?P<n>\d+) (?:of|/) (?P=n))\b",
        "[rank5]: ERROR persistent data corruption on GPU 5: wrong result in 5 of 5 runs",
        blame="both",
        depth=17,
        unless=r"(?i)\bno (?:persistent|SDC|silent)|not detected",
    ),
    S(
        "num.sdc_suspect/other",
        "num.sdc_suspect",
        r"(?i)silent data corruption (?:suspected|detected|found)|\bSDC (?:suspected|detected)|(?:gradient|"
        r"parameter|weight|replica)\w* (?:checksum|hash)(?:es)? (?:mismatch|differ)",
        "[rank5]: ERROR silent data corruption suspected: gradient checksum mismatch across data-parallel replicas",
        blame="both",
        depth=18,
        unless=r"(?i)no (?:silent data corruption|SDC)|not detected",
    ),
    S(
        "num.nan/megatron",
        "num.nan",
        r"[Rr]ank (?P<rank>\d+), node (?P<host>[\w.-]+), device \d+.{0,40}Unexpected result (?:nan|-?inf)\b",
        "RuntimeError: Rank 5, node host1, device 5, iteration #9: Unexpected result nan (message='found NaN in "
        "local "
        "forward loss calculation')",
        depth=20,
        unless=r"rerun_state_machine:Unexpecte",
    ),
    S(
        "num.nan/text",
        "num.nan",
        r"found (?:NaN|Inf)(?: or Inf)? in (?:local )?(?:grad|forward loss|loss)|(?i:\bloss\b(?: \S+){0,4} (?:is|"
        r"became|"
        r"was|turned|has become|diverged to)(?: now)?:? \(?(?:nan|inf))|"
        r"(?i:\b(?:loss|gradient norm) of step \d+ is -?(?:nan|inf)\b)|"
        r"returned nan values in its \d+th output|(?i:\b(?:nan|inf)(?:/inf)? (?:loss|gradients?|grad norm)"
        r"(?: (?:was |were |is )?(?:detected|encountered|found))?\b)|"
        r"(?i:(?:loss|grad(?:ient)?s?(?: norm)?) (?:contains?|is|are|has) (?:a )?(?:nan|inf|not finite|"
        r"non-finite))|(?i:non-?finite (?:loss|grad\w*)(?:.{0,20}(?:detected|stop|abort|:))?)",
        "AssertionError: Rank 5: found NaN in local grad norm for bucket #0 in backward pass before data-parallel "
        "communication",
        depth=21,
        unless=r"(?i)check[_ -]?for[_ -]?nan|nan iterations|no nan|nan_to_num|isnan|skip(?:ping|ped)? "
        r"(?:this )?(?:step|batch|update)|allow_nan|nan[_-]in[_-]loss|OVERFLOW!|rerun_state_machine:Unexpecte"
        r"d|abort_on_nan|detect_anomaly|=\s*(?:true|false)\b",
    ),
    S(
        "fact:nan_rank",
        "fact:nan_rank",
        r"(?:^|[: ])Rank (?P<rank>\d+): found (?:NaN|Inf)(?:.*node: (?P<host>[\w.-]+))?",
        "AssertionError: Rank 5: found NaN in local forward loss calculation. Device: 5, node: host3",
        blame="",
    ),
    S(
        "num.fp16_scale_exhausted/text",
        "num.fp16_scale_exhausted",
        r"[Cc]urrent loss scale already at minimum|Minimum loss scale reached|Loss scale .{0,30}(?:below|"
        r"reached).{0,20}minimum",
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.",
        depth=20,
    ),
    S(
        "num.loss_spike/text",
        "num.loss_spike",
        r"(?i)\bloss spike(?::| (?:was )?(?:detected|found|at|in)\b)|spike in (?:the )?loss|"
        r"spiky loss|unexpectedly large",
        "WARNING: loss spike detected at step 1200: 9.1 (mean 2.3)",
        depth=72,
        unless=r"(?i)no loss spike|correct result|likely correct|spike[_ -]?(?:detector|detection|factor|"
        r"threshold)|loss_spike\w*\s*[=.:]|spike: (?:no|0|off|false|disabled)",
    ),
)
