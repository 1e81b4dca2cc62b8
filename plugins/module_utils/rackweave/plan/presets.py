"""Models known by name, as rows of a table: published shapes, each with its source."""

from __future__ import annotations

from ..errors import PlanError
from .architecture import Architecture, Experts, LatentAttention


def _gpt(name: str, layers: int, hidden: int, heads: int, vocab: int = 50257, sequence: int = 2048) -> Architecture:
    return Architecture(
        name=name,
        family="gpt",
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=4 * hidden,
        num_attention_heads=heads,
        num_query_groups=heads,
        head_dim=hidden // heads,
        vocab_size=vocab,
        sequence_length=sequence,
        normalization="layernorm",
        activation="gelu",
        position_embedding="learned",
        rotary_base=10000.0,
        tied_embeddings=True,
        linear_bias=True,
    )


def _llama(
    name: str,
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    groups: int,
    vocab: int,
    sequence: int,
    base: float,
    **extra: object,
) -> Architecture:
    settings: dict[str, object] = {
        "family": "llama",
        "head_dim": hidden // heads,
        "normalization": "rmsnorm",
        "activation": "swiglu",
        "position_embedding": "rotary",
        "tied_embeddings": False,
        "linear_bias": False,
    }
    settings.update(extra)
    return Architecture(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_attention_heads=heads,
        num_query_groups=groups,
        vocab_size=vocab,
        sequence_length=sequence,
        rotary_base=base,
        **settings,  # type: ignore[arg-type]
    )


# GPT-3: arXiv:2005.14165, Table 2.1 (13B uses 5120 = 40 x 128; the table's 5140 is not a multiple of its heads; XL
# uses 16 heads, as 24 x 128 exceeds its width). gpt-1t: arXiv:2104.04473, Table 1. gpt-400b is ours: a round 400B.
# Llama: arXiv:2307.09288, arXiv:2407.21783 and the published config.json files. BLOOM: arXiv:2211.05100.
# Mixtral, Qwen3, GPT-OSS and DeepSeek: config.json of the published checkpoints.
_TABLE = (
    _gpt("gpt3-1.3b", 24, 2048, 16),
    _gpt("gpt3-2.7b", 32, 2560, 32),
    _gpt("gpt3-6.7b", 32, 4096, 32),
    _gpt("gpt3-13b", 40, 5120, 40),
    _gpt("gpt3-175b", 96, 12288, 96),
    _gpt("gpt-400b", 72, 21504, 168, vocab=51200),
    _gpt("gpt-1t", 128, 25600, 160, vocab=51200),
    _llama("llama2-7b", 32, 4096, 11008, 32, 32, 32000, 4096, 10000.0),
    _llama("llama2-13b", 40, 5120, 13824, 40, 40, 32000, 4096, 10000.0),
    _llama("llama2-70b", 80, 8192, 28672, 64, 8, 32000, 4096, 10000.0),
    _llama("llama3-8b", 32, 4096, 14336, 32, 8, 128256, 8192, 500000.0),
    _llama("llama3-70b", 80, 8192, 28672, 64, 8, 128256, 8192, 500000.0),
    _llama("llama3-405b", 126, 16384, 53248, 128, 8, 128256, 8192, 500000.0),
    Architecture(
        name="bloom-176b",
        family="gpt",
        num_layers=70,
        hidden_size=14336,
        ffn_hidden_size=57344,
        num_attention_heads=112,
        num_query_groups=112,
        head_dim=128,
        vocab_size=250880,
        sequence_length=2048,
        normalization="layernorm",
        activation="gelu",
        position_embedding="alibi",
        rotary_base=10000.0,
        tied_embeddings=True,
        linear_bias=True,
        embedding_norm=True,
    ),
    _llama("mixtral-8x7b", 32, 4096, 14336, 32, 8, 32000, 4096, 1000000.0, family="moe", experts=Experts(8, 2, 14336)),
    _llama("mixtral-8x22b", 56, 6144, 16384, 48, 8, 32000, 4096, 1000000.0, family="moe", experts=Experts(8, 2, 16384)),
    _llama(
        "qwen3-30b-a3b",
        48,
        2048,
        6144,
        32,
        4,
        151936,
        4096,
        1000000.0,
        family="moe",
        head_dim=128,
        qk_norm=True,
        experts=Experts(128, 8, 768),
    ),
    _llama(
        "qwen3-235b-a22b",
        94,
        4096,
        12288,
        64,
        4,
        151936,
        4096,
        1000000.0,
        family="moe",
        head_dim=128,
        qk_norm=True,
        experts=Experts(128, 8, 1536),
    ),
    _llama(
        "gpt-oss-120b",
        36,
        2880,
        2880,
        64,
        8,
        201088,
        4096,
        150000.0,
        family="moe",
        head_dim=64,
        qkv_bias=True,
        output_bias=True,
        attention_sinks=True,
        attention_window=128,
        experts=Experts(128, 4, 2880, router_bias=True, expert_bias=True),
    ),
    _llama(
        "deepseek-v2",
        60,
        5120,
        12288,
        128,
        128,
        102400,
        4096,
        10000.0,
        family="moe",
        head_dim=192,
        experts=Experts(160, 6, 1536, shared_ffn_hidden_size=3072, dense_layers=1, domain_limit=3),
        latent_attention=LatentAttention(1536, 512, 128, 64, 128),
    ),
    _llama(
        "deepseek-v3",
        61,
        7168,
        18432,
        128,
        128,
        129280,
        4096,
        10000.0,
        family="moe",
        head_dim=192,
        experts=Experts(256, 8, 2048, shared_ffn_hidden_size=2048, dense_layers=3, router_bias=True, domain_limit=4),
        latent_attention=LatentAttention(1536, 512, 128, 64, 128),
    ),
)
PRESETS = {row.name: row for row in _TABLE}


def preset(name: str) -> Architecture:
    """Return a model known by name.

    Raises:
        PlanError: if the name is unknown; the message lists the names.
    """
    try:
        return PRESETS[name]
    except KeyError:
        raise PlanError(
            f"unknown model {name!r}; known are {', '.join(PRESETS)}, or give a JSON file with its sizes"
        ) from None
