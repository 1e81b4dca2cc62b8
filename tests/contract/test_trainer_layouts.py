"""What the planner calls valid for the trainer is what the trainer accepts, on the engine that was planned for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest
from rackweave.errors import PlanError
from rackweave.plan.cluster import Cluster
from rackweave.plan.flops import flops_per_token
from rackweave.plan.layout import Plan, plan_layout, sizes_as_dict
from rackweave.plan.model_file import resolve_model
from rackweave.plan.presets import PRESETS
from rackweave.plan.ranks import ParallelSizes
from rackweave.plan.request import LayoutRequest
from rackweave.plan.rules import Layout, Place, refusals
from rackweave.plan.searches import planned_engine
from rackweave.plan.trainer import DTYPES, JobTraits, layout_refusal, model_refusal
from rackweave.plan.trainer import choose_engine as choose_for_sizes
from rackweave.run.engine import choose_engine
from rackweave.run.plan_file import parse_plan, serialise_plan

from tests.support.attempts import LLAMA, MODEL
from trainer.config import LoraConfig, ModelConfig, PlanConfig, SizesConfig, check_engine, check_model_sizes, runs_flat
from trainer.errors import StopError
from trainer.flops import model_flops_per_token
from trainer.schema import parse

MODELS = {"gpt": MODEL, "tied": {**MODEL, "tied_embeddings": True}, "grouped": LLAMA}
PLACE = Place(num_gpus=8, gpus_per_host=8, domain_size=8)
REFUSED_PLACE = replace(PLACE, sequence_parallel_refused=True)


def layouts() -> Iterator[Layout]:
    """Yield every small combination of sizes and settings; most break some rule."""
    axes = itertools.product(
        (1, 2, 4), (1, 2, 4), (1, 2, 4), (1, 2), (0, 1, 2, 3), (False, True), ("none", "selective", "full"),
        ("none", "cpu", "nvme"),
    )  # fmt: skip
    for tensor, pipeline, data, virtual, stage, sequence, recompute, offload in axes:
        if tensor * pipeline * data > PLACE.num_gpus:
            continue
        sizes = ParallelSizes(tensor, pipeline, data, virtual)
        yield Layout(sizes, 1, 8, stage, sequence, recompute, offload)


def trainer_says(model: dict[str, Any], layout: Layout, job: JobTraits) -> str | None:
    """Return the sentence with which the trainer refuses, or None."""
    try:
        sizes = SizesConfig(**sizes_as_dict(layout))
        check_model_sizes(ModelConfig(**model), sizes)
        engine = choose_for_sizes(sizes_as_dict(layout), job).engine
        check_engine(sizes, engine, job.adapters, "/local")
    except StopError as error:
        return str(error)
    return None


@pytest.mark.parametrize("asked", ["flat", "deepspeed"])
@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_the_trainer_accepts_what_the_planner_calls_valid_for_it(name: str, adapters: bool, asked: str) -> None:
    model = resolve_model({key: value for key, value in MODELS[name].items() if value is not None})
    job = JobTraits(adapters=adapters, asked=asked)
    valid, wrong = 0, []
    for layout in layouts():
        planned = replace(layout, engine=planned_engine(layout, job))
        place = PLACE if layout.sequence_parallel else REFUSED_PLACE
        if refusals(model, planned, place) or layout_refusal(model, planned, job):
            continue
        valid += 1
        said = trainer_says(MODELS[name], layout, job)
        if said is not None:
            wrong.append((layout, said))
    assert valid > 40
    assert wrong == []


@pytest.mark.parametrize("name", MODELS)
def test_the_planner_refuses_for_the_trainer_nothing_that_it_runs(name: str) -> None:
    model = resolve_model({key: value for key, value in MODELS[name].items() if value is not None})
    job = JobTraits()
    refused = [layout for layout in layouts() if layout_refusal(model, layout, job)]
    assert name == "gpt" or refused
    assert [layout for layout in refused if trainer_says(MODELS[name], layout, job) is None] == []


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_read_by_the_trainer_or_refused_by_the_planner(name: str) -> None:
    wish = LayoutRequest(engine="trainer", global_batch_size=1024, sequence_length=1024)
    cluster = Cluster.from_shorthand("64x8xH100")
    if model_refusal(PRESETS[name], "pretrain", "bf16"):
        with pytest.raises(PlanError, match="this trainer"):
            plan_layout(cluster, name, wish)
        return
    read = parse(PlanConfig, plan_layout(cluster, name, wish).as_dict(), "plan.json")
    assert read.model.name == name


CLUSTER = Cluster.from_shorthand("1x8xH200")
REQUESTS: dict[str, dict[str, Any]] = {
    "free": {},
    "tensor": {"tensor_parallel_size": 8, "data_parallel_size": 1},
    "pipeline": {"pipeline_parallel_size": 8, "tensor_parallel_size": 1, "data_parallel_size": 1},
    "zero-3": {"zero_stage": 3},
    "offload": {"offload": "cpu"},
    "gloo": {"backend": "gloo"},
    "float16": {"precision": "fp16"},
    "adapters": {"task": "lora"},
    "flat": {"engine": "trainer-flat", "tensor_parallel_size": 2},
    "deepspeed": {"engine": "trainer-deepspeed"},
}
LORA = LoraConfig(8, 16.0, ("linear_qkv",))


def engine_of_run(plan: Plan, wish: LayoutRequest) -> str:
    """Return the engine on which the trainer runs a plan, from the files that a run takes along."""
    document = plan.as_dict()
    train: dict[str, Any] = {"backend": wish.backend, "dtype": DTYPES[wish.precision]}
    if wish.task == "lora":
        train["lora"] = asdict(LORA)
    if wish.engine != "trainer":
        train["engine"] = wish.engine.partition("-")[2]
    chosen = choose_engine(parse_plan(serialise_plan(document)), train).engine
    return "flat" if runs_flat(plan.layout.zero_stage, chosen) else "deepspeed"


@pytest.mark.parametrize("name", REQUESTS)
def test_the_engine_of_the_prediction_is_the_one_that_the_trainer_takes(name: str) -> None:
    wish = LayoutRequest.from_mapping({"engine": "trainer", "global_batch_size": 64, **REQUESTS[name]})
    plan = plan_layout(CLUSTER, "llama3-8b", wish)
    assert plan.prediction is not None
    assert plan.prediction["engine"] == engine_of_run(plan, wish)
    assert any(f"engine {plan.prediction['engine']}" in note for note in plan.prediction["notes"])


def test_a_plan_for_the_flat_engine_predicts_what_that_engine_was_measured_to_take() -> None:
    wish = LayoutRequest(
        global_batch_size=64, tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=8, zero_stage=1,
        micro_batch_size=1, recompute="none",
    )  # fmt: skip
    seconds = {
        engine: plan_layout(CLUSTER, "llama3-8b", replace(wish, engine=engine)).prediction["step_time_s"]  # type: ignore[index]
        for engine in ("megatron", "flat", "trainer")
    }
    assert seconds["trainer"] == seconds["flat"] < seconds["megatron"]


@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-8b", "llama3-70b"])
def test_the_trainer_counts_flops_in_the_planners_convention_megatron_model(name: str) -> None:
    model = resolve_model(name)
    counted = model_flops_per_token(parse(ModelConfig, model.as_dict(), "model"))
    # The planner multiplies all parameters of the layers, norms and biases too: some ten-thousandths.
    assert counted == pytest.approx(flops_per_token(model, "megatron-model"), rel=1e-3)
