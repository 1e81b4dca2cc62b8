"""Are Hugging Face weights those of the planned model? All is decided from config.json and the files' headers.

What is not known is refused: a bias or a norm that a Llama does not have would be dropped in silence otherwise.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..config import ModelConfig
from ..errors import StopError
from ..schema import read_json

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
KINDS = ("llama", "mistral")
"""Values of model_type with the same tensors and the same arithmetic; others scale, shift or normalise elsewhere."""
_IGNORED = re.compile(r"\.rotary_emb\.inv_freq$")


def require_llama_like(model: ModelConfig) -> None:
    """Raise StopError unless Hugging Face's Llama can hold this model."""
    wanted = {"normalization": "rmsnorm", "activation": "swiglu", "position_embedding": "rotary", "linear_bias": False}
    for name, value in wanted.items():
        if getattr(model, name) != value:
            raise StopError(f"Hugging Face's Llama has {name}={value}, this model {name}={getattr(model, name)}")


def check_architecture(file: Path, config: Mapping[str, Any], model: ModelConfig) -> None:
    """Raise StopError unless config.json describes the planned model."""
    require_llama_like(model)
    _check_kind(file, config, model)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise StopError(f"{file} has rope_parameters={rope!r}, which is no object")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise StopError(f"{file.parent} scales rotary positions ({kind}), which this trainer does not do")
    heads, hidden = _whole(file, config, "num_attention_heads"), _whole(file, config, "hidden_size")
    found = {
        "num_layers": config.get("num_hidden_layers"),
        "hidden_size": hidden,
        "ffn_hidden_size": config.get("intermediate_size"),
        "num_attention_heads": heads,
        "num_query_groups": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or hidden // heads,
        "rotary_base": rope.get("rope_theta", config.get("rope_theta", 10000.0)),
    }
    for name, value in found.items():
        if value != getattr(model, name):
            raise StopError(f"{file} has {name}={value}, the plan {getattr(model, name)}")


def _check_kind(file: Path, config: Mapping[str, Any], model: ModelConfig) -> None:
    if config.get("model_type", "llama") not in KINDS:
        raise StopError(f"{file} has model_type={config['model_type']!r}; this trainer reads {' and '.join(KINDS)}")
    for name, value in {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}.items():
        if config.get(name, value) != value:
            raise StopError(f"{file} has {name}={config[name]!r}; this trainer's Llama has {name}={value!r}")
    window = config.get("sliding_window")
    if isinstance(window, int) and window < model.sequence_length:
        raise StopError(f"{file} has sliding_window={window}, below the plan's sequence_length={model.sequence_length}")
    if model.tied_embeddings and not config.get("tie_word_embeddings", False):
        raise StopError(f"{file} has an output layer of its own, but the plan has tied_embeddings=true")
    epsilon = config.get("rms_norm_eps")
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 < epsilon < 1:
        raise StopError(f"{file} has rms_norm_eps={epsilon!r}, which is no number between 0 and 1")


def _whole(file: Path, config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise StopError(f"{file} has {name}={value!r}, which is no size")
    return value


def tensor_files(directory: Path) -> dict[str, str]:
    """Return the file of each tensor.

    Raises:
        StopError: if a file is absent or damaged.
    """
    index = directory / INDEX_FILE
    if not index.is_file():
        if not (directory / SINGLE_FILE).is_file():
            raise StopError(f"{directory} has neither {SINGLE_FILE} nor {INDEX_FILE}")
        return dict.fromkeys(tensor_shapes(directory / SINGLE_FILE), SINGLE_FILE)
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise StopError(f"{index} has no weight_map of names to files")
    absent = sorted({file for file in files.values() if not (directory / file).is_file()})
    if absent:
        raise StopError(f"{index} names {absent[0]}, which is not there")
    return files


def tensor_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the tensors in a safetensors file; its header is read, and compared with its length.

    Raises:
        StopError: if it is damaged, or safetensors is not installed.
    """
    try:
        library: Any = importlib.import_module("safetensors")
    except ImportError:
        raise StopError("the Python package safetensors is needed to read Hugging Face weights") from None
    try:
        with library.safe_open(file, framework="pt") as opened:
            return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
    except (library.SafetensorError, OSError) as error:
        raise StopError(f"{file} is damaged: {error}") from error


def check_tensors(directory: Path, files: Mapping[str, str], model: ModelConfig, tied: bool) -> None:
    """Raise StopError unless the files hold just the tensors of the model, in their shapes; every header is read."""
    wanted = dict(_wanted(model))
    found: dict[str, tuple[int, ...]] = {}
    for file in sorted(set(files.values())):
        found.update(tensor_shapes(directory / file))
    for name in files:
        if name not in found:
            raise StopError(f"{directory / INDEX_FILE} names {name} in {files[name]}, which does not hold it")
        if name not in wanted and not _IGNORED.search(name):
            raise StopError(f"{directory} holds {name}, which this trainer's Llama does not have")
    for name, shape in wanted.items():
        if name == "lm_head.weight" and tied:
            continue
        if name not in files:
            raise StopError(f"{directory} has no tensor {name}")
        rows = found[name][0] if len(found[name]) == 2 and name in _VOCABULARY else shape[0]
        if rows > shape[0]:
            raise StopError(f"{name} has {rows} rows, the plan only vocab_size={model.vocab_size}")
        if found[name] != (rows, *shape[1:]):
            raise StopError(f"{name} has shape {found[name]}, the plan's model {shape}")


_VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")
"""Their rows may be fewer than planned: the rest pads the vocabulary."""


def _wanted(model: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes of a model's tensors."""
    hidden, ffn = model.hidden_size, model.ffn_hidden_size
    queries, keys = model.num_attention_heads * model.head_dim, model.num_query_groups * model.head_dim
    layer = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (ffn, hidden),
        "mlp.up_proj": (ffn, hidden),
        "mlp.down_proj": (hidden, ffn),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    for name in _VOCABULARY:
        yield name, (model.vocab_size, hidden)
    yield "model.norm.weight", (hidden,)
    for index in range(model.num_layers):
        for name, shape in layer.items():
            yield f"model.layers.{index}.{name}.weight", shape
