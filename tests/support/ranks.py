"""Work that tests run inside forked ranks; see tests.support.launch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from trainer.config import JobConfig, read_job
from trainer.mesh import Mesh, build_mesh, close_mesh, seed_mesh
from trainer.model.build import build_stages, transformer_config
from trainer.model.stage import Stage


def open_job(attempt: str) -> tuple[JobConfig, Mesh, list[Stage]]:
    """Build mesh and model of an attempt."""
    job = read_job(Path(attempt))
    mesh = build_mesh(job.plan.sizes, int(os.environ["RANK"]), torch.device("cpu"), "gloo", 60.0)
    seed_mesh(mesh, job.train.seed)
    return job, mesh, build_stages(job, mesh)


def write_groups(attempts: list[str]) -> None:
    """Write the groups that Megatron gives this rank in each attempt, one after the other."""
    for attempt in attempts:
        sizes = read_job(Path(attempt)).plan.sizes
        mesh = build_mesh(sizes, int(os.environ["RANK"]), torch.device("cpu"), "gloo", 60.0)
        groups = {
            name: dist.get_process_group_ranks(getattr(mesh, name)) for name in ("tensor", "data", "pipeline", "model")
        }
        (Path(attempt) / f"groups-{mesh.rank}.json").write_text(json.dumps(groups))
        parallel_state.destroy_model_parallel()
    close_mesh()


def compare_with_megatron(attempt: str, out: str) -> None:
    """Write how far our logits and gradients are from those of Megatron core's own GPTModel with the same weights."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    job, _, stages = open_job(attempt)
    model = job.plan.model
    theirs = GPTModel(
        config=transformer_config(job),
        transformer_layer_spec=get_gpt_layer_local_spec(
            normalization="RMSNorm" if model.normalization == "rmsnorm" else None
        ),
        vocab_size=model.vocab_size,
        max_sequence_length=model.sequence_length,
        position_embedding_type="rope" if model.position_embedding == "rotary" else "learned_absolute",
        rotary_base=int(model.rotary_base or 10000),
        share_embeddings_and_output_weights=model.tied_embeddings,
    )
    ours = stages[0]
    missing, unexpected = theirs.load_state_dict(ours.state_dict(), strict=False)
    tokens = torch.randint(0, 257, (2, model.sequence_length), generator=torch.Generator().manual_seed(5))
    positions = torch.arange(model.sequence_length)[None].expand(2, -1)
    mask = torch.ones(1, 1, model.sequence_length, model.sequence_length).tril() < 0.5
    expected = theirs(tokens, positions, mask).transpose(0, 1)
    found = ours(tokens, None)
    expected.square().mean().backward()
    found.square().mean().backward()
    gradients = dict(theirs.named_parameters())
    facts: dict[str, Any] = {
        "missing": [name for name in missing if "_extra_state" not in name],
        "unexpected": [name for name in unexpected if "_extra_state" not in name],
        "logits": (expected - found).abs().max().item(),
        "gradients": max(
            (gradients[name].grad - parameter.grad).abs().max().item()
            for name, parameter in ours.named_parameters()
            if parameter.grad is not None
        ),
    }
    (Path(out) / "facts.json").write_text(json.dumps(facts))
    close_mesh()


def train_with_losses(attempt: str, planted: dict[str, float]) -> None:
    """Run the trainer with the loss of some steps (numbered from one) replaced by a factor of itself, once each.

    The gradients are real; only what the last stage reports is changed, as a damaged batch would.
    """
    import trainer.schedule

    original = trainer.schedule.Schedule.train
    left = {int(step): factor for step, factor in planted.items()}

    def train(self: Any, sampler: Any, step: int) -> list[torch.Tensor]:
        losses = original(self, sampler, step)
        factor = left.pop(step + 1, 1.0)
        return [loss * factor for loss in losses]

    trainer.schedule.Schedule.train = train  # type: ignore[method-assign]
    _main(attempt)


def train_with_damage(attempt: str, ranks: list[int], at: int) -> None:
    """Run the trainer, and write NaN over a part of one weight of some ranks before a step (numbered from one)."""
    import trainer.schedule

    original = trainer.schedule.Schedule.train

    def train(self: Any, sampler: Any, step: int) -> list[torch.Tensor]:
        if step + 1 == at and int(os.environ["RANK"]) in ranks:
            weight = next(one for stage in self.stages for one in stage.parameters() if one.dim() == 2)
            weight.data[:, 0] = float("nan")
        return original(self, sampler, step)

    trainer.schedule.Schedule.train = train  # type: ignore[method-assign]
    _main(attempt)


def train_with_small_shared_memory(attempt: str, rank: int, at: int) -> None:
    """Run the trainer; one rank, whose /dev/shm holds 1 MiB, shares 64 MiB before a step, as a data loader does."""
    import ctypes

    import trainer.schedule

    original = trainer.schedule.Schedule.train
    libc = ctypes.CDLL(None, use_errno=True)
    private, new_namespace = 1 << 18 | 1 << 14, 0x20000  # MS_PRIVATE | MS_REC, CLONE_NEWNS

    def train(self: Any, sampler: Any, step: int) -> list[torch.Tensor]:
        if step + 1 == at and int(os.environ["RANK"]) == rank:
            torch.ones(16 << 20).share_memory_()
        return original(self, sampler, step)

    if int(os.environ["RANK"]) == rank:
        failed = libc.unshare(new_namespace) or libc.mount(b"none", b"/", None, private, None)
        if failed or libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=1m"):
            raise OSError(ctypes.get_errno(), "a small /dev/shm")
    trainer.schedule.Schedule.train = train  # type: ignore[method-assign]
    _main(attempt)


def train_with_memory_cap(attempt: str, phase: str, step: int | None = None, data_mib: int | None = None) -> None:
    """Run the trainer, and let almost no further memory be mapped from the moment when it enters a phase.

    Eight MiB are left: tensors are larger, but Python itself behaves oddly when it can allocate nothing at all. With
    `data_mib` it is so much writable private memory that is left, as `memory_limit_gib` counts.
    """
    import resource

    import trainer.memory
    import trainer.telemetry

    original = trainer.telemetry.PhaseMarker.set

    def set_phase(self: Any, entered: str, at: int | None = None, micro_batch: int | None = None) -> None:
        original(self, entered, at, micro_batch)
        if entered == phase and (step is None or at == step) and data_mib is not None:
            held = trainer.memory._status_bytes("VmData")
            resource.setrlimit(resource.RLIMIT_DATA, (held + (data_mib << 20), resource.RLIM_INFINITY))
        elif entered == phase and (step is None or at == step):
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (8 << 20), resource.RLIM_INFINITY))

    trainer.telemetry.PhaseMarker.set = set_phase  # type: ignore[method-assign]
    _main(attempt)


def _main(attempt: str) -> None:
    from trainer.__main__ import main

    os._exit(main(["--attempt", attempt]))


def write_logits(attempt: str, out: str, tokens: list[list[int]], resume: bool = False) -> None:
    """Write the logits of the model of an attempt, gathered over the tensor group, from its last stage.

    With `resume`, its weights are those of the newest checkpoint.
    """
    from trainer.engine import StageList

    job, mesh, stages = open_job(attempt)
    if resume:
        _load_newest(job, mesh, stages)
    ids = torch.tensor(tokens)
    hidden = None
    with torch.no_grad():
        if mesh.where.pp_rank:
            shape = [ids.shape[1] // (mesh.sizes.tensor_parallel_size if mesh.sizes.sequence_parallel else 1)]
            hidden = torch.empty(*shape, ids.shape[0], job.plan.model.hidden_size)
            dist.recv(hidden, group=mesh.pipeline, group_src=mesh.where.pp_rank - 1)
            stages[0].set_input_tensor(hidden)
        output = StageList(stages)(0, ids, None)
        if not stages[0].post_process:
            dist.send(output.contiguous(), group=mesh.pipeline, group_dst=mesh.where.pp_rank + 1)
        else:
            parts = [torch.empty_like(output) for _ in range(mesh.sizes.tensor_parallel_size)]
            dist.all_gather(parts, output.contiguous(), group=mesh.tensor)
            if mesh.where.tp_rank == 0:
                torch.save(torch.cat(parts, dim=-1).transpose(0, 1).contiguous(), f"{out}/logits.pt")
    close_mesh()


def _load_newest(job: JobConfig, mesh: Mesh, stages: list[Stage]) -> None:
    from trainer.checkpoint.keeper import CheckpointKeeper
    from trainer.engine import build_engine
    from trainer.telemetry import EventLog, PhaseMarker

    events = EventLog(job.attempt / "events.jsonl", mesh.rank, writer=False)
    keeper = CheckpointKeeper(job, mesh, events, PhaseMarker(job.attempt / "phase/0.json", mesh.rank, "node-a"))
    keeper.attach(build_engine(job, mesh, stages))
    newest = keeper.choose()
    assert newest is not None
    keeper.load(newest)


def examine_checkpoints(attempt: str, checkpoints: list[str]) -> None:
    """Examine checkpoints as a resuming job does, and write for each what was found and which files this rank opened.

    An unpickled metadata file, and what DCP opens later to load tensors, are not part of it.
    """
    import sys

    from trainer.checkpoint.directory import Published
    from trainer.checkpoint.publish import Writers
    from trainer.checkpoint.resume import examine
    from trainer.errors import StopError

    opened: list[str] = []
    sys.addaudithook(lambda event, facts: opened.append(str(facts[0])) if event == "open" else None)
    dist.init_process_group("gloo")
    writers = Writers(dist.get_rank(), dist.get_world_size(), dist.group.WORLD)
    for name in checkpoints:
        opened.clear()
        try:
            outline = examine(Published(1, Path(name)), writers)
            found = f"whole, {len(outline.manifests)} manifests, {len(outline.metadata)} bytes of metadata"
        except StopError as error:
            found = str(error)
        facts = {"found": found, "opened": [path for path in opened if path.startswith(name)]}
        (Path(attempt) / f"{Path(name).parent.name}-{writers.rank}.json").write_text(json.dumps(facts))
    dist.destroy_process_group()


def train_and_hash_frozen(attempt: str, out: str) -> None:
    """Run the trainer, and write whether frozen and trained parameters changed on this rank."""
    import trainer.job

    original = trainer.job.run_training

    def run(parts: Any, first_step: int) -> int:
        named = [(info.name, info.parameter) for info in _parameters(parts)]
        before = [parameter.detach().clone() for _, parameter in named]
        done = original(parts, first_step)
        changed = [name for (name, parameter), old in zip(named, before) if not torch.equal(parameter, old)]
        kept = [name for name, _ in named if name not in changed]
        (Path(out) / f"changed-{parts.mesh.rank}.json").write_text(json.dumps({"changed": changed, "kept": kept}))
        return done

    trainer.job.run_training = run
    _main(attempt)


def _parameters(parts: Any) -> list[Any]:
    from trainer.model.partition import stage_parameters

    sizes = parts.mesh.sizes
    return list(
        stage_parameters(
            parts.schedule.stages, parts.job.plan.model, parts.mesh.where.tp_rank, sizes.tensor_parallel_size
        )
    )
