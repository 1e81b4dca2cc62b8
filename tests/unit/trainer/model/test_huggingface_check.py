"""Hugging Face weights that are not those of the plan's model are refused before any is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.support.attempts import LLAMA
from trainer.config import ModelConfig
from trainer.errors import StopError
from trainer.model.huggingface import HuggingFaceWeights
from trainer.model.huggingface_check import _wanted

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": LLAMA["hidden_size"],
    "intermediate_size": LLAMA["ffn_hidden_size"],
    "num_hidden_layers": LLAMA["num_layers"],
    "num_attention_heads": LLAMA["num_attention_heads"],
    "num_key_value_heads": LLAMA["num_query_groups"],
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}


def model(**changes: Any) -> ModelConfig:
    return ModelConfig(**{**LLAMA, **changes})


def tensors(**changes: Any) -> dict[str, torch.Tensor]:
    return {name: torch.zeros(shape) for name, shape in _wanted(model(**changes))}


def write(where: Path, config: dict[str, Any], held: dict[str, torch.Tensor]) -> Path:
    (where / "config.json").write_text(json.dumps(config))
    save_file(held, where / "model.safetensors")
    return where


def check(where: Path, **changes: Any) -> None:
    HuggingFaceWeights(where, model(**changes)).check_tensors()


def test_weights_of_the_model_pass_also_with_fewer_rows_of_the_vocabulary(tmp_path: Path) -> None:
    check(write(tmp_path, CONFIG, tensors(vocab_size=257)))
    tied = {name: tensor for name, tensor in tensors().items() if name != "lm_head.weight"}
    check(write(tmp_path, {**CONFIG, "tie_word_embeddings": True, "model_type": "mistral"}, tied), tied_embeddings=True)


REFUSED_CONFIGS: dict[str, dict[str, Any]] = {
    "model_type='qwen2'; this trainer reads llama and mistral": {"model_type": "qwen2"},
    "hidden_act='gelu'": {"hidden_act": "gelu"},
    "attention_bias=True": {"attention_bias": True},
    "sliding_window=32, below the plan's sequence_length=64": {"sliding_window": 32},
    "rms_norm_eps=None, which is no number": {"rms_norm_eps": None},
    "rms_norm_eps='x', which is no number": {"rms_norm_eps": "x"},
    "num_attention_heads='4', which is no size": {"num_attention_heads": "4"},
    "num_attention_heads=0, which is no size": {"num_attention_heads": 0},
    "rope_parameters=3, which is no object": {"rope_parameters": 3},
    r"scales rotary positions \(llama3\)": {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
    "num_query_groups=4, the plan 2": {"num_key_value_heads": None},
    "rotary_base=500000.0, the plan 10000.0": {"rope_theta": 500000.0},
}


@pytest.mark.parametrize("sentence", REFUSED_CONFIGS)
def test_a_configuration_that_means_another_model_is_refused(sentence: str, tmp_path: Path) -> None:
    with pytest.raises(StopError, match=sentence):
        check(write(tmp_path, {**CONFIG, **REFUSED_CONFIGS[sentence]}, tensors()))


def test_an_output_layer_that_a_tied_plan_would_drop_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StopError, match="has an output layer of its own, but the plan has tied_embeddings=true"):
        check(write(tmp_path, CONFIG, tensors()), tied_embeddings=True)


def test_a_bias_that_would_be_dropped_is_refused(tmp_path: Path) -> None:
    held = {**tensors(), "model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}
    with pytest.raises(StopError, match=r"holds model\.layers\.0\.self_attn\.q_proj\.bias, which this trainer's Llama"):
        check(write(tmp_path, CONFIG, held))


def test_missing_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    held = tensors()
    del held["model.layers.3.mlp.up_proj.weight"]
    with pytest.raises(StopError, match=r"has no tensor model\.layers\.3\.mlp\.up_proj\.weight"):
        check(write(tmp_path, CONFIG, held))
    with pytest.raises(StopError, match=r"model\.norm\.weight has shape \(7,\), the plan's model \(64,\)"):
        check(write(tmp_path, CONFIG, {**tensors(), "model.norm.weight": torch.zeros(7)}))
    with pytest.raises(StopError, match="has 300 rows, the plan only vocab_size=264"):
        check(write(tmp_path, CONFIG, tensors(vocab_size=300)))


@pytest.mark.parametrize(
    ("index", "sentence"),
    [
        ({}, "has no weight_map of names to files"),
        ({"weight_map": {"model.norm.weight": 3}}, "has no weight_map of names to files"),
        ({"weight_map": {"model.norm.weight": "absent.safetensors"}}, "names absent.safetensors, which is not there"),
        ({"weight_map": {"model.more.weight": "model.safetensors"}}, "names model.more.weight in model.safetensors"),
    ],
)
def test_an_index_that_leads_nowhere_is_refused(index: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    write(tmp_path, CONFIG, tensors())
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(StopError, match=sentence):
        check(tmp_path)


@pytest.mark.parametrize("cut", [4, 200, -1])
def test_a_file_that_was_cut_short_is_refused_also_beside_an_index(cut: int, tmp_path: Path) -> None:
    write(tmp_path, CONFIG, tensors())
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(StopError, match=r"model\.safetensors is damaged"):
        check(tmp_path)
    names = dict.fromkeys(tensors(), "model.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(StopError, match=r"model\.safetensors is damaged"):
        check(tmp_path)
