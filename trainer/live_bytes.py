"""The planner's estimate of a rank's memory, read for what this trainer's two engines really hold at their peak."""

from __future__ import annotations

from dataclasses import dataclass

from rackweave.plan.memory import StageMemory

from .deepspeed_config import LARGEST_BUCKET

HALVES_SHARE = 0.4
"""fp32 weights as a share of the flat engine's optimizer states in bfloat16: 4 of 4 + 4 + 2 bytes."""
STAGED_SHARE = {"float32": 1.5, "bfloat16": 1.2, "float16": 1.0}
"""What a checkpoint stages (12 bytes a parameter) as a share of those states, by dtype."""


@dataclass(frozen=True)
class Situation:
    """What beside the layout decides: `staged`: a checkpoint's copy of the states lies in the memory that is meant."""

    dtype: str
    cuda: bool
    staged: bool

    @property
    def width(self) -> int:
        """Bytes of a weight or an activation."""
        return 4 if self.dtype == "float32" else 2


def live_bytes(memory: StageMemory, flat: bool, situation: Situation) -> float:
    """Return the bytes of live tensors at the peak; on GPUs with the holes that the allocator keeps between them."""
    live, staged = _flat(memory, situation) if flat else _deepspeed(memory, situation)
    if situation.cuda:
        return live + memory.cached / 3
    return live + (staged if situation.staged else 0.0)


def _passing(memory: StageMemory, situation: Situation) -> float:
    """Return what a micro-batch holds; the planner counts it in 16 bit."""
    return (memory.activations + memory.working_set + memory.pipeline_buffers) * situation.width / 2


def _flat(memory: StageMemory, situation: Situation) -> tuple[float, float]:
    """Return live and staged bytes of the flat engine, whose states the planner knows as they are.

    To save or load them, the fp32 weights of bfloat16 ones are put together; activations are gone by then.
    """
    states = memory.weights + memory.gradients + memory.optimizer + memory.gathered
    passing = _passing(memory, situation) + memory.logits * situation.width / 2
    whole = HALVES_SHARE * memory.optimizer if situation.dtype == "bfloat16" else 0.0
    return states + max(passing, whole), STAGED_SHARE[situation.dtype] * memory.optimizer


def _deepspeed(memory: StageMemory, situation: Situation) -> tuple[float, float]:
    """Return the same for DeepSpeed's ZeRO.

    The planner takes fp32 weights for their own master copy; DeepSpeed has another one, a bucket as large as all
    gradients, and AdamW's temporaries, which come when activations are gone.
    """
    width = situation.width
    optimizer = memory.optimizer * (1.5 if width == 4 else 1.0)
    gathered = memory.gathered * width / 2
    bucket = min(LARGEST_BUCKET * width, max(memory.weights, gathered))
    passing = _passing(memory, situation) + memory.logits
    states = memory.weights + memory.gradients + optimizer + gathered + bucket
    return states + max(passing, optimizer * 2 / 3), optimizer
