"""Weights go to and from Hugging Face's layout unchanged, in every layout; adapters train alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.attempts import LLAMA, losses, make_attempt, sizes
from tests.support.launch import ForkServer
from trainer.export import main as export

pytestmark = pytest.mark.multiprocess
TOKENS = [[(7 * row + 3 * column) % 257 for column in range(LLAMA["sequence_length"])] for row in range(2)]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.Tensor]:
    """A Llama model made by transformers, with random weights, and its logits."""
    from transformers import LlamaConfig, LlamaForCausalLM

    where = tmp_path_factory.mktemp("llama")
    torch.manual_seed(3)
    config = LlamaConfig(
        hidden_size=LLAMA["hidden_size"],
        intermediate_size=LLAMA["ffn_hidden_size"],
        num_hidden_layers=LLAMA["num_layers"],
        num_attention_heads=LLAMA["num_attention_heads"],
        num_key_value_heads=LLAMA["num_query_groups"],
        vocab_size=257,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        tie_word_embeddings=False,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(where)
    with torch.no_grad():
        return where, model(torch.tensor(TOKENS)).logits


def weights(where: Path) -> dict[str, Any]:
    return {"format": "huggingface", "path": str(where)}


def logits(launcher: ForkServer, where: Path, corpus: Path, chosen: dict[str, Any], source: Path) -> torch.Tensor:
    where.mkdir()
    attempt = make_attempt(where / "attempt", corpus, LLAMA, chosen, weights=weights(source))
    call = "tests.support.ranks:write_logits"
    launcher.call(call, where, chosen["world_size"], attempt=str(attempt), out=str(where), tokens=TOKENS).assert_done()
    found: torch.Tensor = torch.load(where / "logits.pt")
    return found[..., :257]


@pytest.mark.parametrize("chosen", [sizes(zero_stage=1), sizes(tp=2, pp=2)], ids=["alone", "tensor-2-pipeline-2"])
def test_imported_weights_give_the_logits_of_transformers_and_so_do_exported_ones(
    chosen: dict[str, Any], launcher: ForkServer, corpus: Path, tmp_path: Path, reference: tuple[Path, torch.Tensor]
) -> None:
    source, expected = reference
    found = logits(launcher, tmp_path / "first", corpus, chosen, source)
    assert (found - expected).abs().max().item() < 1e-4

    # One step at a learning rate of zero writes a checkpoint of the very weights that were imported.
    optimizer = {"learning_rate": 0.0, "minimum_learning_rate": 0.0, "weight_decay": 0.0}
    attempt = make_attempt(
        tmp_path / "attempt", corpus, LLAMA, chosen, weights=weights(source), steps=1, optimizer=optimizer
    )
    launcher.run(attempt, chosen["world_size"]).assert_done()
    arguments = ["--checkpoint", str(tmp_path / "checkpoints/step_1"), "--output", str(tmp_path / "out")]
    assert export([*arguments, "--dtype", "float32", "--vocab-size", "257"]) == 0
    again = logits(launcher, tmp_path / "second", corpus, chosen, tmp_path / "out")
    assert torch.equal(again, found)

    from transformers import LlamaForCausalLM

    with torch.no_grad():
        theirs = LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)(torch.tensor(TOKENS)).logits
    assert (theirs - expected).abs().max().item() < 1e-5


def test_weights_of_another_shape_are_refused_before_the_model_is_built(
    launcher: ForkServer, corpus: Path, tmp_path: Path, reference: tuple[Path, torch.Tensor]
) -> None:
    other = {**LLAMA, "ffn_hidden_size": 160}
    attempt = make_attempt(tmp_path / "attempt", corpus, other, sizes(zero_stage=1), weights=weights(reference[0]))
    assert launcher.run(attempt, 1).codes == [64]
    reason = json.loads((attempt / "result/0.json").read_text())["reason"]
    assert "has ffn_hidden_size=176, the plan 160" in reason


LORA = {"rank": 4, "alpha": 8.0, "targets": ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]}
LORA_LAYOUTS: dict[str, tuple[dict[str, Any], str]] = {
    "tensor-2": (sizes(tp=2, zero_stage=1), "deepspeed"),
    "tensor-2-not-sequence-parallel": (sizes(tp=2, zero_stage=1, sequence_parallel=False), "deepspeed"),
    "pipeline-2-data-2": (sizes(pp=2, dp=2), "deepspeed"),
    "zero-3-recompute": (sizes(dp=2, zero_stage=3, recompute="full"), "deepspeed"),
    "flat-tensor-2": (sizes(tp=2, zero_stage=1), "flat"),
    "flat-pipeline-2-data-2-zero-2": (sizes(pp=2, dp=2, zero_stage=2, recompute="selective"), "flat"),
    "flat-zero-0": (sizes(), "flat"),
}


@pytest.fixture(scope="module")
def adapted(
    launcher: ForkServer, corpus: Path, tmp_path_factory: pytest.TempPathFactory, reference: tuple[Path, torch.Tensor]
) -> tuple[Path, list[float]]:
    """The directory of a run of adapters on one process, and its losses."""
    where = tmp_path_factory.mktemp("lora")
    attempt = make_attempt(
        where / "attempt", corpus, LLAMA, sizes(zero_stage=1), weights=weights(reference[0]), lora=LORA
    )
    launcher.run(attempt, 1).assert_done()
    return where, losses(attempt)


@pytest.mark.parametrize("layout", LORA_LAYOUTS)
def test_adapters_train_alike_in_every_layout_and_nothing_else_changes(
    layout: str,
    launcher: ForkServer,
    corpus: Path,
    tmp_path: Path,
    reference: tuple[Path, torch.Tensor],
    adapted: tuple[Path, list[float]],
) -> None:
    chosen, engine = LORA_LAYOUTS[layout]
    attempt = make_attempt(
        tmp_path / "attempt", corpus, LLAMA, chosen, weights=weights(reference[0]), lora=LORA, engine=engine
    )
    if chosen["zero_stage"] == 3:
        # ZeRO 3 takes the parameters' content away between steps, so there is nothing to compare outside of it.
        launcher.run(attempt, chosen["world_size"]).assert_done()
    else:
        call = "tests.support.ranks:train_and_hash_frozen"
        launcher.call(call, attempt, chosen["world_size"], attempt=str(attempt), out=str(tmp_path)).assert_done()
    alone = adapted[1]
    assert losses(attempt) == pytest.approx(alone, abs=1e-5)
    assert alone[-1] < alone[0] - 0.1
    if chosen["zero_stage"] < 3:
        facts = json.loads((tmp_path / "changed-0.json").read_text())
        assert facts["changed"]
        assert all(".lora_" in name for name in facts["changed"])
        assert not any(".lora_" in name for name in facts["kept"])


def test_adapters_are_all_that_their_checkpoint_holds_and_they_resume_in_another_engine(
    launcher: ForkServer,
    corpus: Path,
    tmp_path: Path,
    reference: tuple[Path, torch.Tensor],
    adapted: tuple[Path, list[float]],
) -> None:
    start = weights(reference[0])
    first = make_attempt(
        tmp_path / "attempt1", corpus, LLAMA, sizes(tp=2, zero_stage=1), weights=start, lora=LORA, steps=5
    )
    launcher.run(first, 2).assert_done()
    from trainer.checkpoint.storage import RestrictedReader

    names = RestrictedReader(tmp_path / "checkpoints/step_5").read_metadata().state_dict_metadata
    assert all(".lora_" in name for name in names)
    second = make_attempt(tmp_path / "attempt2", corpus, LLAMA, sizes(dp=2), weights=start, lora=LORA, engine="flat")
    launcher.run(second, 2).assert_done()
    assert losses(first) + losses(second) == pytest.approx(adapted[1], abs=1e-5)


def test_exported_adapters_turn_the_base_model_into_the_trained_one(
    launcher: ForkServer,
    corpus: Path,
    tmp_path: Path,
    reference: tuple[Path, torch.Tensor],
    adapted: tuple[Path, list[float]],
) -> None:
    checkpoint, out = adapted[0] / "checkpoints/step_10", tmp_path / "adapter"
    assert export(["--checkpoint", str(checkpoint), "--output", str(out), "--base", str(reference[0])]) == 0
    config = json.loads((out / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (4, 8.0, str(reference[0]))

    from safetensors.torch import load_file
    from transformers import LlamaForCausalLM

    theirs, adapters = LlamaForCausalLM.from_pretrained(reference[0]), load_file(out / "adapter_model.safetensors")
    named, changed = dict(theirs.named_parameters()), 0
    with torch.no_grad():
        for name, first in adapters.items():
            if name.endswith(".lora_A.weight"):
                target = name.removeprefix("base_model.model.").replace(".lora_A", "")
                assert target.split(".")[-2] in config["target_modules"]
                second = adapters[name.replace("lora_A", "lora_B")]
                named[target] += second @ first * config["lora_alpha"] / config["r"]
                changed += 1
        assert changed == 7 * LLAMA["num_layers"]
        expected = theirs(torch.tensor(TOKENS)).logits
    where = tmp_path / "ours"
    where.mkdir()
    attempt = make_attempt(
        where / "attempt", corpus, LLAMA, sizes(zero_stage=1), weights=weights(reference[0]), lora=LORA,
        checkpoint={"directory": str(adapted[0] / "checkpoints")},
    )  # fmt: skip
    call = "tests.support.ranks:write_logits"
    launcher.call(call, where, 1, attempt=str(attempt), out=str(where), tokens=TOKENS, resume=True).assert_done()
    found = torch.load(where / "logits.pt")[..., :257]
    assert (found - expected).abs().max().item() < 1e-4
    assert (found - reference[1]).abs().max().item() > 1e-2
