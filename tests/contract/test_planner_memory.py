"""The planner's bytes of weights and optimizer states against those that real trainer processes hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rackweave.plan.constants import Constants
from rackweave.plan.memory import stage_memory, state_bytes
from rackweave.plan.model_file import read_architecture
from rackweave.plan.ranks import ParallelSizes
from rackweave.plan.rules import Layout
from rackweave.plan.shapes import stage_layer_counts, stage_parameters
from rackweave.plan.software import planned_software

from tests.support.attempts import MODEL, make_attempt, sizes
from tests.support.launch import ForkServer

pytestmark = pytest.mark.multiprocess

# Wide enough that normalisations and padding, a few hundred elements, are far below one percent.
WIDE = {**MODEL, "name": "wide", "hidden_size": 128, "ffn_hidden_size": 512, "head_dim": 32, "vocab_size": 512}
CASES = {
    **{f"zero-{stage}-tensor-2-pipeline-2-data-2": sizes(2, 2, 2, zero_stage=stage) for stage in (0, 1, 2)},
    "zero-3-tensor-2-data-2": sizes(2, 1, 2, zero_stage=3),
}


def measure(attempt: str, into: str) -> None:
    """Run on each rank: build what a job builds, run one step's passes, and write the bytes that the rank holds."""
    from trainer.config import read_job
    from trainer.engine import build_engine
    from trainer.environment import read_environment
    from trainer.job import _backend, _device
    from trainer.mesh import build_mesh, seed_mesh
    from trainer.platform import prepare_platform

    environment, job = read_environment(), read_job(Path(attempt))
    prepare_platform(cuda=False)
    from trainer.model.build import build_stages

    device = _device(job, environment)
    mesh = build_mesh(job.plan.sizes, environment.rank, device, _backend(job), job.train.timeouts.collective_s)
    seed_mesh(mesh, job.train.seed)
    stages = build_stages(job, mesh)
    engine = build_engine(job, mesh, stages)
    found = {"weights": held_weights(stages), **held_states(engine)}
    found["gradients"] = most_gradients(job, mesh, engine, stages)
    (Path(into) / f"{environment.rank}.json").write_text(json.dumps(found))


def held_weights(stages: Any) -> int:
    """Return the bytes of the rank's weights; under ZeRO-3 those of its own parts."""
    total = 0
    for stage in stages:
        for parameter in stage.parameters():
            part = getattr(parameter, "ds_tensor", parameter)
            total += part.numel() * part.element_size()
    return total


def held_states(engine: Any) -> dict[str, int]:
    """Return the bytes of the rank's two moments, from the fragments that a checkpoint takes."""
    return {
        "moments": sum(
            tensor.numel() * tensor.element_size()
            for fragment in engine.fragments()
            for kind, tensor in fragment.states.items()
            if kind != "master"
        )
    }


def most_gradients(job: Any, mesh: Any, engine: Any, stages: Any) -> int:
    """Return the most bytes of gradients after any backward pass of a step, shared storage counted once."""
    from trainer.data.samples import Sampler, open_blend
    from trainer.schedule import Schedule
    from trainer.telemetry import PhaseMarker

    most, back = 0, engine.backward

    def backward(scalar: Any) -> None:
        nonlocal most
        back(scalar)
        most = max(most, sum(gradient_storages(engine, stages).values()))

    engine.backward = backward
    corpus = open_blend(job.train.data.train, job.plan.model.sequence_length, 1)
    sampler = Sampler(corpus, job.plan.sizes, mesh.where.dp_rank, job.plan.model.vocab_size)
    marker = PhaseMarker(job.attempt / "phase" / f"{mesh.rank}.json", mesh.rank, "node-a")
    Schedule(job, mesh, engine, stages, marker).train(sampler, 0)
    return max(most, sum(gradient_storages(engine, stages).values()))


def gradient_storages(engine: Any, stages: Any) -> dict[int, int]:
    """Return the bytes of each storage that holds gradients now, whole ones and this rank's parts."""
    held = [parameter.grad for stage in stages for parameter in stage.parameters() if parameter.grad is not None]
    if engine.name == "flat":
        held += engine.optimizer.state.gradients()
    else:
        optimizer = engine._optimizer
        held += [part for parts in optimizer.averaged_gradients.values() for part in parts or []]
        if hasattr(optimizer, "grad_partitions_flat_buffer"):
            held.append(optimizer.grad_partitions_flat_buffer)
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in held}


def predicted(chosen: dict[str, Any], rank: int, engine: str = "megatron") -> dict[str, float]:
    """Return the planner's bytes of one rank in fp32, in which the trainer runs on CPUs."""
    model = read_architecture({key: value for key, value in WIDE.items() if value is not None})
    parallel = ParallelSizes(
        chosen["tensor_parallel_size"], chosen["pipeline_parallel_size"], chosen["data_parallel_size"]
    )
    layout = Layout(
        sizes=parallel,
        micro_batch_size=chosen["micro_batch_size"],
        global_batch_size=chosen["global_batch_size"],
        zero_stage=chosen["zero_stage"],
        sequence_parallel=chosen["sequence_parallel"],
        recompute="none",
        precision="fp32",
        engine=engine,
    )
    stage = parallel.coordinates(rank).pp_rank
    held = stage_parameters(model, parallel, stage_layer_counts(model, layout)[stage], stage)
    software = planned_software(engine, "pretrain", model)
    weights, gradients, optimizer = state_bytes(layout, software, held)
    # What ZeRO 2 and 3 keep whole on the flat engine: in fp32 half of it gradients, all of it where weights stay.
    whole = stage_memory(model, layout, software, Constants.shipped(), stage).gathered if software.flat else 0.0
    return {
        "weights": weights,
        "gradients": gradients + whole / (2 if layout.zero_stage == 3 else 1),
        "moments": optimizer,
    }


def data_rank(chosen: dict[str, Any], rank: int) -> int:
    """Return the data-parallel coordinate of a rank."""
    parallel = ParallelSizes(
        chosen["tensor_parallel_size"], chosen["pipeline_parallel_size"], chosen["data_parallel_size"]
    )
    return parallel.coordinates(rank).dp_rank


@pytest.mark.parametrize("case", CASES)
def test_bytes_per_rank_equal_the_planners_within_one_percent(
    case: str, launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    chosen = CASES[case]
    attempt = make_attempt(tmp_path / "attempt", corpus, WIDE, chosen)
    into = tmp_path / "held"
    into.mkdir()
    ended = launcher.call(
        "tests.contract.test_planner_memory:measure",
        attempt,
        chosen["world_size"],
        attempt=str(attempt),
        into=str(into),
    )
    ended.assert_done()
    for rank in range(chosen["world_size"]):
        found, expected = json.loads((into / f"{rank}.json").read_text()), predicted(chosen, rank)
        assert found["weights"] == pytest.approx(expected["weights"], rel=0.01), f"weights of rank {rank}"
        if chosen["zero_stage"] == 0 and found["moments"] == 0:
            # Without ZeRO all replicas hold the same states, and only the first yields them for a checkpoint.
            assert data_rank(chosen, rank) > 0
            continue
        assert found["moments"] == pytest.approx(expected["moments"], rel=0.01), f"moments of rank {rank}"


GRADIENT_CASES = {
    **{("deepspeed", f"zero-{stage}-tensor-2-data-2"): sizes(2, 1, 2, zero_stage=stage) for stage in (1, 2, 3)},
    ("deepspeed", "zero-1-pipeline-2-data-2"): sizes(1, 2, 2, zero_stage=1),
    **{("flat", f"zero-{stage}-tensor-2-data-2"): sizes(2, 1, 2, zero_stage=stage) for stage in (0, 1, 2, 3)},
    ("flat", "zero-2-pipeline-2-data-2"): sizes(1, 2, 2, zero_stage=2),
}


@pytest.mark.parametrize(("engine", "case"), GRADIENT_CASES)
def test_gradient_bytes_per_rank_equal_the_planners(
    engine: str, case: str, launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    chosen = GRADIENT_CASES[engine, case]
    attempt = make_attempt(tmp_path / "attempt", corpus, WIDE, chosen, engine=engine)
    call = "tests.contract.test_planner_memory:measure"
    launcher.call(call, attempt, chosen["world_size"], attempt=str(attempt), into=str(tmp_path)).assert_done()
    planned_for = "flat" if engine == "flat" else "megatron"
    # DeepSpeed's ZeRO 2 keeps the one parameter whole that lies on the border of two ranks' parts, here a matrix.
    border = WIDE["ffn_hidden_size"] * WIDE["hidden_size"] // chosen["tensor_parallel_size"] * 4
    more = border if (engine, chosen["zero_stage"]) == ("deepspeed", 2) else 0
    for rank in range(chosen["world_size"]):
        found = json.loads((tmp_path / f"{rank}.json").read_text())["gradients"]
        expected = predicted(chosen, rank, planned_for)["gradients"]
        assert 0.99 * expected <= found <= 1.01 * expected + more, f"gradients of rank {rank}"
