#!/usr/bin/python
"""Carry out one step of a rebuild in Slurm: look, make the next move, look again."""

from __future__ import annotations

import time

from ansible.module_utils.basic import AnsibleModule

from ..module_utils.rackweave.errors import RackweaveError
from ..module_utils.rackweave.rebuild.moves import STEPS, Act, Done, Progress, Refuse, Settings, Wait, next_move
from ..module_utils.rackweave.rebuild.view import (
    Situation,
    idle_neighbour,
    parse_jobs,
    parse_node_view,
    parse_node_views,
    parse_reservations,
)

DOCUMENTATION = r"""
module: slurm_rebuild
short_description: Carry out one step of a rebuild in Slurm
description:
  - Runs on a host where scontrol works with an operator's rights, on behalf of the node that is rebuilt.
  - Every move follows from what Slurm shows, so a step that was killed is simply called again.
  - What a step sets (drain, hold, reservation) is taken back by a later one; only RV(acts) says what was done, and
    C(changed) is true where a job was ended or a drain of somebody else was taken over.
options:
  node: {description: Name of the node in Slurm., type: str, required: true}
  step:
    description: >-
      V(check) only refuses; V(begin) drains, holds our waiting job and waits for the running one; V(reserve) and
      V(resume) open the node to the acceptance run alone; V(finish) returns it; V(fail) keeps it drained.
    type: str
    choices: [check, begin, reserve, resume, finish, fail]
    required: true
  user: {description: Owner of our training jobs., type: str, required: true}
  neighbours:
    description: Nodes of which one that is idle is reserved too, for a test between both.
    type: list
    elements: str
    default: []
  reason: {description: Why the node stays drained; of step V(fail)., type: str, default: ""}
  cancel_ok: {description: Consent to end a job that does not end by itself., type: bool, default: false}
  adopt_ok: {description: Consent to take over a drain that somebody else made., type: bool, default: false}
  keep_hold: {description: Leave our waiting job held at the end., type: bool, default: false}
  drain_wait_s: {description: Seconds that a running job gets to end by itself., type: float, default: 600}
  save_wait_s: {description: Seconds that a job of ours then gets to save., type: float, default: 120}
  answer_wait_s: {description: Seconds that slurmd gets to answer., type: float, default: 60}
  poll_s: {description: Seconds between two looks while waiting., type: float, default: 1}
attributes:
  check_mode: {support: full, description: Says which move would be the next one.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Drain the node and wait until it is empty
  rackweave.cluster.slurm_rebuild:
    node: gpu02
    step: begin
    user: hpc
  become: true
  delegate_to: ctl
"""
RETURN = r"""
acts: {description: What was done, in words., returned: always, type: list, elements: str}
refused: {description: Whether the step refuses to go on; C(msg) says why., returned: always, type: bool}
reserved: {description: Nodes of our reservation., returned: success, type: list, elements: str}
held: {description: Jobs that wait for the node and are held by us., returned: success, type: list, elements: str}
jobs: {description: Jobs that wait for the node., returned: success, type: list, elements: dict}
"""
SPEC = {
    "node": {"type": "str", "required": True},
    "step": {"type": "str", "choices": list(STEPS), "required": True},
    "user": {"type": "str", "required": True},
    "neighbours": {"type": "list", "elements": "str", "default": []},
    "reason": {"type": "str", "default": ""},
    "cancel_ok": {"type": "bool", "default": False},
    "adopt_ok": {"type": "bool", "default": False},
    "keep_hold": {"type": "bool", "default": False},
    "drain_wait_s": {"type": "float", "default": 600},
    "save_wait_s": {"type": "float", "default": 120},
    "answer_wait_s": {"type": "float", "default": 60},
    "poll_s": {"type": "float", "default": 1},
}
# More moves than this mean that Slurm does not keep what it was told.
MOST_ACTS = 200
LASTING = frozenset({"cancel", "save"})


class Slurm:
    """scontrol and scancel of this host."""

    def __init__(self, module: AnsibleModule) -> None:
        self._module = module
        self._path = {name: module.get_bin_path(name, required=True) for name in ("scontrol", "scancel")}

    def look(self, node: str) -> Situation:
        """Return what Slurm shows now."""
        try:
            return Situation(
                parse_node_view(self._show("node", node)),
                parse_jobs(self._show("job")),
                parse_reservations(self._show("reservation")),
            )
        except RackweaveError as exc:
            self._module.fail_json(msg=str(exc))

    def neighbour(self, allowed: list[str], seen: Situation) -> str | None:
        """Return an idle node of those allowed, None if there is none."""
        views = parse_node_views(self._show("node")) if allowed else ()
        return idle_neighbour(views, allowed, seen.reservations)

    def make(self, act: Act) -> str:
        """Make a move; return Slurm's complaint, empty if there is none."""
        code, out, err = self._module.run_command([self._path[act.program], *act.arguments])
        return (err or out).strip() if code else ""

    def _show(self, *what: str) -> str:
        code, out, err = self._module.run_command([self._path["scontrol"], "--oneliner", "show", *what])
        text = str(out + err)
        if code and "not found" not in text and "Invalid node name" not in text:
            self._module.fail_json(msg=f"slurmctld does not answer: {text.strip()}; nothing was done in this step")
        return text


def carry_out(module: AnsibleModule, slurm: Slurm) -> None:
    """Make moves until the step is done, refuses, or fails."""
    params = module.params
    settings = Settings(**{name: params[name] for name in Settings.__dataclass_fields__})
    began, asked, acts, kinds = time.monotonic(), set(), [], set()
    alone = False
    while True:
        seen = slurm.look(params["node"])
        neighbour = None if alone else slurm.neighbour(params["neighbours"], seen)
        move = next_move(
            params["step"], seen, settings, Progress(time.monotonic() - began, frozenset(asked), neighbour)
        )
        if isinstance(move, (Done, Refuse)) or (module.check_mode and isinstance(move, Wait)):
            leave(module, seen, acts, kinds, move)
        if isinstance(move, Wait):
            time.sleep(params["poll_s"])
            continue
        acts.append(move.words)
        kinds.add(move.kind)
        if module.check_mode:
            leave(module, seen, acts, kinds, Done(f"would {move.words}, and go on from there"))
        complaint = slurm.make(move)
        if move.kind == "save":
            asked.add(move.arguments[-1])
        if complaint and move.kind == "reserve" and neighbour:
            # It was idle a moment ago; a job is not made to wait for our test.
            alone = True
            acts[-1] += f"; without the neighbour, for Slurm says: {complaint}"
        elif complaint and move.kind == "delete" and time.monotonic() < began + params["answer_wait_s"]:
            # A test that was just cancelled is still cleaned up.
            acts.pop()
            time.sleep(params["poll_s"])
        elif complaint and move.kind not in ("save", "cancel", "release", "hold", "mark"):
            module.fail_json(msg=f"Slurm refused to {move.words}: {complaint}", acts=acts, refused=False)
        if len(acts) > MOST_ACTS:
            module.fail_json(msg=f"{len(acts)} moves and no end, the last one: {move.words} ({complaint})", acts=acts)


def leave(module: AnsibleModule, seen: Situation, acts: list[str], kinds: set[str], move: Done | Refuse | Wait) -> None:
    """End the module with what was done and seen."""
    node = module.params["node"]
    ours = next((it for it in seen.reservations if it.name.endswith(f"-{node}")), None)
    waiting = seen.waiting_for(node)
    result = {
        "acts": acts,
        "refused": isinstance(move, Refuse),
        "reserved": list(ours.nodes) if ours else [],
        "held": [job.job_id for job in waiting if job.held],
        "jobs": [{"job_id": job.job_id, "name": job.name, "user": job.user} for job in waiting],
        "known": seen.node is not None,
    }
    if isinstance(move, Refuse):
        module.fail_json(msg=move.words, **result)
    module.exit_json(changed=bool(kinds & LASTING), msg=move.words, **result)


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    carry_out(module, Slurm(module))


if __name__ == "__main__":
    main()
