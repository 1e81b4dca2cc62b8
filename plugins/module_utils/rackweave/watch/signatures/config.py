"""Sizes and settings that frameworks refuse: no retry can help."""

from __future__ import annotations

from ..signature import Signature as S

TABLE = (
    S(
        "config.world_size/divide",
        "config.world_size",
        r"(?i)\bworld[_ ]size\b ?[(:=]?\s*\d*\)?.{0,40}(?:is not|not|must be|should be|isn't) (?:be )?(?:evenly "
        r")?(?:divisible|a multiple|divided)|invalid parallel dims|"
        r"(?:number of (?:GPUs|ranks|processes))\b.{0,40}(?:not|must be) (?:evenly )?(?:divisible|a multiple)"
        r"|(?:tp|pp|tensor|pipeline|parallel)\b.{0,80}(?:does not|doesn't|must|should) (?:equal|match|"
        r"divide)\b.{0,30}\bworld[_ ]size|\bworld[_ ]size\b.{0,40}\b(?:!=|does not (?:equal|match))\b.{0,60}(?:tp|"
        r"pp|dp|tensor|pipeline|parallel)",
        "RuntimeError: world_size (60) is not divisible by 16",
        depth=18,
        unless=r"(?i)batch",
    ),
    S(
        "config.batch_size/divide",
        "config.batch_size",
        r"(?i)check batch related parameters|(?:global|train|micro|mini)[_ -]?batch[_ -]?size\b.{0,120}(?:not|"
        r"must be|should be|isn't) (?:be )?(?:evenly )?(?:divisible|(?:a )?multiple|equal)|train_batch_size "
        r"is not equal|number of micro-?batch\w*.{0,60}(?:not|must be|should be|isn't) (?:divisible|(?:a "
        r")?multiple|at least|greater)|"
        r"\bbatch[_ -]?sizes?\b.{0,160}\b(?:do(?:es)?(?: not|n't) (?:evenly )?(?:divide|match|equal)|cannot be "
        r"(?:evenly )?divided)\b|"
        r"(?:not|must be|should be) (?:evenly )?(?:divisible|a multiple)\b.{0,80}\bbatch[_ -]?size\b|"
        r"(?:batch[_ -]size)\b.{0,60}\b(?:less|smaller) than\b.{0,40}(?:data.parallel|dp|world)",
        "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
        "gradient_acc_step * world_size 256 != 4 * 8 * 7",
        depth=18,
    ),
    S(
        "config.zero_pipeline/deepspeed",
        "config.zero_pipeline",
        r"(?i)\bzero(?:[-_ .]?(?:stage|optimization))*[- =:]*[23]?\b.{0,60}(?:incompatible|not compatible|"
        r"not supported|cannot be (?:used|combined)|unsupported|does not work|doesn't support|can only "
        r"be used)\b.{0,60}pipeline|pipeline\b.{0,80}(?:incompatible|not compatible|not supported|cannot "
        r"be (?:used|combined)|unsupported|does not support|only supports?)\b.{0,60}zero",
        "AssertionError: ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism",
        depth=17,
    ),
)
