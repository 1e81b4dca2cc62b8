"""Add what a role held back or skipped on this host to the lists that the play shows at its end."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ..module_utils.rackweave.errors import ProvisionError
from ..module_utils.rackweave.provision import gate

ARGUMENT_SPEC = {
    "role": {"type": "str", "required": True},
    "changes": {"type": "dict", "default": {}},
    "held_back": {"type": "bool", "default": True},
    "skipped": {"type": "list", "elements": "str", "default": []},
    "reason": {"type": "str", "default": ""},
}


class ActionModule(ActionBase):
    """Set the facts ``rackweave_pending`` and ``rackweave_skipped``; nothing on any machine."""

    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return both lists as facts, without an entry twice."""
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(ARGUMENT_SPEC)
        # Where facts are not injected as variables, they are found among the facts only.
        facts = {**((task_vars or {}).get("ansible_facts") or {}), **(task_vars or {})}
        try:
            why = "" if args["skipped"] else args["reason"]
            pending = gate.pending_entries(
                args["role"], args["changes"], disruptive_ok=not args["held_back"], reason=why
            )
            skipped = gate.guarded(args["role"], args["skipped"], args["reason"]) if args["skipped"] else []
        except ProvisionError as exc:
            return {**result, "failed": True, "msg": str(exc)}
        lists = {
            "rackweave_pending": _joined(facts.get("rackweave_pending"), pending),
            "rackweave_skipped": _joined(facts.get("rackweave_skipped"), skipped),
        }
        return {**result, "changed": False, "ansible_facts": lists}


def _joined(before: Any, added: list[dict[str, str]]) -> list[Any]:
    before = list(before or [])
    return before + [entry for entry in added if entry not in before]
