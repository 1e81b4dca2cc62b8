"""What the training loop knows of checkpoints: choose, load, save, close."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load

from ..config import JobConfig
from ..engine import Engine, Fragment
from ..environment import store_address
from ..errors import RetryError, StopError
from ..mesh import Mesh
from ..model.build import imported_weights
from ..model.init import is_tied_copy
from ..model.layers import NORM_EPSILON
from ..telemetry import EventLog, PhaseMarker
from . import random_state
from .directory import MANIFESTS, CheckpointDirectory, Published, read_small_json
from .process import ProcessPublisher, Saver
from .publish import Publisher, Snapshot, Writers
from .rectangles import RectangleLoadPlanner, RowBlock, Shards, cut
from .resume import examine, find_published
from .staging import StagingArea
from .storage import RestrictedReader, failure_of
from .verify import Outline

STATE_SCHEMA = "rackweave.checkpoint/1"
FAILURES_BEFORE_STOP = 2
LOG = logging.getLogger("trainer.checkpoint")


class CheckpointKeeper:
    """One per rank; all methods are collective."""

    def __init__(self, job: JobConfig, mesh: Mesh, events: EventLog, marker: PhaseMarker) -> None:
        config = job.train.checkpoint
        self._job, self._mesh, self._events, self._marker = job, mesh, events, marker
        self._directory = CheckpointDirectory(Path(config.directory), job.train.run)
        # Saving runs beside training, so its collectives need a group of their own; a save may take long.
        patience = timedelta(seconds=max(1800.0, job.train.timeouts.collective_s))
        self._writers = Writers(mesh.rank, mesh.world_size, dist.new_group(backend="gloo", timeout=patience))
        self._publisher: Publisher | ProcessPublisher
        if config.mode == "async_process":
            address, port = store_address()
            saver = Saver(
                self._directory.path, job.train.run, config.keep, mesh.rank, mesh.world_size, address, port,
                patience.total_seconds(),
            )  # fmt: skip
            self._publisher = ProcessPublisher(saver, events.write)
        else:
            self._publisher = Publisher(self._directory, self._writers, config.keep, lambda step: None, events.write)
        imported = imported_weights(job)
        self._norm_epsilon = NORM_EPSILON if imported is None else imported.norm_epsilon
        self._engine: Engine | None = None
        self._staging = StagingArea(shared=config.mode == "async_process")
        self._staged: dict[str, Shards] = {}
        self._thread: threading.Thread | None = None
        self._failure: Exception | None = None
        self._crash: Exception | None = None
        self._failures = 0
        self._abandoned = False
        self._saved_step: int | None = None
        self.sample_offset = 0

    def claim(self) -> None:
        """Make the directory ours; rank 0 does it."""
        if self._mesh.rank == 0:
            self._directory.claim()
            for name in self._directory.remove_leftovers():
                LOG.info("removed %s, left behind by an interrupted save", name)

    def choose(self) -> Outline | None:
        """Return the newest checkpoint that is whole, or None for a fresh start.

        Raises:
            StopError: if checkpoints exist but none is whole, or the newest belongs to another model.
        """
        refused: list[str] = []
        # Reading may take long, so the patient group is used.
        for candidate in find_published(self._directory, self._writers):
            try:
                outline = examine(candidate, self._writers)
            except StopError as error:
                refused.append(str(error))
                continue
            self._check_model(outline)
            self._report_choice(candidate, refused)
            return outline
        if refused:
            raise StopError(f"no checkpoint in {self._directory.path} is whole; the newest: {refused[0]}")
        return None

    def attach(self, engine: Engine) -> None:
        """Tell whose state is saved and loaded."""
        self._engine = engine
        if self._mesh.device.type == "cuda" and not self._in_place:
            # Pinning gigabytes takes seconds: better before the first step than at the first save.
            self._stage(list(engine.fragments()))

    def load(self, chosen: Outline) -> int:
        """Load a checkpoint into the engine; return the steps done when it was saved."""
        engine, state, path = self._attached(), chosen.state, chosen.checkpoint.path
        shards: dict[str, Shards] = {}
        for fragment in engine.fragments():
            self._add(shards, fragment, fragment.states, copies=True)
        try:
            load(
                dict(shards),
                storage_reader=RestrictedReader(path, chosen.metadata),
                planner=RectangleLoadPlanner(),
                process_group=self._mesh.control,
            )
        except CheckpointException as error:
            raise StopError(f"{path} cannot be loaded: {failure_of(error)}") from error
        engine.refresh(state["counters"])
        self._restore_random_state(path, state)
        step = chosen.checkpoint.step
        self._publisher.started_from |= {step}
        self._saved_step = step
        self.sample_offset = int(state["samples"]) - step * self._mesh.sizes.global_batch_size
        return step

    def before_step(self) -> None:
        """Keep the optimizer from changing state that is still being copied."""
        self._staging.fence()

    def save(self, step: int, wait: bool) -> None:
        """Save the state after `step` steps; with `wait`, return when it is published and validated.

        Raises:
            RetryError: if this save had to succeed and did not.
            StopError: if saves failed twice in a row.
        """
        self._require_publishers()
        if self._saved_step == step and self._failure is None:
            self._finish()
            return
        self._finish()
        began = time.monotonic()
        phase = self._marker.phase
        self._marker.set("save", step)
        snapshot = self._snapshot(step)
        self._saved_step = step
        stall = time.monotonic() - began
        self._events.write("checkpoint", step=step, path=self._path(step), seconds=stall, state="saved")
        if wait or self._job.train.checkpoint.mode == "sync":
            self._publish(snapshot)
            self._finish(must_succeed=wait)
        else:
            self._thread = threading.Thread(target=self._publish, args=(snapshot,), name="checkpoint", daemon=True)
            self._thread.start()
        self._marker.set(phase, step)

    def _require_publishers(self) -> None:
        """Stop all ranks if any rank's publishing process is gone: the others' would wait for it, however long."""
        if not isinstance(self._publisher, ProcessPublisher):
            return
        for problem in self._mesh.gather(self._publisher.problem()):
            if problem is not None:
                self._abandoned = True
                raise StopError(f"{problem}; training without checkpoints would be lost work")

    def settle(self) -> None:
        """Wait for a save in flight."""
        self._finish()

    def skip_samples(self, count: int) -> None:
        """Move the data position on; the checkpoints that follow keep it."""
        self.sample_offset += count

    def close(self) -> None:
        """Wait for a save in flight, and give the directory up; a save that cannot end is not waited for."""
        if not self._abandoned:
            self._settle_threads()
        if self._mesh.rank == 0:
            self._directory.release()

    def _settle_threads(self) -> None:
        if self._thread is not None:
            self._thread.join()
        if isinstance(self._publisher, ProcessPublisher):
            self._publisher.close()

    def _finish(self, must_succeed: bool = False) -> None:
        """Wait for the save in flight and look at its end; all ranks have the same one."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._crash is not None:
            raise self._crash
        failure, self._failure = self._failure, None
        if failure is None:
            return
        if must_succeed or self._failures >= FAILURES_BEFORE_STOP:
            raise StopError(f"{failure}; training without checkpoints would be lost work")

    def _publish(self, snapshot: Snapshot) -> None:
        self._staging.wait()
        try:
            self._publisher.publish(snapshot)
            self._failures = 0
        except RetryError as error:
            self._failure, self._failures = error, self._failures + 1
            self._saved_step = None
            self._events.write(
                "checkpoint", step=snapshot.step, path=self._path(snapshot.step), seconds=None, state="failed",
                reason=str(error),
            )  # fmt: skip
            LOG.error("%s", error)
        except Exception as error:  # noqa: BLE001 - a thread's failure must reach the loop, whatever it is
            self._crash = error

    @property
    def _in_place(self) -> bool:
        """Whether the state is written from where it lies, while training waits: that needs no second copy."""
        return self._job.train.checkpoint.mode == "sync"

    def _snapshot(self, step: int) -> Snapshot:
        fragments = list(self._attached().fragments())
        shards: dict[str, Shards] = {}
        if self._in_place:
            for fragment in fragments:
                self._add(shards, fragment, fragment.states, copies=False)
            size = sum(live.numel() * live.element_size() for item in fragments for live in item.states.values())
        else:
            self._stage(fragments)
            self._staging.copy()
            shards, size = self._staged, self._staging.bytes
        return Snapshot(step, shards, self._state(step), random_state.capture(self._mesh.device), size)

    def _stage(self, fragments: list[Fragment]) -> None:
        """Find, or make, the staged counterpart of all state."""
        self._staging.begin()
        views = [{kind: self._staging.view(live) for kind, live in fragment.states.items()} for fragment in fragments]
        if not self._staged:
            for fragment, staged in zip(fragments, views):
                self._add(self._staged, fragment, staged, copies=False)

    def _state(self, step: int) -> dict[str, Any]:
        plan = self._job.plan
        return {
            "schema": STATE_SCHEMA,
            "run": plan.run,
            "step": step,
            "samples": step * plan.sizes.global_batch_size + self.sample_offset,
            "counters": self._attached().counters(),
            "seed": self._job.train.seed,
            "dtype": self._job.train.dtype,
            "engine": self._attached().name,
            "lora": None if self._job.train.lora is None else dataclasses.asdict(self._job.train.lora),
            "norm_epsilon": self._norm_epsilon,
            "model": dataclasses.asdict(plan.model),
            "sizes": dataclasses.asdict(plan.sizes),
        }

    def _add(self, shards: dict[str, Shards], fragment: Fragment, states: Mapping[str, Tensor], copies: bool) -> None:
        """Add the rectangles of a fragment; of replicated tensors and tied copies only one holder writes."""
        info = fragment.info
        tied = is_tied_copy(info.name, self._job.plan.model)
        replicated = info.split_dim is None and self._mesh.where.tp_rank > 0
        if not copies and (tied or replicated):
            return
        name = "embedding.word_embeddings.weight" if tied else info.name
        blocks = [RowBlock(piece.local_start, piece.global_start, piece.rows) for piece in info.pieces]
        for kind, flat in states.items():
            key = f"{kind}.{name}"
            target = shards.setdefault(key, Shards(info.global_shape))
            target.rectangles.extend(cut(flat, fragment.start, info.parameter_shape, blocks, info.column_start))

    def _check_model(self, outline: Outline) -> None:
        stored = {**outline.state.get("model", {}), "lora": outline.state.get("lora")}
        lora = self._job.train.lora
        adapters = None if lora is None else {**dataclasses.asdict(lora), "targets": list(lora.targets)}
        wanted = {**dataclasses.asdict(self._job.plan.model), "lora": adapters}
        for name, value in wanted.items():
            if name not in ("name", "parameters") and stored.get(name) != value:
                raise StopError(
                    f"{outline.checkpoint.path} is a checkpoint of another model: {name}={stored.get(name)!r} there, "
                    f"{value!r} in the plan"
                )

    def _report_choice(self, candidate: Published, refused: list[str]) -> None:
        skipped = f"; not used: {'; '.join(refused)}" if refused else ""
        LOG.info("resuming from step %d (%s)%s", candidate.step, candidate.path, skipped)
        self._events.write(
            "checkpoint", step=candidate.step, path=str(candidate.path), seconds=None, state="chosen", refused=refused
        )

    def _restore_random_state(self, path: Path, state: Mapping[str, Any]) -> None:
        """Take this rank's generators at the same layout; at another one the streams start anew from the seed."""
        if state.get("sizes") == dataclasses.asdict(self._mesh.sizes):
            manifest = read_small_json(path / MANIFESTS / f"{self._mesh.rank}.json")
            random_state.restore(manifest["random_state"], self._mesh.device)

    def _path(self, step: int) -> str:
        return str(self._directory.path / f"step_{step}")

    def _attached(self) -> Engine:
        assert self._engine is not None, "attach() comes before save and load"
        return self._engine
