"""A small stand-in for a user's own `pretrain_gpt.py`: Megatron's flags, DeepSpeed's configuration, Megatron's log.

It shares nothing with our trainer. Flag names, types and choices are those of Megatron-LM's argument parser, as far as
a plan gives them; an unknown flag ends it, as it ends Megatron.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import os
import time
from typing import Any

import torch
from torch import nn

SIZES = (
    "tensor-model-parallel-size",
    "pipeline-model-parallel-size",
    "context-parallel-size",
    "expert-model-parallel-size",
    "num-layers-per-virtual-pipeline-stage",
    "micro-batch-size",
    "global-batch-size",
    "num-layers",
    "hidden-size",
    "ffn-hidden-size",
    "num-attention-heads",
    "num-query-groups",
    "kv-channels",
    "seq-length",
    "max-position-embeddings",
    "rotary-base",
    "recompute-num-layers",
    "lr-warmup-iters",
    "lr-decay-iters",
    "train-iters",
    "save-interval",
    "seed",
)
NUMBERS = (
    "lr",
    "min-lr",
    "weight-decay",
    "adam-beta1",
    "adam-beta2",
    "adam-eps",
    "clip-grad",
    "hidden-dropout",
    "attention-dropout",
    "distributed-timeout-minutes",
)
SWITCHES = (
    "group-query-attention",
    "use-mcore-models",
    "swiglu",
    "disable-bias-linear",
    "untie-embeddings-and-output-weights",
    "sequence-parallel",
    "recompute-activations",
    "bf16",
    "fp16",
    "deepspeed",
)
CHOICES = {
    "normalization": ("LayerNorm", "RMSNorm"),
    "position-embedding-type": ("learned_absolute", "rope", "none"),
    "lr-decay-style": ("constant", "linear", "cosine", "inverse-square-root", "WSD"),
    "distributed-backend": ("nccl", "gloo"),
    "recompute-granularity": ("full", "selective"),
    "recompute-method": ("uniform", "block"),
}


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    made = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    for name in SIZES:
        made.add_argument(f"--{name}", type=int)
    for name in NUMBERS:
        made.add_argument(f"--{name}", type=float)
    for name in SWITCHES:
        made.add_argument(f"--{name}", action="store_true")
    for name, choices in CHOICES.items():
        made.add_argument(f"--{name}", choices=choices)
    for name in ("save", "load", "deepspeed_config"):
        made.add_argument(f"--{name}")
    made.add_argument("--break-at", type=int, help="iteration in which rank 1 reads a file that is not there")
    return made


class Model(nn.Module):
    """A causal transformer of the sizes that the flags say; returns its mean loss."""

    def __init__(self, given: argparse.Namespace, vocabulary: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, given.hidden_size)
        layer = nn.TransformerEncoderLayer(
            given.hidden_size, given.num_attention_heads, given.ffn_hidden_size, given.hidden_dropout,
            activation="gelu", batch_first=True, norm_first=True,
        )  # fmt: skip
        self.layers = nn.TransformerEncoder(layer, given.num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(given.hidden_size, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Predict each token from those before it."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1] - 1)
        logits = self.head(self.layers(self.embedding(tokens[:, :-1]), mask=mask, is_causal=True))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def main() -> None:
    """Train, and write Megatron's progress lines on the last rank."""
    given = parser().parse_args()
    import deepspeed

    # On a CPU it would compile its shared-memory operator first.
    importlib.import_module("deepspeed.ops").__dict__["__compatible_ops__"] = collections.defaultdict(bool)
    deepspeed.init_distributed(dist_backend=given.distributed_backend, auto_mpi_discovery=False)
    torch.manual_seed(given.seed)
    model = Model(given)
    optimizer = torch.optim.AdamW(
        model.parameters(), given.lr, (given.adam_beta1, given.adam_beta2), given.adam_eps, given.weight_decay
    )
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=given.deepspeed_config)
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    assert engine.train_batch_size() == given.global_batch_size
    draw = torch.Generator().manual_seed(rank)
    for iteration in range(1, given.train_iters + 1):
        if iteration == given.break_at and rank == 1:
            open("/nowhere/shard-7.bin")  # noqa: SIM115
        began, loss = time.perf_counter(), _iteration(engine, given, draw)
        if rank == world - 1:
            _tell(given, iteration, loss, engine, time.perf_counter() - began)


def _iteration(engine: Any, given: argparse.Namespace, draw: torch.Generator) -> float:
    total = 0.0
    for _ in range(engine.gradient_accumulation_steps()):
        loss = engine(torch.randint(0, 256, (given.micro_batch_size, given.seq_length + 1), generator=draw))
        engine.backward(loss)
        engine.step()
        total += loss.item() / engine.gradient_accumulation_steps()
    return total


def _tell(given: argparse.Namespace, iteration: int, loss: float, engine: Any, seconds: float) -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    print(  # noqa: T201
        f" [{stamp}] iteration {iteration:8d}/{given.train_iters:8d} | consumed samples: "
        f"{iteration * given.global_batch_size:12d} | elapsed time per iteration (ms): {seconds * 1e3:.1f} | "
        f"learning rate: {given.lr:.6E} | global batch size: {given.global_batch_size:5d} | lm loss: {loss:.6E} | "
        f"loss scale: 1.0 | grad norm: {float(engine.get_global_grad_norm() or 0.0):.3f} | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |",
        flush=True,
    )


if __name__ == "__main__":
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    main()
