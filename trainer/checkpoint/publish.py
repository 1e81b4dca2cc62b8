"""The publish protocol: at every instant the directory holds only whole checkpoints under their final names.

1 write to step_N.tmp; 2 each rank writes size and hash of its files, from the bytes it wrote; 3 the coordinator checks
all manifests; 4 `.metadata`, rename to step_N; 5 read back and compare, load a sample; 6 move `latest`; 7 retire old
ones. A kill between any two leaves the previous checkpoint and pointer valid.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import save

from ..errors import RetryError, StopError
from .directory import MANIFESTS, REPLACED, STATE_FILE, VALIDATED_FILE, CheckpointDirectory, Published
from .rectangles import RectangleSavePlanner, Shards
from .storage import HashingWriter, failure_of, sync_directory, write_durably
from .verify import check_own, check_sizes, load_sample, seal

MANIFEST_SCHEMA = "rackweave.checkpoint-manifest/1"
Observer = Callable[[str], None]


@dataclass(frozen=True)
class Snapshot:
    """State to publish: views into staged memory that nobody changes until the publication ends."""

    step: int
    shards: Mapping[str, Shards]
    state: Mapping[str, Any]
    random_state: Mapping[str, Any]
    bytes: int


@dataclass(frozen=True)
class Writers:
    """The processes that publish together; `group` None means this process alone."""

    rank: int = 0
    world_size: int = 1
    group: dist.ProcessGroup | None = field(default=None)

    @property
    def coordinator(self) -> bool:
        """Rank 0 of the world."""
        return self.rank == 0

    def gather(self, fact: object) -> list[Any]:
        """Return every rank's fact."""
        if self.group is None:
            return [fact]
        facts: list[Any] = [None] * self.world_size
        dist.all_gather_object(facts, fact, group=self.group)
        return facts

    def from_coordinator(self, fact: object) -> Any:
        """Return the coordinator's fact to every rank."""
        if self.group is None:
            return fact
        facts = [fact]
        dist.broadcast_object_list(facts, src=0, group=self.group)
        return facts[0]

    def together(self, action: Callable[[], None]) -> None:
        """Run an action on every rank; if it fails on one, fail on all with that rank's sentence."""
        sentence = None
        try:
            action()
        except (OSError, StopError) as error:
            sentence = str(error)
        for rank, said in enumerate(self.gather(sentence)):
            if said is not None:
                raise RetryError(f"rank {rank}: {said}")


class Publisher:
    """Publishes snapshots into a directory. `observe` is told the name of each step as it is reached."""

    def __init__(
        self, directory: CheckpointDirectory, writers: Writers, keep: int, observe: Observer, event: Callable[..., None]
    ) -> None:
        self._directory, self._writers, self._keep = directory, writers, keep
        self._observe, self._event = observe, event
        self.started_from: frozenset[int] = frozenset()

    def publish(self, snapshot: Snapshot) -> Published:
        """Publish one snapshot; every rank of the writers calls this with its own part.

        Raises:
            RetryError: if it could not be written or read back; whatever was published before is untouched.
        """
        began = time.monotonic()
        final = self._directory.path / f"step_{snapshot.step}"
        temporary = final.with_name(final.name + ".tmp")
        try:
            self._write(snapshot, temporary)
        except (RetryError, CheckpointException) as error:
            self._discard(temporary)
            raise RetryError(f"checkpoint of step {snapshot.step} was not written: {failure_of(error)}") from error
        self._writers.together(lambda: self._rename(temporary, final))
        published = Published(snapshot.step, final)
        self._event(
            "checkpoint", step=snapshot.step, path=str(final), seconds=time.monotonic() - began, state="published"
        )
        self._validate(published)
        self._event(
            "checkpoint", step=snapshot.step, path=str(final), seconds=time.monotonic() - began, state="validated"
        )
        return published

    def _write(self, snapshot: Snapshot, temporary: Path) -> None:
        writers = self._writers
        own: dict[str, dict[str, Any]] = {}

        def prepare() -> None:
            if writers.coordinator:
                self._observe("begin")
                if temporary.exists():
                    shutil.rmtree(temporary)
                (temporary / MANIFESTS).mkdir(parents=True)
                own[STATE_FILE] = write_durably(
                    temporary / STATE_FILE, json.dumps(dict(snapshot.state), indent=1) + "\n"
                )

        def write_manifest(files: dict[str, dict[str, Any]]) -> None:
            self._observe("manifest")
            manifest = {
                "schema": MANIFEST_SCHEMA,
                "rank": writers.rank,
                "world_size": writers.world_size,
                "step": snapshot.step,
                "files": {**own, **files},
                "random_state": dict(snapshot.random_state),
            }
            write_durably(temporary / MANIFESTS / f"{writers.rank}.json", json.dumps(manifest) + "\n")

        def check_manifests() -> None:
            self._observe("check")
            check_sizes(temporary, writers.world_size)
            self._observe("metadata")

        writers.together(prepare)
        self._observe("write")
        save(
            dict(snapshot.shards),
            storage_writer=HashingWriter(
                temporary, snapshot.bytes, write_manifest, check_manifests, lambda: seal(temporary)
            ),
            planner=RectangleSavePlanner(),
            process_group=writers.group,
            no_dist=writers.group is None,
        )

    def _rename(self, temporary: Path, final: Path) -> None:
        if not self._writers.coordinator:
            return
        self._observe("rename")
        sync_directory(temporary)
        replaced = final.with_name(final.name + REPLACED)
        if final.exists():
            # The same step again: this job went back to an earlier one. A kill in between leaves the first one.
            final.replace(replaced)
            self._observe("replaced")
        temporary.replace(final)
        sync_directory(final.parent)
        if replaced.exists():
            shutil.rmtree(replaced)

    def _validate(self, published: Published) -> None:
        """Read back own files; then the coordinator loads a sample, marks the checkpoint, moves `latest`, retires."""
        writers = self._writers

        def read_back() -> None:
            self._observe("validate")
            check_own(published.path, writers.rank)

        def conclude() -> None:
            if not writers.coordinator:
                return
            load_sample(published.path)
            self._observe("validated")
            write_durably(published.path / VALIDATED_FILE, json.dumps({"time": time.time()}) + "\n")
            self._observe("latest")
            self._directory.point_to(published)
            self._observe("retire")
            self._directory.retire(self._keep, self.started_from)

        writers.together(read_back)
        writers.together(conclude)

    def _discard(self, temporary: Path) -> None:
        """Free the space of a failed save at once: a full disk may be the reason."""
        if self._writers.coordinator and temporary.exists():
            shutil.rmtree(temporary, ignore_errors=True)
