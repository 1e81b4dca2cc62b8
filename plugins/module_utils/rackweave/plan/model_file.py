"""Models from mappings: our own keys (those of plan.json) or a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

from ..errors import PlanError
from ..hardware.rows import kind_of
from .architecture import MOST, Architecture, Experts, LatentAttention, require_size
from .presets import preset
from .rules import divisors

Config = Mapping[str, Any]
_DERIVED = {"parameters", "schema"}


def resolve_model(model: str | Config | Architecture, sequence_length: int | None = None) -> Architecture:
    """Return the architecture for a preset name or a mapping.

    Args:
        model: name of a preset, a mapping with our keys, or a Hugging Face configuration.
        sequence_length: tokens of one training sequence, if another than the model's own.

    Raises:
        PlanError: if the model is unknown or lacks a size.
    """
    if isinstance(model, str):
        architecture = preset(model)
    elif isinstance(model, Architecture):
        architecture = model
    elif isinstance(model, Mapping):
        architecture = read_architecture(model)
    else:
        raise PlanError(f"model must be a name or a mapping, not {kind_of(model)}")
    if sequence_length is None:
        return architecture
    return with_sequence_length(architecture, sequence_length)


def with_sequence_length(architecture: Architecture, sequence_length: int) -> Architecture:
    """Return the model trained at another sequence length; a learned position table must be long enough."""
    changed = {field.name: getattr(architecture, field.name) for field in fields(architecture)}
    if architecture.position_embedding == "learned":
        table = architecture.max_position_embeddings or architecture.sequence_length
        changed["max_position_embeddings"] = max(table, sequence_length)
    changed["sequence_length"] = sequence_length
    return Architecture(**changed)


def read_architecture(config: Config, name: str = "") -> Architecture:
    """Read a model from our own keys or from a Hugging Face configuration.

    Raises:
        PlanError: if a size is missing, of the wrong kind, or a key is unknown.
    """
    if "model_type" in config or "architectures" in config:
        return _read_hugging_face(config, name)
    return _read_native(config, name)


def _read_native(config: Config, name: str) -> Architecture:
    label = str(config.get("name") or name or "model")
    known = {field.name for field in fields(Architecture)} | _DERIVED
    unknown = sorted(set(config) - known)
    if unknown:
        raise PlanError(
            f"model {label}: unknown keys {', '.join(map(str, unknown))}; known are {', '.join(sorted(known))}"
        )
    values = {**_family_defaults(config, label), **{key: config[key] for key in config if key not in _DERIVED}}
    values["name"] = label
    values["experts"] = _part(Experts, values.get("experts"), label, "experts")
    values["latent_attention"] = _part(LatentAttention, values.get("latent_attention"), label, "latent_attention")
    return Architecture(**values)


def _family_defaults(config: Config, label: str) -> dict[str, Any]:
    """Fill what the family fixes; sizes that nothing fixes must be given."""
    for key in ("num_layers", "hidden_size", "num_attention_heads", "vocab_size"):
        _size(config, key, label)
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    family = config.get("family", "moe" if config.get("experts") else "gpt")
    if "head_dim" not in config and hidden % heads:
        raise PlanError(
            f"model {label}: hidden_size={hidden} is not a multiple of num_attention_heads={heads}; "
            f"give head_dim or choose {_nearest_divisor(hidden, heads)} heads"
        )
    gpt = family == "gpt"
    defaults: dict[str, Any] = {
        "family": family,
        "num_query_groups": heads,
        "head_dim": hidden // heads,
        "sequence_length": 2048 if gpt else 4096,
        "normalization": "layernorm" if gpt else "rmsnorm",
        "activation": "gelu" if gpt else "swiglu",
        "position_embedding": "learned" if gpt else "rotary",
        "rotary_base": 10000.0,
        "tied_embeddings": gpt,
        "linear_bias": gpt,
    }
    if config.get("activation", defaults["activation"]) == "gelu":
        defaults["ffn_hidden_size"] = 4 * hidden
    elif "ffn_hidden_size" not in config:
        raise PlanError(f"model {label}: ffn_hidden_size is missing; a gated feed-forward block has no usual width")
    return defaults


def _nearest_divisor(number: int, wish: int) -> int:
    return min(divisors(number), key=lambda value: abs(value - wish))


def _size(config: Config, key: str, label: str) -> int:
    value = config.get(key)
    if value is None:
        raise PlanError(f"model {label}: {key} is missing")
    require_size(label, key, value)
    return int(value)


def _part(kind: Any, value: Any, label: str, key: str) -> Any:
    if value is None or isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise PlanError(f"model {label}: {key} must be a mapping")
    names = {field.name for field in fields(kind)}
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    unknown, missing = sorted(set(value) - names), sorted(needed - set(value))
    if unknown or missing:
        raise PlanError(f"model {label}: {key} has unknown keys {unknown} and lacks {missing}")
    for name, number in value.items():
        if not isinstance(number, int) or not 0 <= number <= MOST:
            raise PlanError(f"model {label}: {key}.{name}={number!r} must be a whole number from 0 to {MOST}")
    return kind(**value)


def _read_hugging_face(config: Config, name: str) -> Architecture:
    kind = config.get("model_type")
    reader = _HUGGING_FACE.get(str(kind))
    label = name or str(config.get("_name_or_path") or kind)
    if reader is None:
        raise PlanError(
            f"model {label}: model_type={kind!r} is not one of {', '.join(sorted(_HUGGING_FACE))}; "
            "describe it with our own keys (num_layers, hidden_size, ...) instead"
        )
    return Architecture(name=label, **reader(config, label))


def _rotary_base(config: Config) -> float:
    nested = config.get("rope_parameters") or {}
    value = config.get("rope_theta", nested.get("rope_theta", config.get("rotary_emb_base", 10000.0)))
    return float(value)


def _llama_like(config: Config, label: str) -> dict[str, Any]:
    hidden, heads = _size(config, "hidden_size", label), _size(config, "num_attention_heads", label)
    if not config.get("head_dim") and hidden % heads:
        raise PlanError(f"model {label}: hidden_size={hidden} is not a multiple of num_attention_heads={heads}")
    kind = config.get("model_type")
    qkv_bias = bool(config.get("attention_bias", kind in ("qwen2", "qwen2_moe")))
    return {
        "family": "llama",
        "num_layers": _size(config, "num_hidden_layers", label),
        "hidden_size": hidden,
        "ffn_hidden_size": _size(config, "intermediate_size", label),
        "num_attention_heads": heads,
        "num_query_groups": int(config.get("num_key_value_heads") or heads),
        "head_dim": int(config.get("head_dim") or hidden // heads),
        "vocab_size": _size(config, "vocab_size", label),
        "sequence_length": min(int(config.get("max_position_embeddings") or 4096), 8192),
        "normalization": "rmsnorm",
        "activation": "swiglu",
        "position_embedding": "rotary",
        "rotary_base": _rotary_base(config),
        "tied_embeddings": bool(config.get("tie_word_embeddings", False)),
        "linear_bias": False,
        "qkv_bias": qkv_bias,
        "output_bias": qkv_bias and kind not in ("qwen2", "qwen2_moe"),
        "qk_norm": kind in ("qwen3", "qwen3_moe"),
    }


def _mixtral(config: Config, label: str) -> dict[str, Any]:
    shape = _llama_like(config, label)
    experts = Experts(
        _size(config, "num_local_experts", label), _size(config, "num_experts_per_tok", label), shape["ffn_hidden_size"]
    )
    return {**shape, "family": "moe", "experts": experts}


def _qwen_moe(config: Config, label: str) -> dict[str, Any]:
    shared = int(config.get("shared_expert_intermediate_size") or 0)
    experts = Experts(
        _size(config, "num_experts", label),
        _size(config, "num_experts_per_tok", label),
        _size(config, "moe_intermediate_size", label),
        shared_ffn_hidden_size=shared,
        shared_gate=bool(shared),
    )
    return {**_llama_like(config, label), "family": "moe", "experts": experts}


def _gpt_oss(config: Config, label: str) -> dict[str, Any]:
    shape = _llama_like({**config, "attention_bias": config.get("attention_bias", True)}, label)
    experts = Experts(
        _size(config, "num_local_experts", label),
        _size(config, "num_experts_per_tok", label),
        shape["ffn_hidden_size"],
        router_bias=True,
        expert_bias=True,
    )
    window = int(config.get("sliding_window") or 0)
    return {**shape, "family": "moe", "experts": experts, "attention_sinks": True, "attention_window": window}


def _deepseek(config: Config, label: str) -> dict[str, Any]:
    nope, rope = _size(config, "qk_nope_head_dim", label), _size(config, "qk_rope_head_dim", label)
    shape = _llama_like({**config, "head_dim": nope + rope, "attention_bias": False}, label)
    experts = Experts(
        _size(config, "n_routed_experts", label),
        _size(config, "num_experts_per_tok", label),
        _size(config, "moe_intermediate_size", label),
        shared_ffn_hidden_size=int(config.get("n_shared_experts") or 0) * config["moe_intermediate_size"],
        dense_layers=int(config.get("first_k_dense_replace") or 0),
        router_bias=config.get("model_type") == "deepseek_v3",
        domain_limit=int(config.get("topk_group") or 0),
    )
    latent = LatentAttention(
        int(config.get("q_lora_rank") or 0),
        _size(config, "kv_lora_rank", label),
        nope,
        rope,
        _size(config, "v_head_dim", label),
    )
    return {**shape, "family": "moe", "experts": experts, "latent_attention": latent}


def _gpt_like(
    config: Config, label: str, layers: str, hidden_key: str, heads_key: str, positions: str, tied: bool
) -> dict[str, Any]:
    hidden, heads = _size(config, hidden_key, label), _size(config, heads_key, label)
    if hidden % heads:
        raise PlanError(f"model {label}: {hidden_key}={hidden} is not a multiple of {heads_key}={heads}")
    length = int(config.get("n_positions") or config.get("max_position_embeddings") or config.get("seq_length") or 2048)
    return {
        "family": "gpt",
        "num_layers": _size(config, layers, label),
        "hidden_size": hidden,
        "ffn_hidden_size": int(config.get("n_inner") or config.get("intermediate_size") or 4 * hidden),
        "num_attention_heads": heads,
        "num_query_groups": heads,
        "head_dim": hidden // heads,
        "vocab_size": _size(config, "vocab_size", label),
        "sequence_length": length,
        "normalization": "layernorm",
        "activation": "gelu",
        "position_embedding": positions,
        "rotary_base": _rotary_base(config),
        "tied_embeddings": bool(config.get("tie_word_embeddings", tied)),
        "linear_bias": True,
    }


def _gpt2(config: Config, label: str) -> dict[str, Any]:
    return _gpt_like(config, label, "n_layer", "n_embd", "n_head", "learned", True)


def _gpt_neox(config: Config, label: str) -> dict[str, Any]:
    return _gpt_like(config, label, "num_hidden_layers", "hidden_size", "num_attention_heads", "rotary", False)


def _bloom(config: Config, label: str) -> dict[str, Any]:
    renamed = dict(config)
    for ours, theirs in (("n_layer", "num_hidden_layers"), ("n_head", "num_attention_heads")):
        renamed.setdefault(ours, config.get(theirs))
    renamed.setdefault("hidden_size", config.get("n_embed"))
    shape = _gpt_like(renamed, label, "n_layer", "hidden_size", "n_head", "alibi", True)
    return {**shape, "embedding_norm": True}


_HUGGING_FACE: dict[str, Callable[[Config, str], dict[str, Any]]] = {
    "llama": _llama_like,
    "mistral": _llama_like,
    "qwen2": _llama_like,
    "qwen3": _llama_like,
    "mixtral": _mixtral,
    "qwen2_moe": _qwen_moe,
    "qwen3_moe": _qwen_moe,
    "gpt_oss": _gpt_oss,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "bloom": _bloom,
}
