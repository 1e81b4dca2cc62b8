"""The yardstick: a GPT in plain PyTorch as a user would write it well, trained on one GPU or with DDP or FSDP2.

fp32 weights and moments, bfloat16 autocast, scaled_dot_product_attention, fused AdamW, gradient clipping and
torch.compile over the whole model. Architecture and parameter shapes are the trainer's own, so weights can be copied.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import ModelConfig

NORM_EPSILON = 1e-5


class PeerNorm(nn.Module):
    """LayerNorm or RMSNorm."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(model.hidden_size))
        self.bias = nn.Parameter(torch.zeros(model.hidden_size)) if model.normalization == "layernorm" else None

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the normalised hidden states."""
        if self.bias is None:
            return F.rms_norm(hidden, self.weight.shape, self.weight, NORM_EPSILON)
        return F.layer_norm(hidden, self.weight.shape, self.weight, self.bias, NORM_EPSILON)


class PeerAttention(nn.Module):
    """Causal self-attention over (batch, sequence, hidden)."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self._groups, self._head_dim = model.num_query_groups, model.head_dim
        self._per_group = model.num_attention_heads // model.num_query_groups
        width = model.head_dim * (model.num_attention_heads + 2 * model.num_query_groups)
        self.linear_qkv = nn.Linear(model.hidden_size, width, bias=model.linear_bias)
        self.linear_proj = nn.Linear(
            model.head_dim * model.num_attention_heads, model.hidden_size, bias=model.linear_bias
        )

    def forward(self, hidden: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        """Return the attention block's output."""
        batch, length, _ = hidden.shape
        mixed = self.linear_qkv(hidden).view(batch, length, self._groups, self._per_group + 2, self._head_dim)
        query, key, value = mixed.split((self._per_group, 1, 1), dim=3)
        query = query.reshape(batch, length, -1, self._head_dim).transpose(1, 2)
        key, value = key.squeeze(3).transpose(1, 2), value.squeeze(3).transpose(1, 2)
        if rotary is not None:
            query, key = _rotate(query, *rotary), _rotate(key, *rotary)
        context = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=self._per_group > 1)
        output: Tensor = self.linear_proj(context.transpose(1, 2).reshape(batch, length, -1))
        return output


def _rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    wide = heads.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cosine + torch.cat((-second, first), dim=-1) * sine).to(heads.dtype)


class PeerMlp(nn.Module):
    """GELU or SwiGLU feed-forward."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self._gated = model.activation == "swiglu"
        width = model.ffn_hidden_size * (2 if self._gated else 1)
        self.linear_fc1 = nn.Linear(model.hidden_size, width, bias=model.linear_bias)
        self.linear_fc2 = nn.Linear(model.ffn_hidden_size, model.hidden_size, bias=model.linear_bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the feed-forward block's output."""
        inner = self.linear_fc1(hidden)
        if self._gated:
            gate, up = inner.chunk(2, dim=-1)
            inner = F.silu(gate) * up
        else:
            inner = F.gelu(inner)
        output: Tensor = self.linear_fc2(inner)
        return output


class PeerLayer(nn.Module):
    """Pre-norm transformer layer."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = PeerNorm(model)
        self.self_attention = PeerAttention(model)
        self.pre_mlp_layernorm = PeerNorm(model)
        self.mlp = PeerMlp(model)

    def forward(self, hidden: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        """Return the layer's output, (batch, sequence, hidden)."""
        hidden = hidden + self.self_attention(self.input_layernorm(hidden), rotary)
        output: Tensor = hidden + self.mlp(self.pre_mlp_layernorm(hidden))
        return output


class PeerGpt(nn.Module):
    """The whole model; returns the mean loss in nats."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(model.vocab_size, model.hidden_size)
        self.positions = None
        if model.position_embedding == "learned":
            self.positions = nn.Embedding(model.sequence_length, model.hidden_size)
        self.layers = nn.ModuleList(PeerLayer(model) for _ in range(model.num_layers))
        self.final_layernorm = PeerNorm(model)
        self.output_layer = nn.Linear(model.hidden_size, model.vocab_size, bias=False)
        if model.tied_embeddings:
            self.output_layer.weight = self.embedding.weight
        self._rotary = model.position_embedding == "rotary"
        if self._rotary:
            exponents = torch.arange(0, model.head_dim, 2, dtype=torch.float32) / model.head_dim
            angles = torch.outer(
                torch.arange(model.sequence_length).float(), float(model.rotary_base or 0) ** -exponents
            )
            angles = torch.cat((angles, angles), dim=-1)
            self.register_buffer("cosine", angles.cos(), persistent=False)
            self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross entropy of tokens (batch, sequence) against labels of the same shape."""
        hidden = self.embedding(tokens)
        if self.positions is not None:
            hidden = hidden + self.positions.weight[: tokens.shape[1]]
        rotary = (self.cosine, self.sine) if self._rotary else None
        for layer in self.layers:
            hidden = layer(hidden, rotary)
        logits = self.output_layer(self.final_layernorm(hidden))
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def peer_name(trainer_name: str) -> str:
    """Return the peer's name of a parameter of the trainer's model."""
    name = trainer_name.replace("embedding.word_embeddings", "embedding")
    name = name.replace("embedding.position_embeddings", "positions")
    return name.replace("decoder.", "")
