"""Work that tests run inside forked ranks; see tests.support.launch."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainer.config import JobConfig, read_job
from trainer.mesh import Mesh, build_mesh, close_mesh, seed_mesh
from trainer.model.build import build_stages, transformer_config
from trainer.model.stage import Stage


def open_job(attempt: str) -> tuple[JobConfig, Mesh, list[Stage]]:
    """Build mesh and model of an attempt."""
    job = read_job(Path(attempt))
    mesh = build_mesh(job.plan.sizes, int(os.environ["RANK"]), torch.device("cpu"), "gloo", 60.0)
    seed_mesh(mesh, job.train.seed)
    return job, mesh, build_stages(job, mesh)


def write_groups(attempt: str, out: str) -> None:
    """Write the groups that Megatron gave this rank."""
    _, mesh, _ = open_job(attempt)
    groups = {
        name: dist.get_process_group_ranks(getattr(mesh, name)) for name in ("tensor", "data", "pipeline", "model")
    }
    (Path(out) / f"groups-{mesh.rank}.json").write_text(json.dumps(groups))
    close_mesh()


def compare_with_megatron(attempt: str, out: str) -> None:
    """Write how far our logits and gradients are from those of Megatron core's own GPTModel with the same weights."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    job, mesh, stages = open_job(attempt)
    model = job.plan.model
    theirs = GPTModel(
        config=transformer_config(job, mesh.device),
        transformer_layer_spec=get_gpt_layer_local_spec(
            normalization="RMSNorm" if model.normalization == "rmsnorm" else None
        ),
        vocab_size=model.vocab_size,
        max_sequence_length=model.sequence_length,
        position_embedding_type="rope" if model.position_embedding == "rotary" else "learned_absolute",
        rotary_base=int(model.rotary_base or 10000),
        share_embeddings_and_output_weights=model.tied_embeddings,
    )
    ours = stages[0]
    missing, unexpected = theirs.load_state_dict(ours.state_dict(), strict=False)
    tokens = torch.randint(0, 257, (2, model.sequence_length), generator=torch.Generator().manual_seed(5))
    positions = torch.arange(model.sequence_length)[None].expand(2, -1)
    mask = torch.ones(1, 1, model.sequence_length, model.sequence_length).tril() < 0.5
    expected = theirs(tokens, positions, mask).transpose(0, 1)
    found = ours(tokens, None)
    expected.square().mean().backward()
    found.square().mean().backward()
    gradients = dict(theirs.named_parameters())
    facts: dict[str, Any] = {
        "missing": [name for name in missing if "_extra_state" not in name],
        "unexpected": [name for name in unexpected if "_extra_state" not in name],
        "logits": (expected - found).abs().max().item(),
        "gradients": max(
            (gradients[name].grad - parameter.grad).abs().max().item()
            for name, parameter in ours.named_parameters()
            if parameter.grad is not None
        ),
    }
    (Path(out) / "facts.json").write_text(json.dumps(facts))
    close_mesh()
