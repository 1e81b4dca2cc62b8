"""A transformer layer of Megatron core's column- and row-parallel linears.

Parameter names and layouts are those of Megatron core's GPTModel (a contract test compares both), so checkpoints and
tools keep their meaning. Shapes are (sequence, batch, hidden); under sequence parallelism the sequence is split over
the tensor group between the linears.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    checkpoint,
    copy_to_tensor_model_parallel_region,
    get_cuda_rng_tracker,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from ..config import ModelConfig

NORM_EPSILON = 1e-5


@dataclass(frozen=True)
class LayerOptions:
    """What a layer needs beside Megatron's configuration; probabilities and booleans.

    `device` is where the model will run; parameters are made on torch's current default device (see model.build).
    """

    model: ModelConfig
    device: torch.device
    sequence_parallel: bool
    hidden_dropout: float
    attention_dropout: float
    recompute_mlp: bool
    norm_epsilon: float = NORM_EPSILON


def shared_over_sequence(parameter: Tensor, sequence_parallel: bool, group: torch.distributed.ProcessGroup) -> Tensor:
    """Return a replicated parameter for use on a split sequence: its gradient is summed over the tensor group.

    The sum happens inside autograd, before any engine sees the gradient, so it is right for every ZeRO stage.
    """
    if not sequence_parallel:
        return parameter
    summed: Tensor = copy_to_tensor_model_parallel_region(parameter, group=group)
    return summed


class ParallelNorm(nn.Module):
    """LayerNorm or RMSNorm over the hidden axis."""

    def __init__(self, options: LayerOptions, config: TransformerConfig, group: torch.distributed.ProcessGroup) -> None:
        super().__init__()
        model = options.model
        self._group, self._sequence_parallel = group, options.sequence_parallel
        self._epsilon = options.norm_epsilon
        shape = (model.hidden_size,)
        self.weight = nn.Parameter(torch.empty(shape, dtype=config.params_dtype))
        bias = torch.empty(shape, dtype=config.params_dtype) if model.normalization == "layernorm" else None
        self.bias = None if bias is None else nn.Parameter(bias)

    def forward(self, hidden: Tensor) -> Tensor:
        weight = self._shared(self.weight)
        if self.bias is None:
            return F.rms_norm(hidden, weight.shape, weight, self._epsilon)
        return F.layer_norm(hidden, weight.shape, weight, self._shared(self.bias), self._epsilon)

    def _shared(self, parameter: Tensor) -> Tensor:
        return shared_over_sequence(parameter, self._sequence_parallel, self._group)


class RowLinear(RowParallelLinear):
    """Row-parallel linear whose bias, added by the caller, is right on a split sequence too."""

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        output, bias = super().forward(hidden)
        if bias is not None:
            bias = shared_over_sequence(bias, self.sequence_parallel, self.tp_group)
        return output, bias


class Rotary(nn.Module):
    """Cosines and sines of rotary positions, (sequence, 1, 1, head_dim), in float32.

    Source: Su et al. 2021 (RoFormer), with the two halves of a head rotated against each other as Llama does.
    """

    def __init__(self, model: ModelConfig, device: torch.device) -> None:
        super().__init__()
        base = float(model.rotary_base or 0.0)
        # A table of values, so it is made for real while the parameters are only outlined.
        exponents = torch.arange(0, model.head_dim, 2, dtype=torch.float32, device="cpu") / model.head_dim
        positions = torch.arange(model.sequence_length, dtype=torch.float32, device="cpu")
        angles = torch.outer(positions, base**-exponents)
        angles = torch.cat((angles, angles), dim=-1)[:, None, None, :]
        self.register_buffer("cosine", angles.cos().to(device), persistent=False)
        self.register_buffer("sine", angles.sin().to(device), persistent=False)

    def forward(self, length: int) -> tuple[Tensor, Tensor]:
        return self.cosine[:length], self.sine[:length]  # type: ignore[index]


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Apply rotary positions to (sequence, batch, heads, head_dim), in float32."""
    wide = heads.float()
    first, second = wide.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (wide * cosine + turned * sine).to(heads.dtype)


class SelfAttention(nn.Module):
    """Causal self-attention, with grouped queries where the model has fewer query groups than heads."""

    def __init__(self, options: LayerOptions, config: TransformerConfig, group: torch.distributed.ProcessGroup) -> None:
        super().__init__()
        model = options.model
        tp_size = torch.distributed.get_world_size(group)
        self._groups = model.num_query_groups // tp_size
        self._heads_per_group = model.num_attention_heads // model.num_query_groups
        self._head_dim, self._dropout = model.head_dim, options.attention_dropout
        width = model.head_dim * (model.num_attention_heads + 2 * model.num_query_groups)
        common = {"config": config, "init_method": _no_init, "bias": model.linear_bias, "tp_group": group}
        self.linear_qkv = ColumnParallelLinear(model.hidden_size, width, gather_output=False, **common)
        self.linear_proj = RowLinear(
            model.head_dim * model.num_attention_heads,
            model.hidden_size,
            input_is_parallel=True,
            skip_bias_add=True,
            **common,
        )

    def forward(self, hidden: Tensor, rotary: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor | None]:
        mixed, _ = self.linear_qkv(hidden)
        length, batch, _ = mixed.shape
        # Rows of the weight are grouped: the queries of a group, then its key, then its value (Megatron's layout).
        mixed = mixed.view(length, batch, self._groups, self._heads_per_group + 2, self._head_dim)
        query, key, value = mixed.split((self._heads_per_group, 1, 1), dim=3)
        query = query.reshape(length, batch, -1, self._head_dim)
        key, value = key.squeeze(3), value.squeeze(3)
        if rotary is not None:
            query, key = rotate(query, *rotary), rotate(key, *rotary)
        context = self._attend(query, key, value)
        output: tuple[Tensor, Tensor | None] = self.linear_proj(context.reshape(length, batch, -1))
        return output

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend on (sequence, batch, heads, head_dim)."""
        dropout = self._dropout if self.training else 0.0
        q, k, v = (part.permute(1, 2, 0, 3) for part in (query, key, value))
        grouped = self._heads_per_group > 1
        if dropout == 0.0:
            context = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        else:
            # Heads are split over the tensor group, so each of its ranks draws its own mask.
            with get_cuda_rng_tracker().fork():
                context = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, enable_gqa=grouped)
        return context.permute(2, 0, 1, 3)


class Mlp(nn.Module):
    """Feed-forward block: GELU, or SwiGLU with gate and up-projection in one linear."""

    def __init__(self, options: LayerOptions, config: TransformerConfig, group: torch.distributed.ProcessGroup) -> None:
        super().__init__()
        model = options.model
        self._gated = model.activation == "swiglu"
        width = model.ffn_hidden_size * (2 if self._gated else 1)
        common = {"config": config, "init_method": _no_init, "bias": model.linear_bias, "tp_group": group}
        self.linear_fc1 = ColumnParallelLinear(model.hidden_size, width, gather_output=False, **common)
        self.linear_fc2 = RowLinear(
            model.ffn_hidden_size, model.hidden_size, input_is_parallel=True, skip_bias_add=True, **common
        )

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        inner, _ = self.linear_fc1(hidden)
        if self._gated:
            gate, up = inner.chunk(2, dim=-1)
            inner = F.silu(gate) * up
        else:
            inner = F.gelu(inner)
        output: tuple[Tensor, Tensor | None] = self.linear_fc2(inner)
        return output


class TransformerLayer(nn.Module):
    """Pre-norm layer: attention and feed-forward, each added to the residual stream."""

    def __init__(self, options: LayerOptions, config: TransformerConfig, group: torch.distributed.ProcessGroup) -> None:
        super().__init__()
        self._options = options
        self.input_layernorm = ParallelNorm(options, config, group)
        self.self_attention = SelfAttention(options, config, group)
        self.pre_mlp_layernorm = ParallelNorm(options, config, group)
        self.mlp = Mlp(options, config, group)

    def forward(self, hidden: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        attended, bias = self.self_attention(self.input_layernorm(hidden), rotary)
        hidden = self._add(hidden, attended, bias)
        if self._options.recompute_mlp and self.training:
            output: Tensor = run_again_in_backward(self._options, self._feed_forward, hidden)
            return self._add(hidden, output, None)
        return self._add(hidden, self._feed_forward(hidden), None)

    def _feed_forward(self, hidden: Tensor) -> Tensor:
        output: Tensor
        output, bias = self.mlp(self.pre_mlp_layernorm(hidden))
        return output if bias is None else output + bias

    def _add(self, residual: Tensor, output: Tensor, bias: Tensor | None) -> Tensor:
        if bias is not None:
            output = output + bias
        return residual + drop(output, self._options.hidden_dropout, self.training, self._options.sequence_parallel)


def run_again_in_backward(options: LayerOptions, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Run a function without keeping its activations.

    Megatron's checkpoint restores the random states of all tensor ranks, which makes the host wait for the GPU twice a
    call; a model that draws nothing needs none of it.
    """
    if options.hidden_dropout > 0.0 or options.attention_dropout > 0.0:
        output: Tensor = checkpoint(function, False, *inputs)
        return output
    plain: Tensor = torch_checkpoint(function, *inputs, use_reentrant=True, preserve_rng_state=False)
    return plain


def drop(hidden: Tensor, probability: float, training: bool, sequence_parallel: bool) -> Tensor:
    """Dropout on the residual stream: split sequences draw per tensor rank, replicated ones draw alike."""
    if probability == 0.0 or not training:
        return hidden
    if not sequence_parallel:
        return F.dropout(hidden, probability)
    with get_cuda_rng_tracker().fork():
        return F.dropout(hidden, probability)


def _no_init(weight: Tensor) -> None:
    """Megatron asks for an initialiser; ours runs later, by global name (trainer.model.init)."""
