"""How much memory a model needs over all GPUs, and how many GPUs that is: the questions asked before any layout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from .architecture import Architecture
from .software import ADAPTER_RANK, NF4_BITS, adapter_parameters, quantised_bytes

GB = 1e9
USABLE_SHARE = 0.94  # of a GPU's memory: the rest is fragmentation and context (SimuMax's mem_factor)
_LEAST_BUFFERS_BYTES = 5e9  # activations, logits, gathers and context of one GPU at short sequences
_CONTEXT_BYTES = 1e9
_SHORT_SEQUENCE = 1024
_ADAPTER_SEQUENCE = 4096


@dataclass(frozen=True)
class Hardware:
    """One kind of GPU and host to count in."""

    gpu: str
    memory_bytes: int
    gpus_per_host: int


@dataclass(frozen=True)
class Sizing:
    """Bytes over all GPUs by component, a range, and GPU counts; `assumptions` say what they rest on."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    low: float
    high: float
    gpus_low: int | None
    gpus_high: int | None
    advice: str
    assumptions: tuple[str, ...]

    @property
    def total(self) -> float:
        """Bytes of all components."""
        return self.weights + self.gradients + self.optimizer + self.activations

    def as_dict(self) -> dict[str, Any]:
        """Return decimal gigabytes, as `rackweave plan --json` prints them."""
        gpus = [self.gpus_low, self.gpus_high] if self.gpus_low is not None else None
        return {
            "weights_gb": round(self.weights / GB, 1),
            "gradients_gb": round(self.gradients / GB, 1),
            "optimizer_gb": round(self.optimizer / GB, 1),
            "activations_gb": round(self.activations / GB, 1),
            "total_gb": round(self.total / GB, 1),
            "range_gb": [round(self.low / GB, 1), round(self.high / GB, 1)],
            "gpus": gpus,
            "advice": self.advice,
            "assumptions": list(self.assumptions),
        }


def size_task(
    model: Architecture, task: str, hardware: Hardware | None, sequence: int | None, micro_batch: int | None
) -> Sizing:
    """Return the memory of a task: pretrain, full-finetune, lora or qlora.

    Args:
        model: what is trained.
        task: how.
        hardware: GPUs to count in, None if they are not known.
        sequence: tokens of a sequence if asked for; else a usual one is assumed and said.
        micro_batch: sequences per GPU and pass if asked for.
    """
    batch = micro_batch or 1
    if task in ("lora", "qlora"):
        return _adapters(model, task, hardware, sequence or _ADAPTER_SEQUENCE, batch, sequence is None)
    length = sequence or _SHORT_SEQUENCE
    return _full(model, task, hardware, length, batch, sequence is None)


def _full(
    model: Architecture, task: str, hardware: Hardware | None, sequence: int, batch: int, assumed: bool
) -> Sizing:
    """Size training of all weights.

    Low: 16-bit weights and gradients, fp32 moments (12 bytes a parameter), checkpoints of full recomputation. High: an
    fp32 master copy too (16 bytes), and per-GPU buffers. Pretraining with fp32 gradients is 18 bytes a parameter.
    """
    count = model.parameters
    pretrain = task == "pretrain"
    least, most = 12 * count, (18 if pretrain else 16) * count
    checkpoints = 2 * model.num_layers * sequence * batch * model.hidden_size
    buffers = max(_LEAST_BUFFERS_BYTES, checkpoints + _peak_bytes(model, sequence, batch) + _CONTEXT_BYTES)
    usable = hardware.memory_bytes * USABLE_SHARE if hardware else None
    bare = math.ceil(least / hardware.memory_bytes) if hardware else 1
    low = least + bare * checkpoints
    many = _whole_hosts(math.ceil(most / max(1.0, (usable or 0) - buffers)), hardware) if hardware else 1
    high = most + many * buffers
    gpus = _counts(low, high, hardware)
    gradients = (4 if pretrain else 2) * count
    return Sizing(
        weights=2 * count,
        gradients=gradients,
        optimizer=12 * count,
        activations=bare * checkpoints,
        low=low,
        high=high,
        gpus_low=gpus[0] if gpus else None,
        gpus_high=gpus[1] if gpus else None,
        advice=_advice(gpus, hardware),
        assumptions=(
            f"{count:,} parameters in 16 bit (2 bytes each)",
            "low end: 12 bytes a parameter (16-bit weights and gradients, two fp32 moments, no fp32 master)",
            f"high end: {18 if pretrain else 16} bytes a parameter ({'fp32' if pretrain else '16-bit'} gradients, fp32 "
            f"master and moments) and {buffers / GB:.1f} GB of activations, logits and buffers per GPU",
            "full recomputation; "
            f"sequence length {sequence}{' (assumed)' if assumed else ''}, {batch} sequence(s) per GPU",
            "everything sharded over the GPUs (ZeRO-3, or tensor x pipeline x ZeRO-1)",
        ),
    )


def _adapters(
    model: Architecture, task: str, hardware: Hardware | None, sequence: int, batch: int, assumed: bool
) -> Sizing:
    """Size LoRA: frozen weights (NF4 for QLoRA), adapters at 16 bytes a parameter, checkpoints."""
    adapters = adapter_parameters(model)
    frozen = quantised_bytes(model) if task == "qlora" else 2.0 * model.parameters
    checkpoints = 2 * model.num_layers * sequence * batch * model.hidden_size
    activations = checkpoints + _peak_bytes(model, sequence, batch) + _CONTEXT_BYTES
    total = frozen + 16 * adapters + activations
    gpus = _counts(total, total, hardware)
    weights = f"NF4 at {NF4_BITS} bits, embeddings and head in 16 bit" if task == "qlora" else "16-bit frozen weights"
    return Sizing(
        weights=frozen + 2 * adapters,
        gradients=2 * adapters,
        optimizer=12 * adapters,
        activations=activations,
        low=total,
        high=total,
        gpus_low=gpus[0] if gpus else None,
        gpus_high=gpus[1] if gpus else None,
        advice=_advice(gpus, hardware),
        assumptions=(
            f"{model.parameters:,} parameters: {weights}",
            f"LoRA rank {ADAPTER_RANK} on every linear layer: {adapters:,} parameters at 16 bytes",
            f"full recomputation; sequence length {sequence}{' (assumed)' if assumed else ''}, {batch} sequence(s)",
            "1 GB of CUDA context",
        ),
    )


def _peak_bytes(model: Architecture, sequence: int, batch: int) -> float:
    """Return logits (4 bytes each) and one layer's working set of a GPU without tensor parallelism."""
    tokens = sequence * batch
    width = 8 * model.hidden_size + 4 * (model.query_width + model.kv_width)
    inner = (6 if model.gated else 4) * model.ffn_hidden_size
    return float(tokens * (4 * model.vocab_size + width + inner))


def _whole_hosts(gpus: int, hardware: Hardware | None) -> int:
    if hardware is None or gpus <= hardware.gpus_per_host:
        return gpus
    return -(-gpus // hardware.gpus_per_host) * hardware.gpus_per_host


def _counts(low: float, high: float, hardware: Hardware | None) -> tuple[int, int] | None:
    if hardware is None:
        return None
    fewest = math.ceil(low / hardware.memory_bytes)
    return fewest, max(fewest, _whole_hosts(math.ceil(high / (USABLE_SHARE * hardware.memory_bytes)), hardware))


def _advice(gpus: tuple[int, int] | None, hardware: Hardware | None) -> str:
    if gpus is None or hardware is None:
        return "the GPU is not known, so no count is given"
    fewest, enough = gpus
    hosts = -(-enough // hardware.gpus_per_host)
    if fewest == enough:
        return f"use {enough} {hardware.gpu}"
    partial = ", and is not a whole number of hosts" if fewest % hardware.gpus_per_host else ""
    return (
        f"use {enough} {hardware.gpu} ({hosts} host(s) of {hardware.gpus_per_host}): {fewest} would hold the least set "
        f"of states with no headroom{partial}"
    )
