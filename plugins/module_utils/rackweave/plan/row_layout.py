"""How a published measurement was laid out and with what software, read and inferred from its row."""

from __future__ import annotations

import re

from ..errors import PlanError
from .architecture import Architecture
from .machine import Software
from .ranks import ParallelSizes
from .row_cells import Cells, UnscorableRow
from .rules import Layout
from .software import FLAT

_PRECISIONS = {
    "bf16": "bf16",
    "amp_bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "fp8-cs": "fp8",
    "fp8-tensorwise": "fp8",
    "fp8-rowwise": "bf16",  # accumulated in full precision, tensor cores run 8 bit at half rate: as fast as bf16
    "mxfp8": "mxfp8",
    "fp8-mx": "mxfp8",
    "nvfp4": "nvfp4",
}
_UNSTATED_COPIES = 32
_ZERO_BUCKETS = 2 * 2 * 5e8  # DeepSpeed's default reduce and gather buckets of 5e8 elements, two bytes each


def read_layout(row: Cells, model: Architecture) -> tuple[Layout, int, bool]:
    """Return the layout, the number of GPUs, and whether that number is stated."""
    tensor, pipeline = row.needed("tp"), row.whole("pp") or 1
    context, expert = row.whole("cp") or 1, row.whole("ep") or 1
    inner = tensor * pipeline * context
    gpus, data = row.whole("gpus"), row.whole("dp")
    stated = gpus is not None or data is not None
    if gpus is None:
        gpus = row.infer("gpus", inner * (data or _UNSTATED_COPIES))
    if data is None or data * inner != gpus:
        if gpus % inner:
            raise UnscorableRow("the parallel sizes of the source do not divide its number of GPUs")
        data = row.infer("dp", gpus // inner)
    batch = row.needed("global_batch")
    micro = row.whole("micro_batch")
    if micro is None:
        micro = row.infer("micro_batch", _usual_micro_batch(batch // data, pipeline, model.sequence_length))
    virtual = row.whole("vp") or _virtual_size(row, model, pipeline)
    precision = _PRECISIONS.get(row.text("precision"))
    if precision is None:
        raise PlanError(f"row {row.label}: precision={row.text('precision')!r} is not one of {', '.join(_PRECISIONS)}")
    layout = Layout(
        sizes=ParallelSizes(tensor, pipeline, data, virtual, context, expert),
        micro_batch_size=micro,
        global_batch_size=batch,
        zero_stage=_zero_stage(row),
        sequence_parallel=tensor > 1 and _sequence_parallel(row),
        recompute=_recompute(row),
        precision=precision,
        engine=_engine(row, pipeline),
    )
    return layout, gpus, stated


def _usual_micro_batch(per_rank: int, pipeline: int, sequence: int) -> int:
    """Return 1 with a pipeline, which then has most micro-batches, and without one up to 4 or 16,384 tokens."""
    if pipeline > 1:
        return 1
    return max(size for size in (1, 2, 4) if size == 1 or (per_rank % size == 0 and size * sequence <= 16384))


def _virtual_size(row: Cells, model: Architecture, pipeline: int) -> int:
    """Return 1, or where chunks must have been used but are not stated, up to 8 of equal length."""
    notes = row.text("notes")
    unstated = bool(re.search(r"\bvp\b[^.;]*\bnot\b", notes))
    # Deep pipelines of fused software are interleaved unless the source says 1F1B.
    deep = pipeline >= 8 and not _is_old(row) and "1F1B" not in notes
    if pipeline == 1 or not (unstated or deep):
        return 1
    per_stage = -(-model.num_layers // pipeline)
    chunks = max(size for size in range(1, 9) if per_stage % size == 0)
    return row.infer("vp", chunks if chunks > 1 else per_stage)


def _zero_stage(row: Cells) -> int:
    text = row.text("zero")
    stages = {"": 0, "0": 0, "1": 1, "2": 2, "3": 3, "distopt": 1, "fsdp-2": 2, "fsdp-3": 3}
    if text not in stages:
        raise PlanError(f"row {row.label}: zero={text!r} is not one of {', '.join(sorted(stages)[1:])}")
    if not text:
        row.inferred.append("zero")
    return stages[text]


def _engine(row: Cells, pipeline: int) -> str:
    """Return the engine: ZeRO by number with a pipeline is DeepSpeed's, as with Megatron-DeepSpeed."""
    if is_ours(row):
        return "flat"
    if _is_sharded(row) or row.text("zero") == "fsdp-2":
        return "fsdp"
    return "deepspeed-pipeline" if row.text("zero") == "1" and pipeline > 1 else "megatron"


def _is_sharded(row: Cells) -> bool:
    return row.text("zero") in ("3", "fsdp-3")


def _sequence_parallel(row: Cells) -> bool:
    text = row.text("sp")
    if not text:
        row.inferred.append("sp")
        return not _is_old(row)
    if text not in ("0", "1"):
        raise PlanError(f"row {row.label}: sp={text!r} is not 0 or 1")
    return text == "1"


def _recompute(row: Cells) -> str:
    text = row.text("recompute")
    if not text:
        row.inferred.append("recompute")
        return "auto"
    kind = text.split("(")[0]
    if kind not in ("none", "selective", "full"):
        raise PlanError(f"row {row.label}: recompute={text!r} is not one of none, selective, full")
    return kind


def _is_old(row: Cells) -> bool:
    """Return whether the software is of the time before fused attention.

    The rule: fp16, or bf16 with full recomputation under Megatron-DeepSpeed (ZeRO stage 0 or 1 by number).
    """
    if is_ours(row):
        return False
    if row.text("precision") == "fp16":
        return True
    return row.text("precision") == "bf16" and row.text("zero") in ("0", "1") and row.text("recompute") == "full"


def is_ours(row: Cells) -> bool:
    """Return whether the trainer's own bench measured a row: on its flat engine."""
    return row.text("source").startswith("trainer.bench")


def read_software(row: Cells, layout: Layout) -> Software:
    notes, old = row.text("notes"), _is_old(row)
    if layout.engine == "flat":
        return FLAT
    recipe = layout.precision in ("fp8", "mxfp8", "nvfp4") and layout.engine == "megatron"
    overlapped = bool(re.search(r"TP comm overlap|[Aa]sync ?TP", notes))
    sharded = row.text("zero") == "3" and not old
    return Software(
        flash_attention=not old,
        overlap=not old and "overlap off" not in notes,
        tensor_overlap=layout.sequence_parallel and (recipe or overlapped),
        native_attention=not sharded,
        gradient_bytes=2 if layout.precision == "fp16" else 6 if old else 4,
        reduce_bytes=2 if layout.precision == "fp16" or "mode PURE" in notes else 4,
        loss_bytes=_loss_bytes(notes, sharded),
        fp32_weights=sharded,
        bucket_bytes=_ZERO_BUCKETS if layout.engine == "deepspeed-pipeline" else 0.0,
        trains="adapters" if re.search(r"task[= ]LoRA", notes) else "all",
    )


def _loss_bytes(notes: str, sharded: bool) -> int:
    """Return bytes per logit: Composer's and a wholly compiled loss keep 16 bit, plain torch several fp32 copies."""
    if sharded:
        return 4 if "MP mode" in notes or "torch.compile" in notes else 14
    return 2 if "CE fusion" in notes else 6
