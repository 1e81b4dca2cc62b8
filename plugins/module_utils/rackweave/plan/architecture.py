"""What a model is: shapes and exact parameter counts. Not how it is cut (layout) or how fast it runs (step_time)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ..errors import PlanError

MOST = 2**31 - 1  # sizes are 32-bit numbers in configurations and kernels
FAMILIES = ("gpt", "llama", "moe")
_CHOICES = {
    "family": FAMILIES,
    "normalization": ("layernorm", "rmsnorm"),
    "activation": ("gelu", "swiglu"),
    "position_embedding": ("learned", "rotary", "alibi"),
}


@dataclass(frozen=True)
class Experts:
    """A mixture-of-experts feed-forward block; widths count elements of one expert.

    `domain_limit` is the most expert groups (hosts) that a token's experts lie in, 0 without a limit.
    """

    num_experts: int
    experts_per_token: int
    ffn_hidden_size: int
    shared_ffn_hidden_size: int = 0
    dense_layers: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    domain_limit: int = 0


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek V2); all values count elements, q_lora_rank 0 means a plain query."""

    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True)
class Architecture:
    """Shape of a decoder-only transformer; `num_query_groups` is the number of KV heads."""

    name: str
    family: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    head_dim: int
    vocab_size: int
    sequence_length: int
    normalization: str
    activation: str
    position_embedding: str
    rotary_base: float
    tied_embeddings: bool
    linear_bias: bool
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    embedding_norm: bool = False
    attention_sinks: bool = False
    attention_window: int = 0
    max_position_embeddings: int = 0
    experts: Experts | None = None
    latent_attention: LatentAttention | None = None

    def __post_init__(self) -> None:
        for name in (
            "num_layers",
            "hidden_size",
            "ffn_hidden_size",
            "num_attention_heads",
            "num_query_groups",
            "head_dim",
            "vocab_size",
            "sequence_length",
        ):
            require_size(self.name, name, getattr(self, name))
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise PlanError(f"model {self.name}: {name}={getattr(self, name)!r} is not one of {', '.join(choices)}")
        if self.num_attention_heads % self.num_query_groups:
            raise PlanError(
                f"model {self.name}: num_attention_heads={self.num_attention_heads} is not a multiple of "
                f"num_query_groups={self.num_query_groups}"
            )
        experts = self.experts
        if experts is not None and not 1 <= experts.experts_per_token <= experts.num_experts:
            raise PlanError(
                f"model {self.name}: experts_per_token={experts.experts_per_token} must be 1 to "
                f"num_experts={experts.num_experts}"
            )

    @property
    def gated(self) -> bool:
        """Whether the feed-forward block multiplies a gate into its up projection."""
        return self.activation == "swiglu"

    @property
    def query_width(self) -> int:
        """Elements of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of all key heads together (values have as many)."""
        return self.num_query_groups * self.head_dim

    @property
    def num_moe_layers(self) -> int:
        """Layers whose feed-forward block is a mixture of experts."""
        return 0 if self.experts is None else self.num_layers - self.experts.dense_layers

    @property
    def attention_parameters(self) -> int:
        """Parameters of one attention block, without its input normalisation."""
        if self.latent_attention is not None:
            return _latent_attention_parameters(self, self.latent_attention)
        qkv_width = self.query_width + 2 * self.kv_width
        count = self.hidden_size * qkv_width + self.query_width * self.hidden_size
        count += qkv_width if self.linear_bias or self.qkv_bias else 0
        count += self.hidden_size if self.linear_bias or self.output_bias else 0
        count += 2 * self.head_dim if self.qk_norm else 0
        return count + (self.num_attention_heads if self.attention_sinks else 0)

    @property
    def mlp_parameters(self) -> int:
        """Parameters of one dense feed-forward block."""
        return _mlp_parameters(self, self.ffn_hidden_size, self.linear_bias)

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert (0 for dense models)."""
        if self.experts is None:
            return 0
        return _mlp_parameters(self, self.experts.ffn_hidden_size, self.experts.expert_bias)

    @property
    def router_parameters(self) -> int:
        """Parameters of router and shared expert of one mixture layer, the routed experts left out."""
        moe = self.experts
        if moe is None:
            return 0
        count = self.hidden_size * moe.num_experts + (moe.num_experts if moe.router_bias else 0)
        if moe.shared_ffn_hidden_size:
            count += _mlp_parameters(self, moe.shared_ffn_hidden_size, False)
        return count + (self.hidden_size if moe.shared_gate else 0)

    @property
    def norm_parameters(self) -> int:
        """Parameters of one normalisation over the hidden size."""
        return self.hidden_size * (2 if self.normalization == "layernorm" else 1)

    @property
    def layer_parameters(self) -> int:
        """Parameters of one dense layer with its two normalisations."""
        return self.attention_parameters + self.mlp_parameters + 2 * self.norm_parameters

    @property
    def moe_layer_parameters(self) -> int:
        """Parameters of one mixture layer with all its experts."""
        if self.experts is None:
            return 0
        routed = self.experts.num_experts * self.expert_parameters
        return self.attention_parameters + routed + self.router_parameters + 2 * self.norm_parameters

    @property
    def input_parameters(self) -> int:
        """Parameters of the first stage besides layers: word and position embeddings."""
        count = self.vocab_size * self.hidden_size
        if self.position_embedding == "learned":
            count += (self.max_position_embeddings or self.sequence_length) * self.hidden_size
        return count + (self.norm_parameters if self.embedding_norm else 0)

    @property
    def output_parameters(self) -> int:
        """Parameters of the last stage besides layers: final normalisation and, if untied, the head."""
        return self.norm_parameters + (0 if self.tied_embeddings else self.vocab_size * self.hidden_size)

    @property
    def parameters(self) -> int:
        """Exact number of parameters, tied ones counted once."""
        dense = (self.num_layers - self.num_moe_layers) * self.layer_parameters
        moe = self.num_moe_layers * self.moe_layer_parameters
        return dense + moe + self.input_parameters + self.output_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token meets: all of a dense model, the chosen experts of a mixture."""
        if self.experts is None:
            return self.parameters
        idle = self.experts.num_experts - self.experts.experts_per_token
        return self.parameters - self.num_moe_layers * idle * self.expert_parameters

    def as_dict(self) -> dict[str, Any]:
        """Return the `model` object of plan.json; keys beyond the contract appear only where they say something."""
        base: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _OPTIONAL:
                if value:
                    base[field.name] = value if isinstance(value, (bool, int)) else dict(vars(value))
            else:
                base[field.name] = value
        return {**base, "parameters": self.parameters}


_OPTIONAL = {
    "qkv_bias",
    "output_bias",
    "qk_norm",
    "embedding_norm",
    "attention_sinks",
    "attention_window",
    "max_position_embeddings",
    "experts",
    "latent_attention",
}


def require_size(model: str, name: str, value: object) -> None:
    """Refuse what is no size: not a whole number, or one that nothing can count.

    Raises:
        PlanError: naming model, quantity and value.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise PlanError(f"model {model}: {name}={value!r} must be a whole number of at least 1")
    if value > MOST:
        raise PlanError(f"model {model}: {name}={value} is more than {MOST}, which the frameworks can count")


def _mlp_parameters(model: Architecture, width: int, bias: bool) -> int:
    matrices = 3 if model.gated else 2
    count = matrices * model.hidden_size * width
    return count + ((matrices - 1) * width + model.hidden_size if bias else 0)


def _latent_attention_parameters(model: Architecture, mla: LatentAttention) -> int:
    """Count the projections of DeepSeek V2's attention (arXiv:2405.04434, section 2.1)."""
    heads, hidden = model.num_attention_heads, model.hidden_size
    query_head = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    if mla.q_lora_rank:
        query = hidden * mla.q_lora_rank + mla.q_lora_rank + mla.q_lora_rank * heads * query_head
    else:
        query = hidden * heads * query_head
    down = hidden * (mla.kv_lora_rank + mla.qk_rope_head_dim) + mla.kv_lora_rank
    up = mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    return query + down + up + heads * mla.v_head_dim * hidden
