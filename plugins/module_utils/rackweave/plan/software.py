"""Traits of the software that the planner plans for, by engine and task."""

from __future__ import annotations

from dataclasses import replace

from .architecture import Architecture
from .machine import Software

ADAPTER_RANK = 16  # of LoRA matrices, on every linear layer
NF4_BITS = 4.127  # NF4 with double quantisation: 4 bits and two levels of scales (arXiv:2305.14314)
_ZERO_BUCKETS = 2 * 2 * 5e8  # DeepSpeed's default reduce and gather buckets of 5e8 elements, two bytes each

FLAT = Software(
    loss_bytes=2,
    flat=True,
    thrifty=True,
    product_factor=0.9,
    stream_factor=0.7,
    saved_factor=1.12,
    overhead_factor=0.2,
)
"""The trainer's own engine; factors fitted on measurements of one kind of GPU (H200), see docs/accuracy.md."""


def planned_software(engine: str, task: str, model: Architecture) -> Software:
    """Return the traits of an engine: Megatron's schedule with fp32 gradients, DeepSpeed's pipeline, or torch FSDP."""
    if engine == "deepspeed-pipeline":
        software = Software(overlap=False, gradient_bytes=6, bucket_bytes=_ZERO_BUCKETS)
    elif engine == "flat":
        software = FLAT
    elif engine == "fsdp":
        software = Software(native_attention=False, loss_bytes=14, fp32_weights=True)
    else:
        software = Software()
    if task not in ("lora", "qlora"):
        return software
    share = adapter_parameters(model) / model.parameters
    weight = quantised_bytes(model) / model.parameters if task == "qlora" else 2.0
    return replace(software, trains="adapters", fp32_weights=False, adapter_share=share, weight_bytes=weight)


def adapter_parameters(model: Architecture) -> int:
    """Return the parameters of LoRA matrices on every linear layer of attention and feed-forward blocks."""
    hidden, ffn = model.hidden_size, model.ffn_hidden_size
    attention = 2 * (hidden + model.query_width) + 2 * (hidden + model.kv_width)
    inner = (3 if model.gated else 2) * (hidden + ffn)
    return ADAPTER_RANK * model.num_layers * (attention + inner)


def linear_parameters(model: Architecture) -> int:
    """Return the parameters that quantisation covers: all but embeddings, head and normalisations."""
    outside = model.input_parameters + model.output_parameters
    return model.parameters - outside - 2 * model.num_layers * model.norm_parameters


def quantised_bytes(model: Architecture) -> float:
    """Return the bytes of weights in NF4, the rest in 16 bit."""
    linear = linear_parameters(model)
    return linear * NF4_BITS / 8 + (model.parameters - linear) * 2
