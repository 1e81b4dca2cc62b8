"""One thing to measure: a model, a batch and sizes, as the trainer's own job configuration without files."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rackweave.plan.layout import ParallelSizes

from ..config import PLAN_SCHEMA, TRAIN_SCHEMA, JobConfig, ModelConfig, PlanConfig, TrainConfig
from ..schema import parse

LEARNING_RATE = 3e-4
WARMUP_STEPS = 40
CLIP_GRAD = 1.0
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class BenchCase:
    """`layout` sizes default to one rank; `global_batch_size` counts samples of all data-parallel ranks."""

    name: str
    model: ModelConfig
    micro_batch_size: int
    num_microbatches: int
    zero_stage: int = 1
    recompute: str = "none"
    dtype: str = "bfloat16"
    engine: str = "flat"
    seed: int = 1234
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    virtual_pipeline_size: int = 1
    sequence_parallel: bool = False
    offload: str = "none"
    offload_directory: str | None = None
    learning_rate: float = LEARNING_RATE

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, the same for all programs: a linear warm-up keeps losses comparable."""
        return self.learning_rate * min(1.0, (step + 1) / WARMUP_STEPS)

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step over all ranks."""
        return self.micro_batch_size * self.num_microbatches * self.data_parallel_size

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step over all ranks."""
        return self.global_batch_size * self.model.sequence_length

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size


def gpt_like(name: str, layers: int, hidden: int, sequence: int, vocab: int = 50304, heads: int = 0) -> ModelConfig:
    """Return a GPT: rotary positions, GELU, LayerNorm, biases, tied embeddings, 4 x hidden feed-forward.

    `heads` 0 gives heads of 128 elements.
    """
    heads = heads or hidden // 128
    return ModelConfig(
        name=name,
        family="gpt",
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=4 * hidden,
        num_attention_heads=heads,
        num_query_groups=heads,
        head_dim=hidden // heads,
        vocab_size=vocab,
        sequence_length=sequence,
        normalization="layernorm",
        activation="gelu",
        position_embedding="rotary",
        rotary_base=10000.0,
        tied_embeddings=True,
        linear_bias=True,
    )


def llama_like(
    name: str, layers: int, hidden: int, ffn: int, heads: int, groups: int, sequence: int, vocab: int
) -> ModelConfig:
    """Return a Llama-like model: rotary positions, SwiGLU, RMSNorm, grouped queries, no biases, untied."""
    return ModelConfig(
        name=name,
        family="llama",
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_attention_heads=heads,
        num_query_groups=groups,
        head_dim=hidden // heads,
        vocab_size=vocab,
        sequence_length=sequence,
        normalization="rmsnorm",
        activation="swiglu",
        position_embedding="rotary",
        rotary_base=500000.0,
        tied_embeddings=False,
        linear_bias=False,
    )


def job_of(case: BenchCase, backend: str) -> JobConfig:
    """Return the trainer's configuration of a case; it names no data, since a bench makes its own."""
    return JobConfig(Path(), _plan(case), _train(case, backend))


def _plan(case: BenchCase) -> PlanConfig:
    sizes = ParallelSizes(
        case.tensor_parallel_size, case.pipeline_parallel_size, case.data_parallel_size, case.virtual_pipeline_size
    )
    return parse(
        PlanConfig,
        {
            "schema": PLAN_SCHEMA,
            "run": case.name,
            "origin": "measured",
            "model": asdict(case.model),
            "cluster": None,
            "sizes": _sizes(case),
            "ranks": [_rank(rank, sizes) for rank in range(case.world_size)],
        },
        "bench plan",
    )


def _sizes(case: BenchCase) -> dict[str, Any]:
    return {
        "tensor_parallel_size": case.tensor_parallel_size,
        "pipeline_parallel_size": case.pipeline_parallel_size,
        "virtual_pipeline_size": case.virtual_pipeline_size,
        "data_parallel_size": case.data_parallel_size,
        "context_parallel_size": 1,
        "expert_parallel_size": 1,
        "micro_batch_size": case.micro_batch_size,
        "global_batch_size": case.global_batch_size,
        "num_microbatches": case.num_microbatches,
        "zero_stage": case.zero_stage,
        "sequence_parallel": case.sequence_parallel,
        "recompute": case.recompute,
        "offload": case.offload,
        "world_size": case.world_size,
    }


def _rank(rank: int, sizes: ParallelSizes) -> dict[str, Any]:
    tp_rank, cp_rank, dp_rank, pp_rank = sizes.coordinates(rank)
    where = {"tp_rank": tp_rank, "cp_rank": cp_rank, "dp_rank": dp_rank, "pp_rank": pp_rank}
    place = {"host": "localhost", "local_rank": rank, "gpu_index": rank, "gpu_bdf": None, "hca": None}
    return {"rank": rank, **place, **where}


def _train(case: BenchCase, backend: str) -> TrainConfig:
    return parse(
        TrainConfig,
        {
            "schema": TRAIN_SCHEMA,
            "run": case.name,
            "seed": case.seed,
            "dtype": case.dtype,
            "engine": case.engine,
            "offload_directory": case.offload_directory,
            "backend": backend,
            "steps": 1,
            "data": {
                "train": [{"prefix": "synthetic", "weight": 1.0}],
                "validation": [],
                "cache": None,
                "tokenizer": {"kind": "byte", "file": None},
            },
            "optimizer": {
                "learning_rate": LEARNING_RATE,
                "minimum_learning_rate": LEARNING_RATE,
                "warmup_steps": 0,
                "decay_steps": 1,
                "schedule": "constant",
                "weight_decay": 0.1,
                "beta1": 0.9,
                "beta2": 0.95,
                "epsilon": 1e-8,
                "clip_grad": CLIP_GRAD,
            },
            "evaluation": {"interval": 0, "batches": 1},
            "checkpoint": {"directory": "unused", "interval": 0, "keep": 2, "mode": "sync"},
            "timeouts": {"collective_s": TIMEOUT_S},
            "dropout": {"hidden": 0.0, "attention": 0.0},
            "telemetry": {"tensorboard": False, "prometheus_port": None, "profile_steps": []},
        },
        "bench settings",
    )
