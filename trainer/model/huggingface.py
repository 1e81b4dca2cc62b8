"""Llama-like weights in Hugging Face's layout: read into any of our layouts, and written from a checkpoint.

Ours differ in two places: queries, keys and values are one matrix, grouped by query group (the queries of a group, then
its key, then its value); gate and up-projection are one matrix, gate first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config import ModelConfig
from ..errors import StopError
from ..schema import read_json
from .huggingface_check import INDEX_FILE, SINGLE_FILE, check_architecture, check_tensors, tensor_files

SHARD_BYTES = 5 * 10**9
_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.(.+)$")
_OUTSIDE = {
    "embedding.word_embeddings.weight": "model.embed_tokens.weight",
    "decoder.final_layernorm.weight": "model.norm.weight",
    "output_layer.weight": "lm_head.weight",
}
_SAME = {
    "input_layernorm.weight": "input_layernorm.weight",
    "pre_mlp_layernorm.weight": "post_attention_layernorm.weight",
    "self_attention.linear_proj.weight": "self_attn.o_proj.weight",
    "mlp.linear_fc2.weight": "mlp.down_proj.weight",
}
Read = Callable[[str], Tensor]


class HuggingFaceWeights:
    """A directory with config.json and safetensors; one whole tensor is in memory at a time."""

    def __init__(self, directory: Path, model: ModelConfig) -> None:
        self._directory, self._model = directory, model
        self.config = read_json(directory / "config.json")
        check_architecture(directory / "config.json", self.config, model)
        self._files = tensor_files(directory)

    @property
    def _tied(self) -> bool:
        return self._model.tied_embeddings or bool(self.config.get("tie_word_embeddings", False))

    def check_tensors(self) -> None:
        """Raise StopError unless the files hold just the tensors of the model; the header of each file is read."""
        check_tensors(self._directory, self._files, self._model, self._tied)

    @property
    def norm_epsilon(self) -> float:
        """Epsilon of the RMS norms."""
        return float(self.config["rms_norm_eps"])

    def whole(self, name: str) -> Tensor:
        """Return a whole tensor by our global name, float32 on the CPU.

        Raises:
            StopError: if the directory lacks it or it has another shape than the plan's model.
        """
        tensor = gather_tensor(name, self._model, self._read)
        if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
            tensor = self._pad_vocabulary(name, tensor)
        return tensor

    def _read(self, name: str) -> Tensor:
        from safetensors import safe_open

        if name == "lm_head.weight" and name not in self._files and self._tied:
            name = "model.embed_tokens.weight"
        if name not in self._files:
            raise StopError(f"{self._directory} has no tensor {name}")
        with safe_open(self._directory / self._files[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor.float()

    def _pad_vocabulary(self, name: str, tensor: Tensor) -> Tensor:
        """Add rows of zeros for tokens that pad the vocabulary to a multiple of the tensor-parallel size."""
        missing = self._model.vocab_size - tensor.shape[0]
        if missing < 0:
            raise StopError(f"{name} has {tensor.shape[0]} rows, the plan only vocab_size={self._model.vocab_size}")
        return torch.nn.functional.pad(tensor, (0, 0, 0, missing))


def gather_tensor(name: str, model: ModelConfig, read: Read) -> Tensor:
    """Return one of our whole tensors from Hugging Face's."""
    match = _LAYER.match(name)
    if match is None:
        return read(_OUTSIDE[name])
    prefix, inner = f"model.layers.{match.group(1)}.", match.group(2)
    if inner in _SAME:
        return read(prefix + _SAME[inner])
    if inner == "mlp.linear_fc1.weight":
        return torch.cat([read(f"{prefix}mlp.{part}_proj.weight") for part in ("gate", "up")])
    if inner == "self_attention.linear_qkv.weight":
        parts = [read(f"{prefix}self_attn.{part}_proj.weight") for part in ("q", "k", "v")]
        grouped = [part.view(model.num_query_groups, -1, part.shape[1]) for part in parts]
        return torch.cat(grouped, dim=1).reshape(-1, model.hidden_size)
    raise StopError(f"{name} has no counterpart in a Hugging Face Llama model")


def scatter_tensor(name: str, tensor: Tensor, model: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield Hugging Face's names and tensors of one of our whole tensors; the inverse of `gather_tensor`.

    A matrix of a layer may have any number of columns, as an adapter's has.
    """
    match = _LAYER.match(name)
    if match is None:
        yield _OUTSIDE[name], tensor
        return
    prefix, inner = f"model.layers.{match.group(1)}.", match.group(2)
    if inner in _SAME:
        yield prefix + _SAME[inner], tensor
    elif inner == "mlp.linear_fc1.weight":
        for part, rows in zip(("gate", "up"), tensor.chunk(2)):
            yield f"{prefix}mlp.{part}_proj.weight", rows
    else:
        heads = model.num_attention_heads // model.num_query_groups
        grouped = tensor.view(model.num_query_groups, (heads + 2) * model.head_dim, tensor.shape[1])
        sizes = [heads * model.head_dim, model.head_dim, model.head_dim]
        for part, rows in zip(("q", "k", "v"), torch.split(grouped, sizes, dim=1)):
            yield f"{prefix}self_attn.{part}_proj.weight", rows.reshape(-1, tensor.shape[1])


def hugging_face_config(model: ModelConfig, vocab_size: int, norm_epsilon: float, dtype: str) -> dict[str, Any]:
    """Return config.json for a model of ours, readable by transformers 4 and 5."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_hidden_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_query_groups,
        "head_dim": model.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": model.sequence_length,
        "rms_norm_eps": norm_epsilon,
        "rope_theta": model.rotary_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rotary_base},
        "tie_word_embeddings": model.tied_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": vocab_size,
        "torch_dtype": dtype,
    }


def write_safetensors(directory: Path, tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Write tensors as they come into shards of at most five gigabytes (one tensor more), with the usual index."""
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    shards: list[list[str]] = []
    pending: dict[str, Tensor] = {}
    total = 0

    def flush() -> None:
        save_file(pending, directory / f"part-{len(shards)}.safetensors", metadata={"format": "pt"})
        shards.append(list(pending))
        pending.clear()

    for name, tensor in tensors:
        pending[name] = tensor.contiguous()
        total += tensor.numel() * tensor.element_size()
        if sum(held.numel() * held.element_size() for held in pending.values()) >= SHARD_BYTES:
            flush()
    if pending:
        flush()
    _name_shards(directory, shards, total)


def _name_shards(directory: Path, shards: list[list[str]], total: int) -> None:
    if len(shards) == 1:
        (directory / "part-0.safetensors").replace(directory / SINGLE_FILE)
        return
    weight_map = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        (directory / f"part-{number}.safetensors").replace(directory / file)
        weight_map.update(dict.fromkeys(names, file))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / INDEX_FILE).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
