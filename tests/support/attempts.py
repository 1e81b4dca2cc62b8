"""Makes attempt directories for the trainer: a plan, train.json and a small corpus, for any layout."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

from rackweave.plan.layout import ParallelSizes

MODEL: dict[str, Any] = {
    "name": "tiny",
    "family": "gpt",
    "num_layers": 4,
    "hidden_size": 64,
    "ffn_hidden_size": 256,
    "num_attention_heads": 4,
    "num_query_groups": 4,
    "head_dim": 16,
    "vocab_size": 264,
    "sequence_length": 64,
    "normalization": "layernorm",
    "activation": "gelu",
    "position_embedding": "learned",
    "rotary_base": None,
    "tied_embeddings": False,
    "linear_bias": True,
    "parameters": None,
}
LLAMA: dict[str, Any] = {
    **MODEL,
    "name": "tiny-llama",
    "family": "llama",
    "ffn_hidden_size": 176,
    "num_query_groups": 2,
    "normalization": "rmsnorm",
    "activation": "swiglu",
    "position_embedding": "rotary",
    "rotary_base": 10000.0,
    "linear_bias": False,
}
TRAIN: dict[str, Any] = {
    "schema": "rackweave.train/1",
    "run": "test",
    "seed": 1234,
    "dtype": "float32",
    "backend": "gloo",
    "steps": 10,
    "optimizer": {
        "learning_rate": 0.003,
        "minimum_learning_rate": 0.0003,
        "warmup_steps": 2,
        "decay_steps": 40,
        "schedule": "cosine",
        "weight_decay": 0.1,
        "beta1": 0.9,
        "beta2": 0.95,
        "epsilon": 1e-8,
        "clip_grad": 1.0,
    },
    "evaluation": {"interval": 0, "batches": 2},
    "checkpoint": {"directory": "", "interval": 0, "keep": 2, "mode": "sync"},
    "timeouts": {"collective_s": 90},
    "dropout": {"hidden": 0.0, "attention": 0.0},
    "telemetry": {"tensorboard": False, "prometheus_port": None, "profile_steps": []},
}


def sizes(tp: int = 1, pp: int = 1, dp: int = 1, **changes: Any) -> dict[str, Any]:
    """Return the `sizes` of a plan; changes override fields, and the derived ones follow."""
    values: dict[str, Any] = {
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": pp,
        "virtual_pipeline_size": 1,
        "data_parallel_size": dp,
        "context_parallel_size": 1,
        "expert_parallel_size": 1,
        "micro_batch_size": 2,
        "global_batch_size": 8,
        "zero_stage": 1 if dp > 1 or pp > 1 else 0,
        "sequence_parallel": tp > 1,
        "recompute": "none",
        "offload": "none",
        "world_size": tp * pp * dp,
        **changes,
    }
    values.setdefault(
        "num_microbatches", values["global_batch_size"] // (values["micro_batch_size"] * values["data_parallel_size"])
    )
    return values


def plan(model: dict[str, Any], chosen: dict[str, Any], run: str, hosts: list[str], per_host: int) -> dict[str, Any]:
    """Return plan.json for a model and sizes."""
    parallel = ParallelSizes(
        chosen["tensor_parallel_size"], chosen["pipeline_parallel_size"], chosen["data_parallel_size"]
    )
    rows = []
    for rank in range(chosen["world_size"]):
        where = parallel.coordinates(rank)
        rows.append(
            {
                "rank": rank,
                "host": hosts[rank // per_host],
                "local_rank": rank % per_host,
                "gpu_index": rank % per_host,
                "gpu_bdf": None,
                "hca": None,
                **where._asdict(),
            }
        )
    return {
        "schema": "rackweave.plan/1",
        "run": run,
        "origin": "simulated",
        "model": model,
        "cluster": {"hosts": [{"host": host, "gpus": per_host, "gpu": "simulated"} for host in hosts]},
        "sizes": chosen,
        "ranks": rows,
        "memory": None,
        "prediction": None,
        "reliability": None,
        "rejected": [],
        "fits": True,
        "reason": None,
    }


def make_attempt(
    where: Path,
    corpus: Path,
    model: dict[str, Any] | None = None,
    chosen: dict[str, Any] | None = None,
    host: str = "node-a",
    **changes: Any,
) -> Path:
    """Write an attempt directory; `changes` are merged into train.json, section by section."""
    model = dict(model or MODEL)
    chosen = chosen or sizes()
    train = copy.deepcopy(TRAIN)
    train["data"] = {
        "train": [{"prefix": str(corpus / "train"), "weight": 1.0}],
        "validation": [{"prefix": str(corpus / "validation"), "weight": 1.0}],
        "cache": None,
        "tokenizer": {"kind": "byte", "file": None},
    }
    train["checkpoint"]["directory"] = str(where.parent / "checkpoints")
    for name, value in changes.items():
        train[name] = {**train.get(name, {}), **value} if isinstance(value, dict) else value
    where.mkdir(parents=True)
    (where / "plan.json").write_text(json.dumps(plan(model, chosen, train["run"], [host], chosen["world_size"])))
    (where / "train.json").write_text(json.dumps(train))
    return where


def write_text(path: Path, words: int = 60_000, seed: int = 7) -> Path:
    """Write a text that has something to learn: words of a small made-up vocabulary, in sentences and paragraphs."""
    chance = random.Random(seed)
    vocabulary = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 8))) for _ in range(300)]
    lines = []
    while words > 0:
        count = chance.randint(5, 15)
        words -= count
        lines.append(" ".join(chance.choices(vocabulary, k=count)).capitalize() + ".")
        if chance.random() < 0.1:
            lines.append("")
    path.write_text("\n".join(lines) + "\n")
    return path


def events(attempt: Path, kind: str) -> list[dict[str, Any]]:
    """Return the events of one kind; a line that is being written does not count yet."""
    whole, _, _ = (attempt / "events.jsonl").read_text().rpartition("\n")
    return [event for event in map(json.loads, whole.splitlines()) if event["kind"] == kind]


def losses(attempt: Path) -> list[float]:
    """Return the training losses, step by step."""
    return [event["loss"] for event in events(attempt, "step")]
