"""Why a layout was chosen: its predictions, what the next ones lose, and the tables that answer common questions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from .architecture import Architecture
from .fitted import RECORD
from .flops import CONVENTIONS, flops_per_token, model_flops_utilization
from .memory import GIB, stage_memory
from .ranks import ParallelSizes
from .rules import Layout, Place, refusals
from .search import Candidate, Search
from .searches import Searches
from .shapes import stage_layer_counts, stage_parameters

_MOST_STAGES = 128  # listed one by one

_PARTS = {
    "compute": "matrix products and kernels",
    "attention": "attention core",
    "tensor_traffic": "tensor-parallel traffic",
    "recompute": "recomputation",
    "bubble": "pipeline bubble",
    "pipeline_traffic": "pipeline messages",
    "data_traffic": "gradient and weight traffic",
    "optimizer": "optimizer step",
    "offload": "offloading",
    "overhead": "fixed overhead",
}


def describe(layout: Layout) -> str:
    """Return a layout in one short phrase."""
    sizes = layout.sizes
    words = [f"TP {sizes.tensor_parallel_size}", f"PP {sizes.pipeline_parallel_size}"]
    if sizes.virtual_pipeline_size > 1:
        words.append(f"VP {sizes.virtual_pipeline_size}")
    words.append(f"DP {sizes.data_parallel_size}")
    if sizes.context_parallel_size > 1:
        words.append(f"CP {sizes.context_parallel_size}")
    if sizes.expert_parallel_size > 1:
        words.append(f"EP {sizes.expert_parallel_size}")
    words.append(f"micro-batch {layout.micro_batch_size}, ZeRO {layout.zero_stage}, recompute {layout.recompute}")
    if layout.offload != "none":
        words.append(f"offload {layout.offload}")
    return " ".join(words[:-1]) + ", " + words[-1]


def prediction(search: Search, candidate: Candidate, factor: float = 1.0) -> dict[str, Any]:
    """Return the `prediction` object of plan.json: step time with a band, throughput and utilization.

    Args:
        search: for model and machine.
        candidate: the layout with its time.
        factor: measured over predicted time on this cluster, from calibration.
    """
    layout, model = candidate.layout, search.model
    seconds = candidate.time.total * factor
    world = layout.sizes.world_size
    tokens = layout.global_batch_size * model.sequence_length / seconds
    peak = search.machine.gpu.peak_flops_per_second(layout.precision)
    use = {
        name: round(model_flops_utilization(tokens / world, flops_per_token(model, name), peak), 4)
        for name in CONVENTIONS
    }
    hardware = use.pop("megatron-hardware") if layout.recompute == "full" else use["megatron-model"]
    use.pop("megatron-hardware", None)
    return {
        "origin": "predicted",
        "step_time_s": round(seconds, 4),
        "step_time_band_s": [round(seconds * RECORD["band_low"], 4), round(seconds * RECORD["band_high"], 4)],
        "tokens_per_second": round(tokens, 1),
        "tokens_per_second_per_gpu": round(tokens / world, 2),
        "mfu": use,
        "hfu": hardware,
        "components_s": {name: round(value * factor, 4) for name, value in vars(candidate.time).items()},
        "calibration_factor": factor if factor != 1.0 else None,
    }


def memory_object(search: Search, candidate: Candidate) -> dict[str, Any]:
    """Return the `memory` object of plan.json: the worst stage by component, all stages in short, and phases.

    The totals of the worst stage carry what calibration measured; components and stages are as predicted.
    """
    layout = candidate.layout
    last = layout.sizes.pipeline_parallel_size - 1
    stages = [
        stage_memory(search.model, layout, search.software, search.constants, stage)
        for stage in range(min(last + 1, _MOST_STAGES))
    ]
    worst, limit = candidate.memory, search.machine.memory_bytes
    measured = (search.memory_factor - 1.0) * worst.allocated
    totals = {
        "allocated_gib": worst.allocated,
        "reserved_gib": worst.reserved,
        "nvidia_smi_gib": worst.nvidia_smi,
        "needed_gib": worst.needed,
    }
    return {
        "origin": "predicted",
        "worst_stage": worst.stage,
        "limit_gib": round(limit / GIB, 2),
        **{name: value for name, value in worst.as_dict().items() if name not in ("stage", *totals)},
        **{name: round((value + measured) / GIB, 3) for name, value in totals.items()},
        "headroom_gib": round((limit - worst.needed - measured) / GIB, 2),
        "calibration_factor": search.memory_factor if search.memory_factor != 1.0 else None,
        "stages": [stage.as_dict() for stage in stages],
        "phases": phases(search, candidate),
    }


def phases(search: Search, candidate: Candidate) -> dict[str, float]:
    """Return GiB of one GPU in each phase of a start; loading holds a second copy of the shard until it is assigned."""
    layout, memory = candidate.layout, candidate.memory
    held = stage_parameters(search.model, layout.sizes, _layers_of(search, candidate), memory.stage)
    whole = search.software.weight_bytes * held.total
    built = memory.weights
    return {
        "model_build_gib": round((whole if layout.zero_stage >= 3 else built) / GIB, 2),
        "model_build_zero_init_gib": round(built / GIB, 2),
        "checkpoint_load_gib": round(2 * (whole if layout.zero_stage >= 3 else built) / GIB, 2),
        "checkpoint_load_zero_init_gib": round(2 * built / GIB, 2),
        "optimizer_init_gib": round((memory.weights + memory.gradients + memory.optimizer) / GIB, 2),
        "first_step_gib": round(memory.allocated / GIB, 2),
    }


def _layers_of(search: Search, candidate: Candidate) -> int:
    return stage_layer_counts(search.model, candidate.layout)[candidate.memory.stage]


def reasons(ranked: Sequence[Candidate], limit_bytes: int) -> list[str]:
    """Return sentences: what the first layout costs, and why each of the next few is slower."""
    if not ranked:
        return []
    first = ranked[0]
    parts = sorted(vars(first.time).items(), key=lambda item: -item[1])
    spent = ", ".join(f"{_PARTS[name]} {value:.3g} s" for name, value in parts[:4] if value > 0)
    found = [
        f"{describe(first.layout)}: {first.time.total:.3g} s a step ({spent}), {first.memory.needed / GIB:.1f} of "
        f"{limit_bytes / GIB:.1f} GiB, most on stage {first.memory.stage}"
    ]
    found += [against(first, other) for other in ranked[1:4]]
    return found


def against(first: Candidate, other: Candidate) -> str:
    """Return one sentence: by which components another layout is slower, and what it saves."""
    gaps = {name: getattr(other.time, name) - getattr(first.time, name) for name in vars(first.time)}
    worse = sorted((name for name in gaps if gaps[name] > 1e-4), key=lambda name: -gaps[name])[:2]
    better = sorted((name for name in gaps if gaps[name] < -1e-4), key=lambda name: gaps[name])[:1]
    share = 100 * (other.time.total / first.time.total - 1)
    words = ", ".join(f"+{gaps[name]:.2g} s {_PARTS[name]}" for name in worse) or "no component"
    saves = "".join(f", though {gaps[name]:.2g} s {_PARTS[name]}" for name in better)
    return f"{describe(other.layout)} is {share:.1f} % slower: {words}{saves}"


def rejected_rows(
    ranked: Iterable[Candidate], refused: dict[str, str], missed: Candidate | None
) -> list[dict[str, Any]]:
    """Return the `rejected` list of plan.json: slower layouts, refused ones, and the nearest that does not fit."""
    listed = list(ranked)
    rows: list[dict[str, Any]] = []
    for other in listed[1:8]:
        rows.append(
            {
                "layout": describe(other.layout),
                "step_time_s": round(other.time.total, 4),
                "needed_gib": round(other.memory.needed / GIB, 2),
                "reason": against(listed[0], other),
            }
        )
    if missed is not None:
        need = missed.memory.needed / GIB
        reason = f"needs {need:.1f} GiB on stage {missed.memory.stage}, more than the GPU has"
        rows.append(
            {"layout": describe(missed.layout), "step_time_s": None, "needed_gib": round(need, 2), "reason": reason}
        )
    rows += [
        {"layout": None, "step_time_s": None, "needed_gib": None, "reason": f"{sentence} (rule {rule})"}
        for rule, sentence in refused.items()
    ]
    return rows


def zero_table(searches: Searches, layout: Layout, place: Place) -> list[dict[str, Any]]:
    """Return ZeRO 1, 2 and 3 of one layout side by side; what an engine refuses says so."""
    rows = []
    for stage in (1, 2, 3):
        trial = replace(layout, zero_stage=stage, offload="none")
        rows.append(_table_row(f"ZeRO {stage}", searches, trial, place))
    return rows


def offload_table(searches: Searches, layout: Layout, place: Place) -> list[dict[str, Any]]:
    """Return the answer to "offload or more nodes?": as it is, offloaded, and on twice the data-parallel ranks."""
    sizes = layout.sizes
    rows = [_table_row("as planned", searches, layout, None)]
    moved = replace(layout, zero_stage=max(2, layout.zero_stage), offload="cpu")
    rows.append(_table_row("optimizer on the host", searches, moved, place))
    if layout.global_batch_size % (2 * sizes.data_parallel_size * layout.micro_batch_size) == 0:
        twice = ParallelSizes(
            sizes.tensor_parallel_size,
            sizes.pipeline_parallel_size,
            2 * sizes.data_parallel_size,
            sizes.virtual_pipeline_size,
            sizes.context_parallel_size,
            sizes.expert_parallel_size,
        )
        rows.append(_table_row("twice the GPUs", searches, replace(layout, sizes=twice), None))
    return rows


def _table_row(name: str, searches: Searches, layout: Layout, place: Place | None) -> dict[str, Any]:
    """Return one row; with `place` it says what ZeRO's rules and the program refuse."""
    candidate = searches.evaluate(layout)
    refusal = None
    if place is not None:
        broken = refusals(searches.model, candidate.layout, place)
        sentences = [item.sentence for item in broken if item.rule in ("offload", "zero-pipeline")]
        refusal = sentences[0] if sentences else searches.refusal(candidate.layout)
    return {
        "option": name,
        "step_time_s": None if refusal else round(candidate.time.total, 4),
        "needed_gib": None if refusal else round(candidate.memory.needed / GIB, 2),
        "fits": None if refusal else candidate.fits,
        "refused": refusal,
    }


def band_text(seconds: float) -> str:
    """Return a step time with its band in words."""
    return f"{seconds:.3g} s ({seconds * RECORD['band_low']:.3g} to {seconds * RECORD['band_high']:.3g})"


def model_text(model: Architecture) -> str:
    """Return a model in one phrase."""
    return f"{model.name}: {model.parameters / 1e9:.1f}B parameters, {model.num_layers} layers of {model.hidden_size}"
