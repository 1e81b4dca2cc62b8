"""Floating-point operations of a step, in the conventions in which throughput is published."""

from __future__ import annotations

from .architecture import Architecture

CONVENTIONS = ("megatron-model", "megatron-hardware", "llm-foundry", "nemo")


def flops_per_token(model: Architecture, convention: str) -> float:
    """Return the FLOPs that a convention books for one trained token.

    `megatron-model`: 72 l h^2 (1 + s/6h + V/12lh) generalised, attention not halved (arXiv:2104.04473, 2205.05198).
    `megatron-hardware`: the same with every layer's forward pass counted twice (full recomputation).
    `llm-foundry`: 6 N + 12 l h s, N with embeddings, attention not halved (PaLM appendix B).
    `nemo`: 6 (N - V h) + 6 l h s, attention halved by the causal mask.
    For mixtures N counts the experts of one token.
    """
    active = model.active_parameters
    table = model.vocab_size * model.hidden_size
    scores = model.num_layers * model.query_width * model.sequence_length
    if convention == "llm-foundry":
        return 6 * active + 12 * scores
    outside = table * (1 if model.tied_embeddings else 2)
    layers = active - outside
    if convention == "nemo":
        return 6 * (layers + table) + 6 * scores
    passes = 8 if convention == "megatron-hardware" else 6
    return passes * (layers + 2 * scores) + 6 * table


def model_flops_utilization(tokens_per_second_per_gpu: float, flops: float, peak_flops_per_second: float) -> float:
    """Return the share of the dense peak that useful FLOPs use, recomputation not counted (PaLM appendix B)."""
    return tokens_per_second_per_gpu * flops / peak_flops_per_second
