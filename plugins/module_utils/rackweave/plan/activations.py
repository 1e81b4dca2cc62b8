"""Bytes of activations: what one layer keeps for its backward pass, under each way of recomputing.

Tensors are listed as in arXiv:2205.05198 section 4, two bytes an element; tokens are those of one micro-batch.
"""

from __future__ import annotations

from dataclasses import replace

from .architecture import Architecture
from .machine import Software
from .rules import Layout
from .shapes import padded_vocabulary


def tokens_per_rank(model: Architecture, layout: Layout) -> float:
    """Return the tokens of one micro-batch that a rank sees: b s / c."""
    return layout.micro_batch_size * model.sequence_length / layout.sizes.context_parallel_size


def hidden_bytes(model: Architecture, layout: Layout) -> float:
    """Return the bytes of one hidden state as it lies between layers."""
    share = layout.sizes.tensor_parallel_size if layout.sequence_parallel else 1
    return 2 * tokens_per_rank(model, layout) * model.hidden_size / share


def layer_bytes(model: Architecture, layout: Layout, software: Software, moe: bool) -> float:
    """Return everything that one layer saves without recomputation."""
    tensor = layout.sizes.tensor_parallel_size
    low = layout.precision in ("fp8", "mxfp8", "nvfp4") and software.native_attention
    # Input and output of both normalisations; the outputs enter linear layers, which keep them in 8 bit if they can.
    between = (3.0 if low else 4.0) * hidden_bytes(model, layout)
    inside = 2 * (attention_width(model) + ffn_width(model, moe))
    inside -= model.ffn_hidden_size if low and not moe else 0
    whole = between + tokens_per_rank(model, layout) * inside / tensor + score_bytes(model, layout, software)
    whole *= software.saved_factor
    if layout.recompute != "elementwise" and not software.thrifty:
        return whole
    # Norms and activation functions are computed again: their outputs need not be kept.
    return whole - (1.0 if low else 2.0) * hidden_bytes(model, layout) - _activation_bytes(model, layout, moe, low)


def _activation_bytes(model: Architecture, layout: Layout, moe: bool, low: bool) -> float:
    """Return the bytes of the activation function's output, the input of the second product."""
    width: float = model.ffn_hidden_size
    if moe and model.experts is not None:
        width = model.experts.experts_per_token * model.experts.ffn_hidden_size
    byte_count = 1 if low and not moe else 2
    return byte_count * tokens_per_rank(model, layout) * width / layout.sizes.tensor_parallel_size


def attention_width(model: Architecture) -> float:
    """Return the saved elements per token of the attention block, all heads: query, key, value and its output."""
    mla = model.latent_attention
    if mla is None:
        return 2 * model.query_width + 2 * model.kv_width + 2 * model.num_attention_heads
    heads = model.num_attention_heads
    query = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim)
    latent = 2 * mla.q_lora_rank + 2 * mla.kv_lora_rank + mla.qk_rope_head_dim
    return 2 * query + latent + 2 * heads * mla.v_head_dim


def ffn_width(model: Architecture, moe: bool) -> float:
    """Return the saved elements per token of the feed-forward block: its inner inputs and, for experts, copies."""
    inner = 3 if model.gated else 2
    experts = model.experts
    if not moe or experts is None:
        return inner * model.ffn_hidden_size
    routed = experts.experts_per_token * (inner * experts.ffn_hidden_size + 2 * model.hidden_size)
    return routed + inner * experts.shared_ffn_hidden_size


def score_bytes(model: Architecture, layout: Layout, software: Software) -> float:
    """Return the bytes of scores that unfused attention keeps: softmax output, dropout mask and output (5 a s)."""
    if software.flash_attention:
        return 0.0
    heads = model.num_attention_heads / layout.sizes.tensor_parallel_size
    return 5 * heads * tokens_per_rank(model, layout) * model.sequence_length


def saved_bytes(model: Architecture, layout: Layout, software: Software, moe: bool) -> float:
    """Return what a layer keeps until its backward pass under the layout's way of recomputing."""
    if layout.recompute in ("full", "partial"):
        return hidden_bytes(model, layout)
    whole = layer_bytes(model, layout, software, moe)
    if layout.recompute in ("none", "elementwise"):
        return whole
    if software.flat:
        # Selective runs the feed-forward block again, its normalisation included: only its input is kept.
        inner = 2 * ffn_width(model, moe) * tokens_per_rank(model, layout) / layout.sizes.tensor_parallel_size
        kept = layer_bytes(model, layout, replace(software, thrifty=False), moe)
        kept -= software.saved_factor * (inner + hidden_bytes(model, layout))
        return kept - hidden_bytes(model, layout) if software.thrifty else kept
    if layout.zero_stage == 3:
        return _every_second_product(model, layout)
    return whole - score_bytes(model, layout, software)


def _every_second_product(model: Architecture, layout: Layout) -> float:
    """Selective recomputation by operation (torchtitan): attention output and every second matrix product."""
    tensor = layout.sizes.tensor_parallel_size
    inner = (2 if model.gated else 1) * model.ffn_hidden_size
    products = model.query_width + 2 * model.kv_width + inner + 2 * model.hidden_size
    kept = products / 2 + model.query_width
    return hidden_bytes(model, layout) + 2 * tokens_per_rank(model, layout) * kept / tensor


def logits_bytes(model: Architecture, layout: Layout, bytes_per_logit: float) -> float:
    """Return the bytes of logits, their fp32 copy and gradient on the last stage."""
    tensor = layout.sizes.tensor_parallel_size
    return tokens_per_rank(model, layout) * padded_vocabulary(model.vocab_size, tensor) / tensor * bytes_per_logit
