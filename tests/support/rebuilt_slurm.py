"""A Slurm of one node and its jobs, as scontrol prints it and as scontrol and scancel change it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from rackweave.rebuild.moves import Act, Done, Move, Progress, Refuse, Settings, Wait, next_move
from rackweave.rebuild.view import Situation, parse_jobs, parse_node_view, parse_reservations

NODE = "gpu02"


class Killed(Exception):
    """The rebuild was killed here."""


@dataclass
class FakeSlurm:
    """State of the node, of its jobs by id, and of reservations by name; `log` holds every change."""

    state: str = "IDLE"
    reason: str = ""
    reason_by: str = "root"
    jobs: dict[str, dict[str, str]] = field(default_factory=dict)
    reservations: dict[str, dict[str, str]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def job(self, job_id: str, *, name: str = "rackweave-demo", state: str = "PENDING", **more: str) -> FakeSlurm:
        nodes = {"ReqNodeList": "gpu[01-02]", "NodeList": "(null)"}
        if state != "PENDING":
            nodes = {"ReqNodeList": "(null)", "NodeList": "gpu[01-02]"}
            self.state = self.state.replace("IDLE", "ALLOCATED")
        values = {"JobName": name, "UserId": "hpc(2000)", "JobState": state, "Reason": "Resources", **nodes, **more}
        self.jobs[job_id] = values
        return self

    def show(self, what: str) -> str:
        """Return what ``scontrol --oneliner show`` prints of a node, of jobs, or of reservations."""
        if what == "node":
            reason = f" Reason={self.reason} [{self.reason_by}@2026-11-29T22:00:00]" if self.reason else ""
            return f"NodeName={NODE} Arch=x86_64 CoresPerSocket=1 State={self.state} ThreadsPerCore=1{reason}"
        if what == "job":
            return "\n".join(
                f"JobId={job_id} " + " ".join(f"{key}={value}" for key, value in values.items() if value)
                for job_id, values in self.jobs.items()
            )
        return "\n".join(
            f"ReservationName={name} StartTime=2026-11-29T22:00:00 Nodes={it['nodes']} NodeCnt=1 State=ACTIVE"
            for name, it in self.reservations.items()
        )

    def look(self) -> Situation:
        """Return what is seen, by way of the texts that Slurm prints."""
        seen = (parse_node_view(self.show("node")), parse_jobs(self.show("job")))
        return Situation(*seen, parse_reservations(self.show("reservation")))

    def make(self, act: Act) -> None:
        """Change as the command would."""
        self.log.append(act.words)
        words = dict(word.split("=", 1) for word in act.arguments if "=" in word)
        verb = act.arguments[0]
        if act.program == "scancel":
            self._end(act.arguments[-1])
        elif verb == "update" and "nodename" in words:
            self._set_node(words)
        elif verb == "update":
            self.jobs[words["jobid"]]["AdminComment"] = words["admincomment"]
        elif verb == "create":
            assert words["reservation"] not in self.reservations
            self.reservations[words["reservation"]] = words
        elif verb == "delete":
            del self.reservations[words["reservation"]]
        elif verb in ("hold", "release"):
            self.jobs[act.arguments[1]]["Reason"] = "JobHeldAdmin" if verb == "hold" else "Resources"
        else:
            raise AssertionError(f"unknown command {act.arguments}")

    def _end(self, job_id: str) -> None:
        job = self.jobs.pop(job_id)
        if job["JobState"] != "PENDING":
            self.state = self.state.replace("ALLOCATED", "IDLE")

    def _set_node(self, words: dict[str, str]) -> None:
        base = self.state.split("+")[0]
        if words["state"] == "drain":
            self.state, self.reason, self.reason_by = f"{base}+DRAIN", words["reason"], "root"
        else:
            self.state, self.reason = base.replace("DOWN", "IDLE"), ""

    @property
    def end(self) -> dict[str, object]:
        """Everything but the log."""
        state = copy.deepcopy(vars(self))
        state.pop("log")
        state.pop("reason_by")
        return state

    @property
    def open(self) -> bool:
        """Whether a job of anybody could start on the node."""
        return "DRAIN" not in self.state and "DOWN" not in self.state and not self.reservations


def step(slurm: FakeSlurm, name: str, settings: Settings, budget: list[int], watch=None) -> Move:
    """Carry out one step as the module does; `budget` counts down to the kill."""
    elapsed, asked, moves = 0.0, set(), 0
    while True:
        moves += 1
        assert moves < 100, slurm.log
        move = next_move(name, slurm.look(), settings, Progress(elapsed, frozenset(asked), "gpu01"))
        if isinstance(move, (Done, Refuse)):
            return move
        if isinstance(move, Wait):
            elapsed += 10.0
            continue
        if budget[0] == 0:
            raise Killed
        budget[0] -= 1
        if move.kind == "save":
            slurm.log.append(move.words)
            asked.add(move.arguments[-1])
        else:
            slurm.make(move)
        if watch is not None:
            watch(slurm, name)
