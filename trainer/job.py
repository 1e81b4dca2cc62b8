"""Builds all parts of a job in order, runs it and closes it. Every check that can stop a job comes before the model."""

from __future__ import annotations

import logging
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Callable, TypeVar

import torch
from rackweave.plan.model_file import resolve_model

from .checkpoint.keeper import CheckpointKeeper
from .config import JobConfig
from .data.indexed import IndexedCorpus
from .data.samples import Blend, Sampler, open_blend
from .data.tokenizer import load_tokenizer
from .deepspeed_config import check_deepspeed
from .engine import build_engine, partitions_while_building
from .environment import LaunchEnvironment, store_address
from .errors import StopError
from .exporters import open_exporters
from .guard import LossGuard
from .loop import LoopParts, evaluate, run_training
from .memory import MemoryMeter
from .mesh import Mesh, build_mesh, close_mesh, seed_mesh
from .model.build import imported_weights, outline_stages, parameters_of, weights_of
from .model.init import fill, no_weights
from .outcome import write_json
from .placement import check_placement, check_world, placement_record, read_host_file
from .requests import ExitRequests
from .schedule import Schedule
from .telemetry import EventLog, PhaseMarker
from .waiting import OwnTime

BYTES_PER_PARAMETER = 12
"""Of a checkpoint: fp32 weights and two moments."""
LOG = logging.getLogger("trainer")
T = TypeVar("T")


@dataclass(frozen=True)
class Reporting:
    """Outputs of this rank, opened before anything can fail."""

    events: EventLog
    marker: PhaseMarker
    requests: ExitRequests
    meter: MemoryMeter


@dataclass(frozen=True)
class Corpora:
    """Opened data, checked before any model is built."""

    train: Blend
    validation: Blend | None


def run_job(job: JobConfig, environment: LaunchEnvironment, reporting: Reporting) -> int:
    """Run the job to its end on this rank; return the steps done.

    Raises:
        StopError, RetryError, SavedAndExit: see trainer.outcome.classify.
    """
    check_world(environment, job.plan.sizes.world_size)
    store_address()
    reporting.events.write("start", world_size=environment.world_size)
    device = _device(job, environment)
    reporting.meter.apply_limit()
    _enter(reporting, "nccl_init")
    mesh = build_mesh(job.plan.sizes, environment.rank, device, _backend(job), job.train.timeouts.collective_s)
    agree(mesh, lambda: _place(job, environment, mesh))
    corpora = agree(mesh, lambda: _check_inputs(job, mesh.rank == 0))
    exporters = agree(mesh, lambda: open_exporters(job, mesh.rank))
    checkpoints = CheckpointKeeper(job, mesh, reporting.events, reporting.marker)
    agree(mesh, lambda: _claim(job, mesh, checkpoints))
    chosen = checkpoints.choose()
    # Nothing before this line takes memory of the GPU: what is wrong with the input is known by now.
    if device.type == "cuda":
        torch.cuda.set_device(device)
    reporting.meter.mark_own()
    _enter(reporting, "model_build")
    seed_mesh(mesh, job.train.seed)
    stages = outline_stages(job, mesh)
    # Adapters' checkpoints lack the frozen weights; all others hold every weight, so nothing need be drawn.
    weights = weights_of(job) if chosen is None or job.train.lora is not None else no_weights
    hollow = partitions_while_building(job)
    if not hollow:
        fill(parameters_of(job, mesh, stages), weights)
    _enter(reporting, "optimizer_init")
    engine = build_engine(job, mesh, stages, weights if hollow else None)
    checkpoints.attach(engine)
    first_step = 0
    if chosen is not None:
        _enter(reporting, "checkpoint_load")
        first_step = checkpoints.load(chosen)
        del chosen  # what was read of it grows with the number of ranks
    parts = LoopParts(
        job=job,
        mesh=mesh,
        engine=engine,
        schedule=Schedule(job, mesh, engine, stages, reporting.marker),
        train_sampler=_sampler(job, mesh, corpora.train, checkpoints.sample_offset),
        validation_sampler=None if corpora.validation is None else _sampler(job, mesh, corpora.validation),
        checkpoints=checkpoints,
        events=reporting.events,
        marker=reporting.marker,
        requests=reporting.requests,
        guard=LossGuard(job.train.guard),
        own_time=OwnTime(mesh.device),
        exporters=exporters,
    )
    done = _train(parts, reporting, first_step)
    reporting.marker.set("end", done)
    close_mesh()
    return done


def _train(parts: LoopParts, reporting: Reporting, first_step: int) -> int:
    """Train from a step to the end of the job; return the steps done."""
    if first_step == 0 and parts.job.train.evaluation.interval:
        evaluate(parts, 0)
    _enter(reporting, "forward", first_step)
    try:
        return run_training(parts, first_step)
    finally:
        parts.checkpoints.close()
        for exporter in parts.exporters:
            exporter.close()


def agree(mesh: Mesh, check: Callable[[], T]) -> T:
    """Run a check that may fail on some ranks only, and let all ranks stop with the first rank's sentence.

    Every rank must call this. Without it, the ranks that passed would wait for the others in the next collective.
    """
    sentence, result = None, None
    try:
        result = check()
    except StopError as error:
        sentence = str(error)
    for rank, said in enumerate(mesh.gather(sentence)):
        if said is not None:
            raise StopError(said if rank == mesh.rank else f"{said} (found by rank {rank})")
    return result  # type: ignore[return-value]


def _enter(reporting: Reporting, phase: str, step: int | None = None) -> None:
    reporting.marker.set(phase, step)
    reporting.events.write("phase", phase=phase, **({} if step is None else {"step": step}))


def _device(job: JobConfig, environment: LaunchEnvironment) -> torch.device:
    if job.train.backend == "gloo":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise StopError("train.json asks for the backend nccl, but this process sees no CUDA device")
    if environment.local_rank >= torch.cuda.device_count():
        raise StopError(
            f"local rank {environment.local_rank} has no GPU: this process sees {torch.cuda.device_count()} of them"
        )
    return torch.device("cuda", environment.local_rank)


def _backend(job: JobConfig) -> str:
    return "gloo" if job.train.backend == "gloo" else "cpu:gloo,cuda:nccl"


def _place(job: JobConfig, environment: LaunchEnvironment, mesh: Mesh) -> None:
    """Record what this rank saw, then check it; the record is there also when the check fails."""
    planned = job.plan.ranks[environment.rank]
    host_file = read_host_file(job.attempt, planned.host)
    bdf = _device_bdf(mesh.device)
    device = "cpu" if bdf is None else f"{mesh.device} {bdf} {torch.cuda.get_device_name(mesh.device)}"
    path = job.attempt / "placement" / f"{environment.rank}.json"
    try:
        checked = check_placement(environment, planned, bdf)
    except StopError as error:
        write_json(path, placement_record(environment, planned, device, f"refused: {error}", host_file))
        raise
    write_json(path, placement_record(environment, planned, device, checked, host_file))


def _device_bdf(device: torch.device) -> str | None:
    if device.type != "cuda":
        return None
    properties: Any = torch.cuda.get_device_properties(device)
    return f"{properties.pci_domain_id:08x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"


def _check_inputs(job: JobConfig, first: bool) -> Corpora:
    """Open data and check everything that needs no model; the first rank also looks into the data."""
    check_deepspeed(job)
    imported = imported_weights(job)
    if imported is not None and first:
        imported.check_tensors()
    data, model = job.train.data, job.plan.model
    tokenizer = load_tokenizer(data.tokenizer)
    if tokenizer.vocab_size > model.vocab_size:
        raise StopError(
            f"the {data.tokenizer.kind} tokenizer has {tokenizer.vocab_size} tokens, the model only "
            f"vocab_size={model.vocab_size}"
        )
    if first:
        for corpus in (*data.train, *data.validation):
            _check_tokens(corpus.prefix, model.vocab_size)
    train = open_blend(data.train, model.sequence_length, job.train.seed)
    # The validation order never changes, whatever the run's seed: losses of different runs stay comparable.
    validation = open_blend(data.validation, model.sequence_length, 0) if data.validation else None
    return Corpora(train, validation)


def _check_tokens(prefix: str, vocab_size: int) -> None:
    """Raise StopError if tokens of a corpus lie outside the vocabulary; of a large one only a part is read."""
    lowest, highest = IndexedCorpus(prefix).token_range()
    if lowest < 0 or highest >= vocab_size:
        raise StopError(
            f"{prefix} holds the token {lowest if lowest < 0 else highest}, the model has vocab_size={vocab_size}: "
            "the corpus was made with another tokenizer"
        )


def _claim(job: JobConfig, mesh: Mesh, checkpoints: CheckpointKeeper) -> None:
    """Take the checkpoint directory, and make sure that one checkpoint at least has room in it."""
    checkpoints.claim()
    if mesh.rank:
        return
    model = asdict(job.plan.model)
    needed = BYTES_PER_PARAMETER * resolve_model({**model, "parameters": None}).parameters
    directory = Path(job.train.checkpoint.directory)
    room = free_bytes(directory)
    if job.train.lora is None and needed > room:
        raise StopError(
            f"a checkpoint of {job.plan.model.name} takes {needed / 2**30:.2f} GiB, but {directory} has only "
            f"{room / 2**30:.2f} GiB free: make room, or choose another checkpoint.directory"
        )


def _sampler(job: JobConfig, mesh: Mesh, blend: Blend, offset: int = 0) -> Sampler:
    return Sampler(blend, job.plan.sizes, mesh.where.dp_rank, job.plan.model.vocab_size, offset)


def free_bytes(path: Path) -> int:
    """Return the free space of the file system that holds a path or its nearest existing parent."""
    place = path
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free
