"""What the user asks for: sizes that are fixed, and settings; everything left out is chosen by the planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..errors import PlanError
from .architecture import MOST
from .trainer import TRAINER_ENGINES

TASKS = ("pretrain", "full-finetune", "lora", "qlora")
ENGINES = ("megatron", "flat", "deepspeed-pipeline", "fsdp", *TRAINER_ENGINES)
BACKENDS = ("nccl", "gloo")
RECOMPUTE = ("none", "selective", "full")
OFFLOAD = ("none", "cpu", "nvme")
PRECISIONS = ("bf16", "fp32", "fp16", "fp8", "mxfp8", "nvfp4")

_WHOLE = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "virtual_pipeline_size",
    "data_parallel_size",
    "context_parallel_size",
    "expert_parallel_size",
    "micro_batch_size",
    "global_batch_size",
    "sequence_length",
)
_CHOICES = {
    "task": TASKS,
    "engine": ENGINES,
    "recompute": RECOMPUTE,
    "offload": OFFLOAD,
    "precision": PRECISIONS,
    "backend": BACKENDS,
}


@dataclass(frozen=True)
class LayoutRequest:
    """Sizes and settings of a job; None means "choose".

    Attributes:
        engine: who runs pipeline and ZeRO: `megatron` (Megatron's schedule and one DeepSpeed engine), `flat` (the
            same schedule and the trainer's own flat buffers),
            `deepspeed-pipeline` (DeepSpeed's PipelineModule), `fsdp` (fully sharded data parallelism), or `trainer`:
            this project's trainer on the engine that it will choose for the layout (`trainer-flat` and
            `trainer-deepspeed`: on the named one), within what the trainer runs.
        backend: of the trainer's collectives; its choice of an engine depends on it.
        stage_layers: layers of each pipeline stage, where they are not equal.
        cross_domain_tensor_parallel: allow tensor groups that leave the NVLink domain.
    """

    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    virtual_pipeline_size: int | None = None
    data_parallel_size: int | None = None
    context_parallel_size: int | None = None
    expert_parallel_size: int | None = None
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    sequence_length: int | None = None
    zero_stage: int | None = None
    sequence_parallel: bool | None = None
    recompute: str | None = None
    offload: str | None = None
    engine: str = "megatron"
    task: str = "pretrain"
    precision: str = "bf16"
    backend: str = "nccl"
    stage_layers: tuple[int, ...] | None = None
    cross_domain_tensor_parallel: bool = False
    run: str = "run"

    def __post_init__(self) -> None:
        for name in _WHOLE:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise PlanError(f"{name}={value!r} must be a whole number of at least 1")
            if value is not None and value > MOST:
                raise PlanError(f"{name}={value} is more than {MOST}, which the frameworks can count")
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value is not None and value not in choices:
                raise PlanError(f"{name}={value!r} is not one of {', '.join(choices)}")
        stage = self.zero_stage
        if stage is not None and (isinstance(stage, bool) or stage not in (0, 1, 2, 3)):
            raise PlanError(f"zero_stage={stage!r} is not one of 0, 1, 2, 3")
        layers = self.stage_layers
        if layers is not None and not all(isinstance(count, int) and count >= 1 for count in layers):
            raise PlanError(f"stage_layers={list(layers)} must be whole numbers of at least 1")

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> LayoutRequest:
        """Build a request from plain values.

        Raises:
            PlanError: if a key is unknown or a value is not what it should be.
        """
        known = [field.name for field in fields(cls)]
        unknown = sorted(set(mapping) - set(known))
        if unknown:
            raise PlanError(f"unknown settings {', '.join(unknown)}; known are {', '.join(known)}")
        values = dict(mapping)
        if values.get("stage_layers") is not None:
            values["stage_layers"] = tuple(values["stage_layers"])
        return cls(**{key: value for key, value in values.items() if value is not None})
