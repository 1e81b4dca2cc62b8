"""Model FLOPs of a token, in the convention that MFU is reported in."""

from __future__ import annotations

from .config import ModelConfig


def model_flops_per_token(model: ModelConfig) -> float:
    """Return FLOPs of forward and backward per token; recomputation not counted, attention counted as full.

    A multiply-add counts 2, the backward pass twice the forward pass. Source: Narayanan et al. 2021, appendix, without
    their recomputation term; the convention of Megatron-LM's own throughput log.
    """
    heads = model.head_dim * model.num_attention_heads
    groups = model.head_dim * model.num_query_groups
    gates = 3 if model.activation == "swiglu" else 2
    linear = model.hidden_size * (2 * heads + 2 * groups + gates * model.ffn_hidden_size)
    attention = 2 * model.sequence_length * heads
    forward = 2 * (model.num_layers * (linear + attention) + model.hidden_size * model.vocab_size)
    return 3.0 * forward
