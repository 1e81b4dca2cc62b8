"""Filters of the role rebuild: results of tasks to the pure package and back."""

from __future__ import annotations

from ..module_utils.rackweave.rebuild.swap import judge_acceptance


def acceptance_judgement(report, host):
    """Return ``{passed, words, pair_pending}`` of an acceptance report for one host."""
    judged = judge_acceptance(report, host)
    return {"passed": judged.passed, "words": judged.words, "pair_pending": judged.pair_pending}


def failure_words(result, task):
    """Return one line for a drain's reason: what our own tasks say, else the task's name with its message."""
    failed = next((item for item in result.get("results") or [] if item.get("failed")), result)
    message = failed.get("msg") or failed.get("stderr") or result.get("msg") or "failed"
    lines = [line.strip() for line in str(message).splitlines() if line.strip()]
    first = lines[0] if lines else "failed"
    return first if str(task).startswith("Keep a node out") else f"{task}: {first}"


class FilterModule:
    """Names of the filters."""

    def filters(self):
        return {"acceptance_judgement": acceptance_judgement, "failure_words": failure_words}
