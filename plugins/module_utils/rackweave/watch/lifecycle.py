"""Where a job begins, saves, evaluates, ends or is told to end: the window in which events count."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime

from .prefix import Line, parse_time

_START = re.compile(
    r"Setting OMP_NUM_THREADS|torch\.distributed\.(?:run|launch)|NCCL version \d|Rendezvous'ing worker "
    r"group|initializ(?:ing|ed) torch distributed|"
    r"using world size: \d|setting random seeds|building \w+ model|Starting elastic_operator|\[launch\.py:\d+:main\]"
    r" (?:nnodes|WORLD INFO|dist_world_size)|"
    r"\"kind\": ?\"start\"|> setting tensorboard|DeepSpeed info: version|job (?:started|begins)\b|Job \d+ started"
)
_GOOD_END = re.compile(
    r"\[exiting program(?: at iteration \d+| after \d+)?|\[after training is done\]|(?i:training (?:is "
    r")?(?:finished|complete[d]?|done)\b(?! step))|"
    r"(?i:reached max(?:imum)? (?:steps|iterations|epochs))|`?Trainer\.fit` stopped|(?i:job (?:\d+ )?(?:completed|"
    r"finished) successfully)|exit(?:ed|ing)? with (?:exit )?(?:code|status) 0\b|\bCOMPLETED\b[ |]+0:0|"
    r"successfully finished|\[.*api\.py.*\] .*finished successfully|Local worker group finished \(WorkerState\.SUCCE"
    r"EDED\)|worker group successfully finished"
)
_SAVING = re.compile(
    r"(?i)(?:^|\W)(?:saving|start(?:ing|ed)? (?:to )?sav\w+|begin(?:ning)? (?:to )?save|writing) (?:the "
    r"|a |an |final |exit |emergency |model |sharded |distributed |async )*(?:checkpoint|model states|"
    r"state)|\b(?:checkpoint|save)\b.{0,30}\b(?:started|begins|is being written)\b|"
    r"received (?:signal|USR1|SIGUSR1|SIGTERM).{0,60}sav"
)
_SAVED = re.compile(
    r"(?i)(?:successfully saved|saved (?:the |a |final )?checkpoint|checkpoint saved|finished saving|save "
    r"(?:is )?(?:complete|done|finished)|published checkpoint|checkpoint .{0,80}(?:is ready now|saved "
    r"successfully|published|committed))"
)
_QUIET = re.compile(
    r"(?i)evaluating|evaluation (?:start|begin|on)|running (?:validation|evaluation)|start(?:ing)? (?:validation|"
    r"evaluation)|loading (?:distributed )?checkpoint|building \w+ model|compil(?:ing|ation)|"
    r"building (?:dataset|index|train)|warm(?:ing)?[- ]?up|(?:creating|building) (?:shuffle|sample|doc)"
    r"|downloading|initializing process group"
)
_SIGNALLED = re.compile(
    r"(?i)(?:received|caught|got|handling) (?:signal )?(?:SIG)?(?:TERM|USR1|USR2|INT|"
    r"15|10|12)\b|signal handler"
)
_RESTART = re.compile(
    r"restarting worker group|\[default\] (?:Starting|starting) worker group|Rendezvous'ing worker group|"
    r"SLURM_RESTART_COUNT[= ]+[1-9]|(?:attempt|restart)[ =#:]+[1-9]\d* (?:of|starts|begins)|Restarting "
    r"job|restart_count=[1-9]"
)

LITERALS = (
    "OMP_NUM_THREADS",
    "torch.distributed.run",
    "torch.distributed.launch",
    "NCCL version",
    "endezvous'ing",
    "torch distributed",
    "world size",
    "random seeds",
    "model ...",
    "elastic_operator",
    "exiting program",
    "training is done",
    "raining",
    "topped",
    "COMPLETED",
    "finished",
    "SUCCEEDED",
    "aving",
    "aved",
    "sav",
    "checkpoint",
    "valuat",
    "alidation",
    "ompil",
    "arm-up",
    "arming",
    "building",
    "Building",
    "ownloading",
    "estarting",
    "ignal",
    "SIG",
    "RESTART_COUNT",
    "restart_count",
    "DeepSpeed info",
    "started",
    "exit code",
    "status",
)


@dataclass
class Lifecycle:
    """Marks of one scan; positions compare within a source, times over sources."""

    start: datetime | None = None
    first_app: datetime | None = None
    end: datetime | None = None
    end_position: dict[int, int] = field(default_factory=dict)
    last_time: datetime | None = None
    saving: Line | None = None
    saved: Line | None = None
    quiet: Line | None = None
    signalled: Line | None = None
    restarted: bool = False
    restart_position: dict[int, int] = field(default_factory=dict)

    def feed(self, line: Line) -> bool:
        """Take one line that may be a mark; True if it is one."""
        found = False
        text = line.text
        low = text.lower()
        moment = line.time or parse_time(line.full[:200])
        if _START.search(text):
            found = True
            if moment is not None and (self.start is None or moment < self.start):
                self.start = moment
        if ("restart" in low or "attempt" in low or "worker group" in low) and _RESTART.search(text):
            self.restarted = self.restarted or "estart" in text or "RESTART" in text
            self.restart_position[line.source] = line.position
            found = True
        if "sig" in low and _SIGNALLED.search(text):
            self.signalled = line
            found = True
        if "sav" not in low and "checkpoint" not in low and "writing" not in low:
            pass
        elif _SAVED.search(text):
            self.saved = line
            found = True
        elif _SAVING.search(text):
            self.saving = line
            found = True
        if _QUIET.search(text):
            self.quiet = line
            found = True
        if _GOOD_END.search(text):
            self.end_position[line.source] = line.position
            found = True
            if moment is not None:
                self.end = moment
        return found

    def see_app_time(self, moment: datetime) -> None:
        """A dated line of the job itself."""
        if self.first_app is None or moment < self.first_app:
            self.first_app = moment
        if self.last_time is None or moment > self.last_time:
            self.last_time = moment

    def open_save(self) -> bool:
        """Whether the last save begun has not been reported as finished."""
        return self.saving is not None and (self.saved is None or self.saved.position < self.saving.position)
