"""The page of one plan: the cluster, memory per stage, the pipeline's timeline, the candidates, and the reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ..plan.layout import Plan
from ..plan.memory import GIB
from ..plan.search import Candidate
from ..plan.shapes import micro_batches_in_flight, stage_layer_counts
from .page import heading, page, paragraph, table, tiles
from .svg import element, text

_CELL, _GAP, _LEFT = 54.0, 4.0, 110.0
_MOST_HOSTS = 64  # drawn; a larger cluster repeats its pattern
_MOST_STAGES = 16
_MOST_MICRO_BATCHES = 12
_MEMORY_PARTS = (
    ("weights_gib", "weights", "m0"),
    ("gradients_gib", "gradients", "m1"),
    ("optimizer_gib", "optimizer", "m2"),
    ("activations_gib", "activations", "m3"),
    ("logits_gib", "logits", "m4"),
    ("working_set_gib", "working set", "m5"),
    ("gathered_gib", "gathered weights", "m6"),
    ("pipeline_buffers_gib", "pipeline buffers", "m4"),
    ("cached_gib", "allocator cache", "m7"),
    ("context_gib", "CUDA context", "m8"),
)
_STYLE = """
<style>.m0 { fill: #9cc3f5; } .m1 { fill: #f7c38f; } .m2 { fill: #a6dba8; } .m3 { fill: #e0b3e6; }
.m4 { fill: #f4e08a; } .m5 { fill: #f2b0b0; } .m6 { fill: #a8e0dc; } .m7 { fill: #c8ced8; } .m8 { fill: #97a3b6; }
.forward { fill: #9cc3f5; } .backward { fill: #a6dba8; } .again { fill: #f7c38f; } .slot { stroke: var(--paper); }
.limit { stroke: var(--bad); stroke-width: 2; stroke-dasharray: 6 4; } .chosen { fill: var(--b); }
.other { fill: var(--a); fill-opacity: 0.55; } .group { stroke: var(--ink); fill: none; stroke-width: 1.4; }
svg.plan text.on { fill: #10151d; font-size: 11px; }</style>
"""


def render_plan_page(plan: Plan, sizing: Mapping[str, Any]) -> str:
    """Return the page as one self-contained HTML document."""
    sizes = plan.layout.sizes
    parts = [
        _STYLE,
        f"<h1>{escape(plan.model.name)} on {sizes.world_size} GPUs</h1>",
        f'<p class="banner {"good" if plan.fits else "bad"}">{escape(plan.reason)}</p>',
        tiles(_figures(plan)),
        heading("Where ranks run"),
        paragraph(
            "Colour is the pipeline stage; a frame is one tensor-parallel group; D is the data replica.", "muted"
        ),
        cluster_picture(plan),
    ]
    if plan.memory is not None:
        parts += [heading("Memory of one GPU by stage"), memory_picture(plan.memory)]
    if sizes.pipeline_parallel_size > 1:
        parts += [heading("Pipeline timeline"), timeline_picture(plan)]
    if len(plan.candidates) > 1:
        parts += [heading("Candidates"), candidates_picture(plan.candidates, plan)]
    parts += _reason_parts(plan)
    parts += [heading("Sizing of the task"), paragraph(str(sizing["advice"])), _list(sizing["assumptions"])]
    return page(f"Plan of {plan.model.name}", parts)


def _figures(plan: Plan) -> list[tuple[str, str]]:
    sizes = plan.layout.sizes
    figures = [
        ("tensor", str(sizes.tensor_parallel_size)),
        ("pipeline", str(sizes.pipeline_parallel_size)),
        ("data", str(sizes.data_parallel_size)),
        ("ZeRO", str(plan.layout.zero_stage)),
        ("micro-batch", str(plan.layout.micro_batch_size)),
        ("recompute", plan.layout.recompute),
    ]
    if plan.prediction is not None:
        low, high = plan.prediction["step_time_band_s"]
        figures += [
            ("step, predicted", f"{plan.prediction['step_time_s']:.3g} s"),
            ("band", f"{low:.3g} to {high:.3g} s"),
            ("tokens/s per GPU", f"{plan.prediction['tokens_per_second_per_gpu']:,.0f}"),
            ("MFU (6N + 12lhs)", f"{plan.prediction['mfu']['llm-foundry']:.1%}"),
        ]
    if plan.reliability is not None:
        figures.append(("time that trains", f"{plan.reliability['effective_training_time_ratio']:.1%}"))
    return figures


def cluster_picture(plan: Plan) -> str:
    """Return hosts as rows and GPUs as cells."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in plan.rank_rows(_MOST_HOSTS * plan.cluster.gpus_per_host):
        rows.setdefault(row["host"], []).append(row)
    tensor = plan.layout.sizes.tensor_parallel_size
    parts = []
    for index, (host, cells) in enumerate(rows.items()):
        top = index * (_CELL * 0.62 + _GAP)
        parts.append(text(host, _LEFT - 10, top + 20, class_="host", text_anchor="end"))
        for column, cell in enumerate(cells):
            left = _LEFT + column * (_CELL + _GAP)
            words = (
                f"rank {cell['rank']}: stage {cell['pp_rank']}, tensor {cell['tp_rank']}, data {cell['dp_rank']}, "
                f"GPU {cell['gpu_bdf'] or cell['gpu_index']}"
            )
            style = f"cell stage{cell['pp_rank'] % 8}"
            box = element("rect", x=left, y=top, width=_CELL, height=_CELL * 0.62, rx=4, class_=style)
            label = f"P{cell['pp_rank']} D{cell['dp_rank']}"
            parts.append(
                element("g", element("title", escape(words)), box, text(label, left + 6, top + 20, class_="on"))
            )
        parts += _frames(len(cells), tensor, top)
    width = _LEFT + max(map(len, rows.values())) * (_CELL + _GAP) + 4
    height = len(rows) * (_CELL * 0.62 + _GAP) + 4
    hidden = len(plan.cluster.hosts) - len(rows)
    note = paragraph(f"{hidden} more hosts are not drawn.", "muted") if hidden > 0 else ""
    return _svg(width, height, "cluster", parts) + note


def _frames(cells: int, tensor: int, top: float) -> list[str]:
    """Return a frame around each tensor-parallel group of a row."""
    size = min(tensor, cells)
    return [
        element(
            "rect",
            x=_LEFT + start * (_CELL + _GAP) - 2,
            y=top - 1,
            width=size * (_CELL + _GAP),
            height=_CELL * 0.62 + 2,
            rx=6,
            class_="group",
        )
        for start in range(0, cells, size)
    ]


def memory_picture(memory: Mapping[str, Any]) -> str:
    """Return one stacked bar per stage that can be worst, against the memory of the GPU."""
    stages, limit = memory["stages"], float(memory["limit_gib"])
    top = max([limit, *(float(stage["nvidia_smi_gib"]) for stage in stages)]) * 1.05
    scale, parts = 560.0 / top, []
    for index, stage in enumerate(stages):
        y, x = 10.0 + index * 40, _LEFT
        parts.append(text(f"stage {stage['stage']}", _LEFT - 10, y + 18, class_="host", text_anchor="end"))
        for key, name, style in _MEMORY_PARTS:
            width = float(stage[key]) * scale
            if width > 0:
                title = element("title", escape(f"{name}: {stage[key]:.2f} GiB"))
                parts.append(element("g", title, element("rect", x=x, y=y, width=width, height=28, class_=style)))
                x += width
        parts.append(text(f"{stage['nvidia_smi_gib']:.1f} GiB", x + 6, y + 18, class_="tick"))
    bottom = 10.0 + len(stages) * 40
    edge = _LEFT + limit * scale
    parts.append(element("line", x1=edge, x2=edge, y1=2.0, y2=bottom, class_="limit"))
    parts.append(text(f"{limit:.1f} GiB of the GPU", edge, bottom + 14, class_="tick", text_anchor="end"))
    parts += _memory_legend(bottom + 34)
    return _svg(760.0, bottom + 70, "memory", parts)


def _memory_legend(y: float) -> list[str]:
    parts, x = [], 8.0
    for _key, name, style in _MEMORY_PARTS:
        if x > 650:
            x, y = 8.0, y + 18
        parts.append(element("rect", x=x, y=y - 9, width=10.0, height=10.0, class_=style))
        parts.append(text(name, x + 14, y, class_="tick"))
        x += 26 + 6.4 * len(name)
    return parts


def timeline_picture(plan: Plan) -> str:
    """Return the 1F1B schedule of the first micro-batches: blue forward, green backward, gaps are the bubble."""
    stages = min(plan.layout.sizes.pipeline_parallel_size, _MOST_STAGES)
    count = min(plan.layout.num_microbatches, max(stages, _MOST_MICRO_BATCHES))
    slots = one_forward_one_backward(stages, count, 1.0, 3.0 if plan.layout.recompute == "full" else 2.0)
    end = max(finish for _stage, _micro, _kind, _start, finish in slots)
    scale, parts = 640.0 / end, []
    for stage in range(stages):
        parts.append(text(f"stage {stage}", _LEFT - 10, 18 + stage * 24, class_="tick", text_anchor="end"))
    for stage, micro, kind, start, finish in slots:
        words = element("title", escape(f"stage {stage}, micro-batch {micro}, {kind}"))
        box = element(
            "rect",
            x=_LEFT + start * scale,
            y=4.0 + stage * 24,
            width=(finish - start) * scale,
            height=20.0,
            class_=f"slot {kind}",
        )
        parts.append(element("g", words, box))
    idle = 1 - sum(finish - start for _s, _m, _k, start, finish in slots) / (end * stages)
    real = plan.layout
    share = (real.sizes.pipeline_parallel_size - 1) / (
        real.sizes.virtual_pipeline_size * real.num_microbatches + real.sizes.pipeline_parallel_size - 1
    )
    note = (
        f"{count} of {real.num_microbatches} micro-batches drawn without interleaving ({idle:.0%} idle); with all of "
        f"them and {real.sizes.virtual_pipeline_size} chunk(s) a stage the bubble is {share:.1%}"
    )
    return _svg(_LEFT + 650.0, 12.0 + stages * 24, "pipeline timeline", parts) + paragraph(note, "muted")


def one_forward_one_backward(
    stages: int, count: int, forward: float, backward: float
) -> list[tuple[int, int, str, float, float]]:
    """Return (stage, micro-batch, kind, start, finish) of every pass of a 1F1B schedule."""
    orders = []
    for stage in range(stages):
        warm = min(stages - stage - 1, count)
        order = [("forward", micro) for micro in range(warm)]
        for micro in range(count - warm):
            order += [("forward", warm + micro), ("backward", micro)]
        orders.append([*order, *(("backward", micro) for micro in range(count - warm, count))])
    done: dict[tuple[str, int, int], float] = {}
    clock, position = [0.0] * stages, [0] * stages
    slots = []
    while any(position[stage] < len(orders[stage]) for stage in range(stages)):
        for stage in range(stages):
            if position[stage] == len(orders[stage]):
                continue
            kind, micro = orders[stage][position[stage]]
            needs = _needed(kind, stage, micro, stages)
            if needs is not None and needs not in done:
                continue
            start = max(clock[stage], done[needs] if needs else 0.0)
            clock[stage] = start + (forward if kind == "forward" else backward)
            done[(kind, stage, micro)] = clock[stage]
            slots.append((stage, micro, kind, start, clock[stage]))
            position[stage] += 1
    return slots


def _needed(kind: str, stage: int, micro: int, stages: int) -> tuple[str, int, int] | None:
    """Return the pass that must be done before this one."""
    if kind == "forward":
        return ("forward", stage - 1, micro) if stage else None
    return ("backward", stage + 1, micro) if stage + 1 < stages else ("forward", stage, micro)


def candidates_picture(candidates: Sequence[Candidate], plan: Plan) -> str:
    """Return the candidates as points: step time against memory; the chosen one is marked."""
    times = [candidate.time.total for candidate in candidates]
    sizes = [candidate.memory.needed / GIB for candidate in candidates]
    left, right, low, high = min(times), max(times), 0.0, max(sizes) * 1.1
    span = (right - left) or 1.0
    parts = [element("line", x1=60.0, x2=720.0, y1=260.0, y2=260.0, class_="axis")]
    for candidate in reversed(candidates):
        chosen = candidate.layout == plan.layout
        x = 70 + (candidate.time.total - left) / span * 640
        y = 260 - (candidate.memory.needed / GIB - low) / (high - low) * 240
        words = f"{candidate.time.total:.3g} s, {candidate.memory.needed / GIB:.1f} GiB: {_short(candidate)}"
        dot = element("circle", cx=x, cy=y, r=7 if chosen else 5, class_="chosen" if chosen else "other")
        parts.append(element("g", element("title", escape(words)), dot))
    parts.append(text(f"{left:.3g} s a step", 60, 278, class_="tick"))
    parts.append(text(f"{right:.3g} s", 720, 278, class_="tick", text_anchor="end"))
    parts.append(text(f"{high:.0f} GiB", 52, 26, class_="tick", text_anchor="end"))
    return _svg(760.0, 290.0, "candidates", parts)


def _short(candidate: Candidate) -> str:
    layout = candidate.layout
    sizes = layout.sizes
    return (
        f"TP {sizes.tensor_parallel_size} PP {sizes.pipeline_parallel_size} VP {sizes.virtual_pipeline_size} "
        f"DP {sizes.data_parallel_size}, micro-batch {layout.micro_batch_size}, ZeRO {layout.zero_stage}, "
        f"recompute {layout.recompute}"
    )


def _reason_parts(plan: Plan) -> list[str]:
    parts = []
    if plan.prediction is not None:
        parts += [heading("Reasons"), _list(plan.prediction["explanation"])]
        for key, title in (("zero_table", "ZeRO-2 or ZeRO-3?"), ("offload_table", "Offload or more nodes?")):
            rows = [
                (
                    row["option"],
                    row["step_time_s"],
                    row["needed_gib"],
                    row["refused"] or ("fits" if row["fits"] else "no"),
                )
                for row in plan.prediction[key]
            ]
            parts += [heading(title), table(("option", "step, s", "memory, GiB", "fits"), rows)]
        parts += [heading("Assumed"), _list(plan.prediction["notes"])]
    if plan.rejected:
        rows = [(row["layout"] or "", row["step_time_s"], row["needed_gib"], row["reason"]) for row in plan.rejected]
        parts += [heading("Rejected"), table(("layout", "step, s", "memory, GiB", "why"), rows)]
    flight = [
        (stage, layers, f"{micro_batches_in_flight(plan.layout, stage):.3g}")
        for stage, layers in enumerate(stage_layer_counts(plan.model, plan.layout))
    ]
    return [*parts, heading("Stages"), table(("stage", "layers", "micro-batches in flight"), flight[:_MOST_STAGES])]


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def _svg(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    return element("svg", *parts, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label, class_="plan")
