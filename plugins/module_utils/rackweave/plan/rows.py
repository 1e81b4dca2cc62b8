"""Published measurements: one CSV row becomes a model, a layout, a machine and what was measured.

What a source leaves out is inferred by the rules below, and the row says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..errors import PlanError
from ..hardware.catalog import find_gpu
from .architecture import Architecture
from .flops import flops_per_token
from .machine import Machine, Software
from .presets import PRESETS
from .row_cells import Cells, UnscorableRow
from .row_layout import is_ours, read_layout, read_software
from .rules import Layout

COLUMNS = (
    "id",
    "model",
    "params_b",
    "layers",
    "hidden",
    "ffn",
    "heads",
    "kv_heads",
    "vocab",
    "seq",
    "gpu",
    "gpus",
    "tp",
    "pp",
    "vp",
    "cp",
    "ep",
    "dp",
    "sp",
    "zero",
    "micro_batch",
    "global_batch",
    "recompute",
    "precision",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "step_time_s",
    "peak_mem_gib",
    "mem_kind",
    "notes",
)
MEMORY_KINDS = ("max_allocated", "max_reserved", "nvidia_smi")
_USUAL_VOCABULARIES = (32000, 51200, 128256, 256000)


@dataclass(frozen=True)
class MeasuredRow:
    """One row: what ran, what was measured, and what had to be inferred.

    Attributes:
        step_s: measured seconds per step, None if the source gives nothing that it follows from.
        step_unscored: why a measured throughput cannot be compared, or "".
        memory_gib: measured peak of one GPU, None if not given.
        out_of_memory: the source reports that this layout did not fit.
        last_rank: the memory figure is that of the last rank, not of the worst one.
    """

    id: str
    name: str
    gpu_name: str
    gpus: int
    model: Architecture
    layout: Layout
    machine: Machine
    software: Software
    step_s: float | None
    step_unscored: str
    memory_gib: float | None
    memory_kind: str
    out_of_memory: bool
    last_rank: bool
    inferred: tuple[str, ...]

    @property
    def group(self) -> str:
        """The source group: the id up to its first dash."""
        return self.id.split("-", 1)[0]

    @property
    def ran(self) -> bool:
        """Whether anything was measured, so that the layout did fit."""
        return self.step_s is not None or bool(self.step_unscored) or self.memory_gib is not None

    @property
    def family(self) -> tuple[str, int, int, int, int]:
        """What cross-validation leaves out together: model and model-parallel sizes."""
        sizes = self.layout.sizes
        return (
            self.name,
            sizes.tensor_parallel_size,
            sizes.pipeline_parallel_size,
            sizes.context_parallel_size,
            sizes.expert_parallel_size,
        )

    @property
    def job(self) -> tuple[str, str, int, int, int]:
        """What layouts compete for: model, GPU, GPU count, sequence length and global batch."""
        return (self.name, self.gpu_name, self.gpus, self.model.sequence_length, self.layout.global_batch_size)


def read_row(cells: Mapping[str, str], position: int) -> MeasuredRow:
    """Read one row.

    Args:
        cells: column name to text.
        position: number of the row in the file, for messages about rows without an id.

    Raises:
        PlanError: if a cell is not what its column needs; the sentence names row and column.
    """
    row = Cells(cells, (cells.get("id") or f"number {position}").strip())
    if not row.text("id"):
        raise PlanError(f"row {row.label}: id is empty")
    if None in cells:
        raise PlanError(f"row {row.label}: it has more cells than the header has columns")
    model = _read_model(row)
    layout, gpus, stated = read_layout(row, model)
    software = read_software(row, layout)
    gpu = find_gpu(row.text("gpu"))
    if gpu is None:
        raise UnscorableRow(f"the GPU {row.text('gpu')!r} is not in the catalog")
    hosts = 4 if gpu.nvlink_domain > 8 else 8
    step, unscored = _read_step(row, model, layout, gpus if stated else None)
    return MeasuredRow(
        id=row.text("id"),
        name=row.text("model"),
        gpu_name=row.text("gpu"),
        gpus=gpus,
        model=model,
        layout=layout,
        machine=Machine(
            gpu=gpu,
            gpus_per_host=hosts,
            domain_size=gpu.nvlink_domain,
            nic_bytes_per_second=_nic_rate(row, gpu.nic_gbps, hosts),
            memory_bytes=gpu.memory_bytes,
            host_memory_bytes=gpu.host_memory_bytes,
        ),
        software=software,
        step_s=step,
        step_unscored=unscored,
        memory_gib=row.number("peak_mem_gib"),
        memory_kind=_memory_kind(row),
        out_of_memory="OOM reported" in row.text("notes"),
        last_rank=bool(re.search(r"last rank", row.text("notes"))),
        inferred=tuple(dict.fromkeys(row.inferred)),
    )


def _memory_kind(row: Cells) -> str:
    kind = row.text("mem_kind")
    if row.number("peak_mem_gib") is None:
        return ""
    if not kind:
        row.inferred.append("mem_kind")
        return "nvidia_smi"
    if kind not in MEMORY_KINDS:
        raise PlanError(f"row {row.label}: mem_kind={kind!r} is not one of {', '.join(MEMORY_KINDS)}")
    return kind


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", re.sub(r"\(.*?\)", "", text).lower())


_BY_PLAIN_NAME = {_plain(name): model for name, model in PRESETS.items()}


def _read_model(row: Cells) -> Architecture:
    """Return the architecture: of the preset where the name is one with experts, else from the columns."""
    name, sequence = row.text("model"), row.whole("seq")
    known = _BY_PLAIN_NAME.get(_plain(name))
    if sequence is None:
        sequence = row.infer("seq", 1024)
    if known is not None and known.experts is not None:
        return replace(
            known,
            num_layers=row.whole("layers") or known.num_layers,
            sequence_length=sequence,
            vocab_size=row.whole("vocab") or known.vocab_size,
        )
    if row.whole("hidden") is None:
        raise UnscorableRow("the source does not state the architecture")
    return _dense_model(row, name, sequence)


def _dense_model(row: Cells, name: str, sequence: int) -> Architecture:
    hidden = row.needed("hidden")
    # Two columns that only some tables have say what is otherwise told by the name.
    llama = row.text("activation") == "swiglu" or name.lower().startswith("llama")
    untied = llama or name.startswith("Nemotron") or "GQA" in name or "untied" in row.text("notes")
    untied = row.text("tied") == "0" if row.text("tied") else untied
    heads = row.whole("heads") or row.infer("heads", usual_heads(hidden))
    if hidden % heads:
        raise PlanError(f"row {row.label}: hidden={hidden} is not a multiple of heads={heads}")
    model = Architecture(
        name=name,
        family="llama" if llama else "gpt",
        num_layers=row.whole("layers") or 1,
        hidden_size=hidden,
        ffn_hidden_size=row.whole("ffn") or 4 * hidden,
        num_attention_heads=heads,
        num_query_groups=row.whole("kv_heads") or heads,
        head_dim=hidden // heads,
        vocab_size=row.whole("vocab") or 51200,
        sequence_length=sequence,
        normalization="rmsnorm" if llama else "layernorm",
        activation="swiglu" if llama else "gelu",
        position_embedding="rotary" if llama or is_ours(row) else "alibi",
        rotary_base=10000.0,
        tied_embeddings=not untied,
        linear_bias=not llama,
    )
    if row.whole("layers") is None:
        model = replace(model, num_layers=row.infer("layers", _layers_of(row, model)))
    if row.whole("vocab") is None:
        model = replace(model, vocab_size=row.infer("vocab", _vocabulary_of(row, model)))
    return model


def usual_heads(hidden: int) -> int:
    """Return the head count nearest to head_dim 128 that 8 divides, with head_dim a multiple of 8."""
    choices = [count for count in range(8, hidden // 8 + 1, 8) if hidden % count == 0 and hidden // count % 8 == 0]
    return min(choices or [1], key=lambda count: abs(count - hidden / 128))


def _stated_parameters(row: Cells) -> float | None:
    """Return the parameter count in billions, from its column or from the model's name."""
    stated = row.number("params_b")
    if stated:
        return stated
    match = re.search(r"(\d+(?:\.\d+)?)B", row.text("model"))
    return float(match[1]) if match else None


def _layers_of(row: Cells, model: Architecture) -> int:
    """Return the multiple of the pipeline size whose parameter count is nearest to the stated one."""
    stated = _stated_parameters(row)
    if stated is None:
        raise PlanError(f"row {row.label}: layers is empty, and no parameter count gives it")
    stages = row.whole("pp") or 1
    inside = (stated * 1e9 - model.input_parameters) / model.layer_parameters
    return max(1, round(inside / stages)) * stages


def _vocabulary_of(row: Cells, model: Architecture) -> int:
    """Return the usual vocabulary that brings the parameter count nearest to the stated one."""
    stated = _stated_parameters(row)
    if stated is None:
        return 51200
    tables = 1 if model.tied_embeddings else 2
    inside = model.num_layers * model.layer_parameters
    wish = (stated * 1e9 - inside) / (tables * model.hidden_size)
    return min(_USUAL_VOCABULARIES, key=lambda size: abs(size - wish)) if wish > 0 else 51200


def _nic_rate(row: Cells, usual_gbps: float, gpus_per_host: int) -> float:
    """Return bytes per second of network per GPU, from the notes where they state it."""
    notes = row.text("notes")
    per_host = re.search(r"(\d+)x(\d+) ?Gb", notes)
    if per_host:
        return float(per_host[1]) * float(per_host[2]) * 1e9 / 8 / gpus_per_host
    total = re.search(r"inter-node (\d+) Gb/s", notes)
    return float(total[1]) * 1e9 / 8 / gpus_per_host if total else usual_gbps * 1e9 / 8


def _read_step(row: Cells, model: Architecture, layout: Layout, gpus: int | None) -> tuple[float | None, str]:
    """Return the measured seconds per step, or why a measured throughput gives none."""
    seconds, rate, tflops = (row.number(name) for name in ("step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu"))
    if not (seconds or rate or tflops):
        return None, ""
    if gpus is None:
        return None, "the source does not state the number of GPUs"
    if seconds:
        return seconds, ""
    tokens = layout.global_batch_size * model.sequence_length / gpus
    if rate:
        return tokens / rate, ""
    return tokens * flops_per_token(model, _convention(row)) / ((tflops or 0.0) * 1e12), ""


def _convention(row: Cells) -> str:
    notes = row.text("notes").lower()
    if "hardware" in notes:
        return "megatron-hardware"
    if "12*l" in notes:
        return "llm-foundry"
    return "megatron-model" if "model flops" in notes else "nemo"
