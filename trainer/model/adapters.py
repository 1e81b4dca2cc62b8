"""Low-rank adapters in the layout of Hugging Face's PEFT, for Llama-like models.

Ours sit on fused matrices (queries, keys and values; gate and up-projection). Each part of such a matrix has the same A
and its own rows of B, so the split is exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from ..config import LoraConfig, ModelConfig
from ..errors import StopError
from .huggingface import scatter_tensor

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
PREFIX = "base_model.model."
MODULES = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}


def write_adapters(
    directory: Path, tensors: Iterator[tuple[str, Tensor]], model: ModelConfig, lora: LoraConfig, base: str | None
) -> None:
    """Write adapter_model.safetensors and adapter_config.json; adapters are small, so all are in memory.

    Raises:
        StopError: if a tensor is no adapter of a linear that PEFT knows.
    """
    from safetensors.torch import save_file

    written = {name: part for ours, whole in tensors for name, part in peft_tensors(ours, whole, model)}
    directory.mkdir(parents=True, exist_ok=True)
    save_file(written, directory / WEIGHTS_FILE, metadata={"format": "pt"})
    content = json.dumps(peft_config(lora, base), indent=2)
    (directory / CONFIG_FILE).write_text(content + "\n", encoding="utf-8")


def peft_tensors(name: str, whole: Tensor, model: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield PEFT's names and tensors of one of our adapter tensors, `<linear>.lora_a` or `<linear>.lora_b`."""
    linear, _, kind = name.rpartition(".")
    if kind not in ("lora_a", "lora_b") or linear.rpartition(".")[2] not in MODULES:
        raise StopError(f"{name} is no adapter of a linear that PEFT's Llama has")
    # The weight's own names tell which linears of theirs it is made of, and in which rows.
    rows = whole if kind == "lora_b" else whole.new_empty(_rows(linear, model), 1)
    for theirs, part in scatter_tensor(f"{linear}.weight", rows, model):
        module = PREFIX + theirs.removesuffix(".weight")
        if kind == "lora_a":
            yield f"{module}.lora_A.weight", whole.clone()
        else:
            yield f"{module}.lora_B.weight", part.contiguous().clone()


def _rows(linear: str, model: ModelConfig) -> int:
    kind = linear.rpartition(".")[2]
    if kind == "linear_qkv":
        return model.head_dim * (model.num_attention_heads + 2 * model.num_query_groups)
    return 2 * model.ffn_hidden_size if kind == "linear_fc1" else model.hidden_size


def peft_config(lora: LoraConfig, base: str | None) -> dict[str, Any]:
    """Return adapter_config.json, with the keys that every version of PEFT since 0.5 reads."""
    modules = [module for target in lora.targets for module in MODULES[target]]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": modules,
        "bias": "none",
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "inference_mode": True,
    }
