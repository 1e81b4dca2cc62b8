"""``train.json``: what the trainer needs beside the plan. Checked when it is written and when it is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import DocumentError
from .schema import Flag, ListOf, Nullable, Number, Record, Text, Whole, read_document, write_json

SCHEMA = "rackweave.train/1"

_BLEND = ListOf(Record({"prefix": Text(), "weight": Number(0.0)}))

TRAIN = Record(
    {
        "schema": Text((SCHEMA,)),
        "run": Text(),
        "seed": Whole(),
        "dtype": Text(("float32", "bfloat16", "float16")),
        "backend": Text(("gloo", "nccl")),
        "steps": Whole(1),
        "data": Record(
            {
                "train": _BLEND,
                "validation": _BLEND,
                "cache": Nullable(Text()),
                "tokenizer": Record({"kind": Text(), "file": Nullable(Text())}),
            }
        ),
        "optimizer": Record(
            {
                "learning_rate": Number(0.0),
                "minimum_learning_rate": Number(0.0),
                "warmup_steps": Whole(),
                "decay_steps": Whole(1),
                "schedule": Text(("cosine", "linear", "constant")),
                "weight_decay": Number(0.0),
                "beta1": Number(0.0, 1.0),
                "beta2": Number(0.0, 1.0),
                "epsilon": Number(0.0),
                "clip_grad": Number(0.0),
            }
        ),
        "evaluation": Record({"interval": Whole(), "batches": Whole(1)}),
        "checkpoint": Record(
            {
                "directory": Text(),
                "interval": Whole(),
                "keep": Whole(2),
                "mode": Text(("sync", "async_thread", "async_process")),
            }
        ),
        "timeouts": Record({"collective_s": Number(1.0)}),
        "dropout": Record({"hidden": Number(0.0, 1.0), "attention": Number(0.0, 1.0)}),
        "telemetry": Record(
            {
                "tensorboard": Flag(),
                "prometheus_port": Nullable(Whole(1)),
                "prometheus_address": Text(),
                "profile_steps": ListOf(Whole(1)),
                "peak_flops_per_second": Nullable(Number(0.0)),
            },
            optional=("peak_flops_per_second", "prometheus_address"),
        ),
        "engine": Text(("deepspeed", "flat")),
        "offload_directory": Text(),
        "guard": Record(
            {
                "policy": Text(("stop", "skip", "rollback")),
                "spike_factor": Nullable(Number(1.0)),
                "window": Whole(8),
                "limit": Whole(1),
            },
            optional=("policy", "spike_factor", "window", "limit"),
        ),
        "weights": Nullable(Record({"format": Text(("huggingface",)), "path": Text()})),
        "lora": Nullable(Record({"rank": Whole(1), "alpha": Number(0.0), "targets": ListOf(Text())})),
        "memory_limit_gib": Nullable(Number(0.0)),
    },
    optional=("engine", "offload_directory", "guard", "weights", "lora", "memory_limit_gib"),
)


def parse_train(text: str, where: str = "train.json") -> dict[str, Any]:
    """Read and check a ``train.json``.

    Raises:
        DocumentError: if it does not follow the schema or contradicts itself.
    """
    document = read_document(text, SCHEMA, TRAIN, where)
    _check_meaning(document, where)
    return document


def serialise_train(document: Mapping[str, Any]) -> str:
    """Return the text of ``train.json`` after checking it as the reader would.

    Raises:
        DocumentError: for a document that the reader refuses.
    """
    text = write_json(document)
    parse_train(text)
    return text


def _check_meaning(document: Mapping[str, Any], where: str) -> None:
    optimizer = document["optimizer"]
    if optimizer["minimum_learning_rate"] > optimizer["learning_rate"]:
        raise DocumentError(
            f"{where}: minimum_learning_rate={optimizer['minimum_learning_rate']:g} is above "
            f"learning_rate={optimizer['learning_rate']:g}"
        )
    if optimizer["schedule"] != "constant" and optimizer["decay_steps"] <= optimizer["warmup_steps"]:
        raise DocumentError(
            f"{where}: decay_steps={optimizer['decay_steps']} must be above warmup_steps={optimizer['warmup_steps']}"
        )
    if document.get("memory_limit_gib") == 0:
        raise DocumentError(f"{where}: memory_limit_gib=0 leaves a rank no memory; leave it out for no limit")
    if document["evaluation"]["interval"] and not document["data"]["validation"]:
        raise DocumentError(
            f"{where}: evaluation.interval={document['evaluation']['interval']}, but data.validation is empty; "
            "name a validation set, or set the interval to 0"
        )
