"""What an attempt directory may not say; each refusal names the quantities."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.support.attempts import LLAMA, MODEL, make_attempt, sizes
from trainer.__main__ import main
from trainer.config import read_job
from trainer.errors import StopError
from trainer.versions import OLDEST, check_versions

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "contracts"
CORPUS = Path("/nowhere/corpus")


def read(where: Path, model: dict[str, Any] | None = None, chosen: dict[str, Any] | None = None, **changes: Any) -> Any:
    return read_job(make_attempt(where / "attempt", CORPUS, model or MODEL, chosen or sizes(), **changes))


def test_the_committed_examples_are_read(tmp_path: Path) -> None:
    for name in ("plan.json", "train.json"):
        (tmp_path / name).write_text((FIXTURES / name).read_text())
    job = read_job(tmp_path)
    assert job.plan.ranks[0].host == "node-b"
    assert job.train.optimizer.learning_rate == 0.003


REFUSED_SIZES = {
    "zero_stage=3 needs pipeline_parallel_size=1, not 2": sizes(pp=2, zero_stage=3),
    "num_attention_heads=4 is not a multiple of tensor_parallel_size=3": sizes(tp=3),
    "num_layers=4 is not a multiple of pipeline_parallel_size=3": sizes(pp=3, dp=1, global_batch_size=18),
    "is 4, not global_batch_size=8": sizes(num_microbatches=2),
    "sequence_parallel is on, but tensor_parallel_size=1": sizes(sequence_parallel=True),
    "context_parallel_size=2": sizes(context_parallel_size=2),
    "virtual_pipeline_size=2 needs pipeline_parallel_size > 1": sizes(virtual_pipeline_size=2),
    "num_microbatches=3 to be a multiple of pipeline_parallel_size=2": sizes(
        pp=2, virtual_pipeline_size=2, global_batch_size=6
    ),
    "zero_stage=4 is none of 0, 1, 2, 3": sizes(zero_stage=4),
    "recompute=selective cuts inside a layer, while zero_stage=3 gathers": sizes(
        dp=2, zero_stage=3, recompute="selective"
    ),
    "offload=cpu moves ZeRO's optimizer states, so it needs zero_stage >= 1": sizes(offload="cpu"),
}


@pytest.mark.parametrize("sentence", REFUSED_SIZES)
def test_sizes_that_cannot_work_are_refused(sentence: str, tmp_path: Path) -> None:
    with pytest.raises(StopError, match=sentence.replace("(", r"\(")):
        read(tmp_path, chosen=REFUSED_SIZES[sentence])


REFUSED_MODELS = {
    "vocab_size=263 is not a multiple of tensor_parallel_size=2": ({**MODEL, "vocab_size": 263}, sizes(tp=2)),
    "num_query_groups=2 is not a multiple of tensor_parallel_size=4": (LLAMA, sizes(tp=4)),
    "tied embeddings over pipeline_parallel_size=2 need zero_stage <= 1, not 2": (
        {**MODEL, "tied_embeddings": True},
        sizes(pp=2, dp=2, zero_stage=2),
    ),
    "tied embeddings need zero_stage <= 2": ({**MODEL, "tied_embeddings": True}, sizes(dp=2, zero_stage=3)),
    "model.family='moe' is none of gpt, llama": ({**MODEL, "family": "moe"}, sizes()),
    "rotary positions need a rotary_base": ({**LLAMA, "rotary_base": None}, sizes()),
}


@pytest.mark.parametrize("sentence", REFUSED_MODELS)
def test_models_that_do_not_fit_the_sizes_are_refused(sentence: str, tmp_path: Path) -> None:
    model, chosen = REFUSED_MODELS[sentence]
    with pytest.raises(StopError, match=sentence):
        read(tmp_path, model, chosen)


REFUSED_TRAINING: dict[str, dict[str, Any]] = {
    "optimizer.decay_steps=1 must be above warmup_steps=2": {"optimizer": {"decay_steps": 1}},
    "dropout.hidden=1.0 must lie in": {"dropout": {"hidden": 1.0}},
    "dtype='float8' is none of float32": {"dtype": "float8"},
    "memory_limit_gib=0.0 must be above 0": {"memory_limit_gib": 0.0},
    "keep=1 must be at least 2": {"checkpoint": {"keep": 1}},
    "train.json has the unknown key 'stpes'": {"stpes": 3},
    "train.json.steps='ten' must be of type int": {"steps": "ten"},
    "guard.policy='hope' is none of stop": {"guard": {"policy": "hope"}},
    "train.json.optimizer.learning_rate=nan must be a finite number": {"optimizer": {"learning_rate": math.nan}},
    "train.json.steps=1000000000000000000000 must lie within 64 bits": {"steps": 10**21},
    r"optimizer.beta2=1.0 must lie in \[0, 1\)": {"optimizer": {"beta2": 1.0}},
    "epsilon=-1.0 must be at least 0": {"optimizer": {"epsilon": -1.0}},
    "seed=-1 must be at least 0": {"seed": -1},
    "collective_s=1e\\+09 must be at most 604800": {"timeouts": {"collective_s": 1e9}},
    "telemetry.prometheus_port=70000 must lie in": {"telemetry": {"prometheus_port": 70000}},
    "telemetry.peak_flops_per_second=0 must be above 0": {"telemetry": {"peak_flops_per_second": 0.0}},
    r"telemetry.profile_steps=\[0\] must be steps from 1 on": {"telemetry": {"profile_steps": [0]}},
    "the prefix '' names no corpus": {"data": {"train": [{"prefix": "", "weight": 1.0}]}},
    r"prefix='a\\x00b' holds a character": {"data": {"train": [{"prefix": "a\x00b", "weight": 1.0}]}},
    r"directory='a\\ud800' holds a character": {"checkpoint": {"directory": "a\ud800"}},
    "checkpoint.directory is empty": {"checkpoint": {"directory": ""}},
    "lora.targets='embedding' is none of": {"lora": {"rank": 4, "alpha": 8.0, "targets": ["embedding"]}},
}


@pytest.mark.parametrize("sentence", REFUSED_TRAINING)
def test_training_settings_that_cannot_work_are_refused(sentence: str, tmp_path: Path) -> None:
    with pytest.raises(StopError, match=sentence):
        read(tmp_path, **REFUSED_TRAINING[sentence])


LORA = {"rank": 4, "alpha": 8.0, "targets": ["linear_qkv"]}
REFUSED_ENGINES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "offload=nvme needs engine=flat": (sizes(dp=2, zero_stage=3, offload="nvme"), {"offload_directory": "/local"}),
    "offload=nvme needs offload_directory in train.json": (sizes(dp=2, offload="nvme"), {"engine": "flat"}),
    "lora with engine=flat keeps the frozen weights": (sizes(dp=2, zero_stage=3), {"engine": "flat", "lora": LORA}),
}


@pytest.mark.parametrize("sentence", REFUSED_ENGINES)
def test_an_engine_that_cannot_do_what_the_plan_asks_is_refused(sentence: str, tmp_path: Path) -> None:
    chosen, changes = REFUSED_ENGINES[sentence]
    with pytest.raises(StopError, match=sentence):
        read(tmp_path, MODEL, chosen, **changes)


def test_a_rank_table_in_another_order_is_refused(tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path / "attempt", CORPUS, MODEL, sizes(2, 2, 2))
    plan = json.loads((attempt / "plan.json").read_text())
    plan["ranks"][1]["tp_rank"], plan["ranks"][1]["dp_rank"] = 0, 1
    (attempt / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(StopError, match="row 1 of the rank table is rank 1"):
        read_job(attempt)


def test_a_deepspeed_configuration_that_contradicts_the_plan_is_refused(tmp_path: Path) -> None:
    from trainer.deepspeed_config import check_deepspeed

    attempt = make_attempt(tmp_path / "attempt", CORPUS, MODEL, sizes(dp=2))
    (attempt / "ds_config.json").write_text(json.dumps({"train_batch_size": 32, "zero_optimization": {"stage": 1}}))
    with pytest.raises(StopError, match="train_batch_size=32, the plan needs 8"):
        check_deepspeed(read_job(attempt))


UNREADABLE = {
    "nesting": "[" * 100_000,
    "digits": '{"schema": ' + "9" * 5000 + "}",
    "no text": "\udce4",
}


@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.parametrize("name", ["plan.json", "train.json", "ds_config.json"])
def test_a_file_that_is_no_json_is_refused_in_a_sentence(name: str, kind: str, tmp_path: Path) -> None:
    attempt = make_attempt(tmp_path / "attempt", CORPUS, MODEL, sizes(dp=2))
    (attempt / name).write_text(UNREADABLE[kind], errors="surrogateescape")
    with pytest.raises(StopError, match=rf"{name} cannot be read as JSON"):
        read_job(attempt)


REFUSED_DEEPSPEED: dict[str, dict[str, Any]] = {
    "gradient_clipping=0.5, train.json optimizer.clip_grad=1.0": {"gradient_clipping": 0.5},
    "zero_optimization=3 must be an object": {"zero_optimization": 3},
    "bf16 is refused by DeepSpeed: unknown": {"bf16": {"unknown": None}},
    "bf16=True must be an object": {"bf16": True},
    "zero_optimization.offload_optimizer='cpu' must be an object": {"zero_optimization": {"offload_optimizer": "cpu"}},
    "zero_optimization is refused by DeepSpeed: reduce_bucket_size": {"zero_optimization": {"reduce_bucket_size": "x"}},
}


@pytest.mark.parametrize("sentence", REFUSED_DEEPSPEED)
def test_a_deepspeed_configuration_of_another_shape_is_refused(sentence: str, tmp_path: Path) -> None:
    from trainer.deepspeed_config import check_deepspeed

    attempt = make_attempt(tmp_path / "attempt", CORPUS, MODEL, sizes(dp=2))
    (attempt / "ds_config.json").write_text(json.dumps(REFUSED_DEEPSPEED[sentence]))
    with pytest.raises(StopError, match=sentence):
        check_deepspeed(read_job(attempt))


@pytest.mark.parametrize(
    ("address", "port", "sentence"),
    [("", "29500", "MASTER_ADDR is not set"), ("a", "x", "MASTER_PORT is 'x'"), ("a", "70000", "which is no port")],
)
def test_a_store_that_cannot_be_reached_by_what_is_set_is_refused(address: str, port: str, sentence: str) -> None:
    from trainer.environment import store_address

    with pytest.raises(StopError, match=sentence):
        store_address({"MASTER_ADDR": address, "MASTER_PORT": port})


def test_a_start_without_torchrun_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--attempt", str(tmp_path)]) == 64
    assert "start the trainer with torchrun" in capsys.readouterr().err


def test_a_missing_file_is_one_sentence_and_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert main(["--attempt", str(tmp_path)]) == 64
    assert capsys.readouterr().err == ""
    result = json.loads((tmp_path / "result/1.json").read_text())
    assert (result["exit"], result["code"]) == ("stop", 64)
    assert result["reason"].endswith("plan.json does not exist")


@pytest.mark.parametrize(
    ("package", "version", "sentence"),
    [
        ("deepspeed", "0.13.5", "deepspeed 0.13.5 is older than 0.14.4"),
        ("megatron-core", "0.14.0rc5", "megatron-core 0.14.0rc5 is older than 0.15.0"),
        ("megatron-core", None, "the Python package megatron-core is not installed"),
    ],
)
def test_libraries_older_than_the_oldest_tested_are_refused(
    package: str, version: str | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.metadata

    real = importlib.metadata.version

    def lookup(name: str) -> str:
        if name == package and version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return str(version) if name == package else real(name)

    monkeypatch.setattr(importlib.metadata, "version", lookup)
    with pytest.raises(StopError, match=sentence):
        check_versions(flat=False)
    if package == "deepspeed":
        check_versions(flat=True)


def test_the_oldest_versions_are_those_that_the_package_asks_for() -> None:
    import tomllib

    wanted = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())["project"]
    asked = {line.partition(">=")[0]: line for group in wanted["optional-dependencies"].values() for line in group}
    for package, oldest in OLDEST.items():
        assert asked[package].startswith(f"{package}>={'.'.join(map(str, oldest)).removesuffix('.0')}")
