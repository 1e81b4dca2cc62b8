"""Gradients of the flat engine, compiled or not, as a rank finds them in its buffer; runs inside forked ranks."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.support.ranks import open_job
from trainer.flat_engine import Acceleration, FlatEngine
from trainer.mesh import close_mesh
from trainer.model.partition import stage_parameters

PASSES = 2
"""The first replaces what the buffer holds, the second adds to it: two programs for a compiler."""


def write_flat_gradients(attempt: str, out: str, compiled: bool) -> None:
    """Write {parameter name: gradient} of two micro-batches, by tensor-parallel rank, and the losses as `losses`."""
    job, mesh, stages = open_job(attempt)
    model, size = job.plan.model, mesh.sizes.tensor_parallel_size
    infos = list(stage_parameters(stages, model, mesh.where.tp_rank, size))
    engine = FlatEngine(job, mesh, stages, infos, Acceleration(fused=True, compiled=compiled, graphed=False))
    draw = torch.Generator().manual_seed(5)
    losses = []
    for _ in range(PASSES):
        tokens, labels = torch.randint(0, 257, (2, 2, model.sequence_length), generator=draw)
        loss = engine.forward(0, tokens, labels)
        engine.backward(loss)
        losses.append(loss.detach())
    found = {info.name: engine.optimizer.main_grads[info.parameter].clone() for info in infos}
    torch.save({**found, "losses": torch.stack(losses)}, Path(out) / f"{mesh.where.tp_rank}.pt")
    close_mesh()
