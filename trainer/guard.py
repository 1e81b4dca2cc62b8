"""What to do when the loss is no number or jumps: stop, skip the batch, or roll back and go around the data."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass
from enum import Enum

from .config import GuardConfig

SETTLING_STEPS = 8
"""Losses of this attempt that must be known before a jump counts: after a restart the level is not known yet."""


class Action(Enum):
    """What the loop does with a step's gradients."""

    APPLY = "apply"
    SKIP = "skip"
    ROLL_BACK = "roll_back"
    STOP = "stop"


@dataclass(frozen=True)
class Judgement:
    """An action and its reason in one sentence."""

    action: Action
    reason: str = ""


class LossGuard:
    """Judges each step by its loss (and, after the fact, its gradient norm); equal on all ranks, since those are."""

    def __init__(self, config: GuardConfig) -> None:
        self._config = config
        self._recent: deque[float] = deque(maxlen=config.window)
        self._in_a_row = 0

    def judge(self, step: int, loss: float) -> Judgement:
        """Return what to do with a step, before its gradients are applied."""
        problem = self._problem(step, loss)
        if problem is None:
            self._recent.append(loss)
            self._in_a_row = 0
            return Judgement(Action.APPLY)
        return self._react(problem)

    def judge_norm(self, step: int, norm: float, applied: bool) -> Judgement:
        """Return what to do after a step whose weights were changed by gradients of this norm.

        Weights that a non-finite gradient has touched are lost: skipping is too late, so only rolling back helps.
        """
        if math.isfinite(norm) or not applied:
            return Judgement(Action.APPLY)
        problem = f"the gradient norm of step {step} is {norm}, and the weights have taken it"
        judgement = self._react(problem)
        if judgement.action is Action.SKIP:
            return Judgement(Action.ROLL_BACK, problem)
        return judgement

    def rolled_back(self) -> None:
        """Forget the level: the steps that follow belong to an earlier one."""
        self._recent.clear()

    def _problem(self, step: int, loss: float) -> str | None:
        if not math.isfinite(loss):
            return f"the loss of step {step} is {loss}"
        factor = self._config.spike_factor
        if factor is None or len(self._recent) < SETTLING_STEPS:
            return None
        level = statistics.median(self._recent)
        if loss <= factor * level:
            return None
        return f"the loss of step {step} is {loss:.4f}, more than {factor:g} times the recent median {level:.4f}"

    def _react(self, problem: str) -> Judgement:
        self._in_a_row += 1
        if self._config.policy == "stop":
            return Judgement(Action.STOP, problem)
        if self._in_a_row > self._config.limit:
            return Judgement(Action.STOP, f"{problem}; that is {self._in_a_row} such steps in a row")
        return Judgement(Action.SKIP if self._config.policy == "skip" else Action.ROLL_BACK, problem)
