"""The one seam between Megatron's pipeline schedules and the engine.

Megatron owns the order of micro-batches and the sends between stages; the engine owns the backward pass. The seam
replaces `megatron.core.pipeline_parallel.schedules.backward_step` (checked with 0.15, 0.16 and 0.19; the last lost its
`model_type` argument). Numeric test: tests/unit/trainer/test_layouts.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Callable

import torch
from megatron.core.pipeline_parallel import schedules
from torch import Tensor

from .config import JobConfig
from .data.samples import Batch, Sampler
from .engine import Engine
from .mesh import Mesh
from .model.stage import Stage
from .telemetry import PhaseMarker


class _Seed(torch.autograd.Function):
    """A scalar whose gradient is a given one: engines back-propagate from scalars only.

    The received gradient is passed on unscaled, so loss scaling, applied once on the last stage, is not applied twice.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(gradient)
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *scalar_gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0], None


def _seed(output: Tensor, gradient: Tensor) -> Tensor:
    scalar: Tensor = _Seed.apply(output, gradient)  # type: ignore[no-untyped-call]
    return scalar


class Schedule:
    """Runs the micro-batches of one step, forward and backward or forward only."""

    def __init__(
        self, job: JobConfig, mesh: Mesh, engine: Engine, stages: Sequence[Stage], marker: PhaseMarker
    ) -> None:
        sizes = job.plan.sizes
        self._sizes, self._model, self._mesh = sizes, job.plan.model, mesh
        self._engine, self.stages, self._marker = engine, list(stages), marker
        virtual = sizes.virtual_pipeline_size if sizes.virtual_pipeline_size > 1 else None
        self._run = _forward_backward(sizes.pipeline_parallel_size, virtual)
        self._step = 0
        self._forwards = self._backwards = 0
        schedules.backward_step = self._backward_step

    def train(self, sampler: Sampler, step: int) -> list[Tensor]:
        """Accumulate the gradients of a step; return the micro-batches' losses (on the last stage, else nothing)."""
        whole = self._engine.micro_batch
        if whole is not None:
            return self._whole(sampler, step, whole)
        return self._execute(sampler, step, forward_only=False)

    def evaluate(self, sampler: Sampler, batch: int) -> list[Tensor]:
        """Return the micro-batches' losses of one global batch, without gradients."""
        with torch.no_grad():
            return self._execute(sampler, batch, forward_only=True)

    def _whole(self, sampler: Sampler, step: int, run: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
        """Run the micro-batches of a model without stages in one call each; there is no order to keep."""
        losses = []
        for index, batch in enumerate(self._batches(sampler, step)):
            self._marker.set("forward", step, index)
            losses.append(run(*self._on_device(batch)))
        return losses

    def _on_device(self, batch: Batch) -> tuple[Tensor, Tensor]:
        tokens, labels = torch.from_numpy(batch.tokens), torch.from_numpy(batch.labels)
        return tokens.to(self._mesh.device, non_blocking=True), labels.to(self._mesh.device, non_blocking=True)

    def _execute(self, sampler: Sampler, step: int, forward_only: bool) -> list[Tensor]:
        self._step, self._forwards, self._backwards = step, 0, 0
        iterators = [self._batches(sampler, step) for _ in self.stages]
        losses: list[Tensor] = self._run(
            forward_step_func=self._forward_step,
            data_iterator=iterators if len(iterators) > 1 else iterators[0],
            model=self.stages,
            num_microbatches=self._sizes.num_microbatches,
            seq_length=self._model.sequence_length,
            micro_batch_size=self._sizes.micro_batch_size,
            forward_only=forward_only,
        )
        return losses

    def _batches(self, sampler: Sampler, step: int) -> Iterator[Batch]:
        for index in range(self._sizes.num_microbatches):
            yield sampler.micro_batch(step, index)

    def _forward_step(self, batches: Iterator[Batch], stage: Stage) -> tuple[Tensor, Callable[..., Any]]:
        if torch.is_grad_enabled():
            self._marker.set("forward", self._step, self._forwards)
        self._forwards += 1
        tokens, labels = self._on_device(next(batches))
        return self._engine.forward(stage.vp_stage or 0, tokens, labels), _loss_and_report

    def _backward_step(self, input_tensor: Any, output_tensor: Any, output_gradient: Any, *_: Any) -> Any:
        self._marker.set("backward", self._step, self._backwards)
        self._backwards += 1
        received, output, gradient = _single(input_tensor), _single(output_tensor), _single(output_gradient)
        assert output is not None, "a schedule goes back only from what went forward"
        if received is not None:
            received.retain_grad()
        self._engine.backward(output if gradient is None else _seed(output, gradient))
        passed_on = None if received is None else received.grad
        return [passed_on] if isinstance(input_tensor, list) else passed_on


def _forward_backward(pipeline_size: int, virtual_size: int | None) -> Callable[..., list[Tensor]]:
    if pipeline_size == 1:
        chosen = schedules.forward_backward_no_pipelining
    elif virtual_size is not None:
        chosen = schedules.forward_backward_pipelining_with_interleaving
    else:
        chosen = schedules.forward_backward_pipelining_without_interleaving
    function: Callable[..., list[Tensor]] = chosen
    return function


def _loss_and_report(loss: Tensor) -> tuple[Tensor, Tensor]:
    """Megatron divides the first by the number of micro-batches in place, so the second must be a copy."""
    return loss, loss.detach().clone()


def _single(tensor: Any) -> Tensor | None:
    first: Tensor | None = tensor[0] if isinstance(tensor, list) else tensor
    return first
