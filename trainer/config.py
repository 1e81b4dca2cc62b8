"""The job as typed, validated data: plan.json (what the planner decided) and train.json (how to train).

Nothing here decides a layout; values are taken as planned and refused where they cannot work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rackweave.errors import RackweaveError
from rackweave.plan.layout import ParallelSizes

from .errors import StopError
from .schema import parse, read_json
from .settings import (
    CheckpointConfig,
    CorpusConfig,
    DataConfig,
    DropoutConfig,
    EvaluationConfig,
    GuardConfig,
    LoraConfig,
    OptimizerConfig,
    TelemetryConfig,
    TimeoutsConfig,
    TokenizerConfig,
    WeightsConfig,
    require_at_least,
    require_choice,
)

__all__ = [
    "PLAN_SCHEMA",
    "TRAIN_SCHEMA",
    "CheckpointConfig",
    "CorpusConfig",
    "DataConfig",
    "DropoutConfig",
    "EvaluationConfig",
    "GuardConfig",
    "JobConfig",
    "LoraConfig",
    "ModelConfig",
    "OptimizerConfig",
    "PlanConfig",
    "RankConfig",
    "SizesConfig",
    "TelemetryConfig",
    "TimeoutsConfig",
    "TokenizerConfig",
    "TrainConfig",
    "WeightsConfig",
    "check_engine",
    "check_model_sizes",
    "read_job",
    "runs_flat",
]

PLAN_SCHEMA = "rackweave.plan/1"
TRAIN_SCHEMA = "rackweave.train/1"


@dataclass(frozen=True)
class ModelConfig:
    """Architecture, exactly the `model` object of plan.json; sizes count elements, `sequence_length` tokens."""

    name: str
    family: str
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    head_dim: int
    vocab_size: int
    sequence_length: int
    normalization: str
    activation: str
    position_embedding: str
    rotary_base: float | None
    tied_embeddings: bool
    linear_bias: bool
    parameters: int | None = None
    max_position_embeddings: int = 0
    """Rows of the table of learned positions, where it is longer than `sequence_length`."""

    def __post_init__(self) -> None:
        require_choice("model.family", self.family, ("gpt", "llama"))
        require_choice("model.normalization", self.normalization, ("layernorm", "rmsnorm"))
        require_choice("model.activation", self.activation, ("gelu", "swiglu"))
        require_choice("model.position_embedding", self.position_embedding, ("learned", "rotary"))
        require_at_least(self, 1, "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads")
        require_at_least(self, 1, "num_query_groups", "head_dim", "vocab_size", "sequence_length")
        if self.num_attention_heads % self.num_query_groups:
            raise StopError(
                f"num_attention_heads={self.num_attention_heads} is not a multiple of "
                f"num_query_groups={self.num_query_groups}"
            )
        require_at_least(self, 0, "max_position_embeddings")
        if self.position_embedding == "rotary" and (self.rotary_base is None or self.head_dim % 2):
            raise StopError(
                f"rotary positions need a rotary_base and an even head_dim, not "
                f"rotary_base={self.rotary_base} and head_dim={self.head_dim}"
            )

    @property
    def position_rows(self) -> int:
        """Rows of the table of learned positions."""
        return max(self.sequence_length, self.max_position_embeddings)


@dataclass(frozen=True)
class SizesConfig:
    """Parallel and batch sizes, exactly the `sizes` object of plan.json."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    virtual_pipeline_size: int
    data_parallel_size: int
    context_parallel_size: int
    expert_parallel_size: int
    micro_batch_size: int
    global_batch_size: int
    num_microbatches: int
    zero_stage: int
    sequence_parallel: bool
    recompute: str
    offload: str
    world_size: int

    def __post_init__(self) -> None:
        require_at_least(self, 1, "micro_batch_size", "global_batch_size", "num_microbatches", "virtual_pipeline_size")
        require_choice("sizes.recompute", self.recompute, ("none", "selective", "full"))
        require_choice("sizes.offload", self.offload, ("none", "cpu", "nvme"))
        if self.zero_stage not in (0, 1, 2, 3):
            raise StopError(f"sizes.zero_stage={self.zero_stage} is none of 0, 1, 2, 3")
        if self.context_parallel_size != 1 or self.expert_parallel_size != 1:
            raise StopError(
                f"this trainer runs neither context nor expert parallelism: context_parallel_size="
                f"{self.context_parallel_size} and expert_parallel_size={self.expert_parallel_size} must be 1"
            )
        self._check_batch()
        self._check_zero()

    def _check_batch(self) -> None:
        samples = self.micro_batch_size * self.data_parallel_size * self.num_microbatches
        if samples != self.global_batch_size:
            raise StopError(
                f"micro_batch_size={self.micro_batch_size} x data_parallel_size={self.data_parallel_size} x "
                f"num_microbatches={self.num_microbatches} is {samples}, not global_batch_size={self.global_batch_size}"
            )
        if self.virtual_pipeline_size > 1 and self.num_microbatches % self.pipeline_parallel_size:
            raise StopError(
                f"the interleaved schedule (virtual_pipeline_size={self.virtual_pipeline_size}) needs "
                f"num_microbatches={self.num_microbatches} to be a multiple of "
                f"pipeline_parallel_size={self.pipeline_parallel_size}"
            )

    def _check_zero(self) -> None:
        if self.zero_stage == 3 and self.pipeline_parallel_size > 1:
            raise StopError(
                f"zero_stage=3 needs pipeline_parallel_size=1, not {self.pipeline_parallel_size}: DeepSpeed compares "
                "the module order of all ranks, and stages differ"
            )
        if self.virtual_pipeline_size > 1 and self.pipeline_parallel_size == 1:
            raise StopError(f"virtual_pipeline_size={self.virtual_pipeline_size} needs pipeline_parallel_size > 1")
        if self.sequence_parallel and self.tensor_parallel_size == 1:
            raise StopError("sequence_parallel is on, but tensor_parallel_size=1 leaves nothing to split")
        if self.zero_stage == 3 and self.recompute == "selective":
            raise StopError(
                "recompute=selective cuts inside a layer, while zero_stage=3 gathers whole layers, so each would be "
                "gathered again in the middle: take recompute=full or none"
            )
        if self.offload != "none" and self.zero_stage == 0:
            raise StopError(f"offload={self.offload} moves ZeRO's optimizer states, so it needs zero_stage >= 1")

    @property
    def parallel(self) -> ParallelSizes:
        """The sizes as the planner's own class, which knows the rank order."""
        return ParallelSizes(
            self.tensor_parallel_size,
            self.pipeline_parallel_size,
            self.data_parallel_size,
            self.virtual_pipeline_size,
        )


def check_model_sizes(model: ModelConfig, sizes: SizesConfig) -> None:
    """Raise StopError if a model cannot be cut as the sizes say."""
    tp = sizes.tensor_parallel_size
    for name in ("num_attention_heads", "num_query_groups", "ffn_hidden_size", "vocab_size"):
        if getattr(model, name) % tp:
            raise StopError(f"{name}={getattr(model, name)} is not a multiple of tensor_parallel_size={tp}")
    if sizes.sequence_parallel and model.sequence_length % tp:
        raise StopError(f"sequence_length={model.sequence_length} is not a multiple of tensor_parallel_size={tp}")
    stages = sizes.pipeline_parallel_size * sizes.virtual_pipeline_size
    if model.num_layers % stages:
        raise StopError(
            f"num_layers={model.num_layers} is not a multiple of pipeline_parallel_size="
            f"{sizes.pipeline_parallel_size} x virtual_pipeline_size={sizes.virtual_pipeline_size}"
        )
    if model.tied_embeddings and sizes.pipeline_parallel_size > 1 and sizes.zero_stage > 1:
        raise StopError(
            f"tied embeddings over pipeline_parallel_size={sizes.pipeline_parallel_size} need zero_stage <= 1, "
            f"not {sizes.zero_stage}: ZeRO-{sizes.zero_stage} reduces gradients before the two copies are summed"
        )
    if model.tied_embeddings and sizes.zero_stage == 3:
        raise StopError("tied embeddings need zero_stage <= 2: ZeRO-3 gathers each parameter for one module")


@dataclass(frozen=True)
class RankConfig:
    """One row of the plan's rank table."""

    rank: int
    host: str
    local_rank: int
    gpu_index: int | None
    gpu_bdf: str | None
    hca: str | None
    tp_rank: int
    dp_rank: int
    pp_rank: int
    cp_rank: int


@dataclass(frozen=True)
class PlanConfig:
    """plan.json; the planner's own findings (memory, prediction, ...) are kept as they are."""

    schema: str
    run: str
    origin: str
    model: ModelConfig
    cluster: Any
    sizes: SizesConfig
    ranks: tuple[RankConfig, ...]
    memory: Any = None
    prediction: Any = None
    reliability: Any = None
    rejected: Any = None
    fits: bool | None = None
    reason: str | None = None

    def __post_init__(self) -> None:
        if self.schema != PLAN_SCHEMA:
            raise StopError(f"plan.json has schema {self.schema!r}; this trainer reads {PLAN_SCHEMA}")
        self._check_ranks()
        check_model_sizes(self.model, self.sizes)

    def _check_ranks(self) -> None:
        try:
            parallel = self.sizes.parallel
            if parallel.world_size != self.sizes.world_size or len(self.ranks) != self.sizes.world_size:
                raise StopError(
                    f"plan.json: the sizes make {parallel.world_size} ranks, but world_size={self.sizes.world_size} "
                    f"and the rank table has {len(self.ranks)} rows"
                )
            for index, row in enumerate(self.ranks):
                expected = parallel.coordinates(index)
                found = (row.tp_rank, row.cp_rank, row.dp_rank, row.pp_rank)
                if row.rank != index or found != tuple(expected):
                    raise StopError(
                        f"plan.json: row {index} of the rank table is rank {row.rank} at (tp, cp, dp, pp)={found}, "
                        f"but the sizes put rank {index} at {tuple(expected)}"
                    )
        except StopError:
            raise
        except RackweaveError as error:
            raise StopError(f"plan.json: {error}") from error


@dataclass(frozen=True)
class TrainConfig:
    """train.json."""

    schema: str
    run: str
    seed: int
    dtype: str
    backend: str
    steps: int
    data: DataConfig
    optimizer: OptimizerConfig
    evaluation: EvaluationConfig
    checkpoint: CheckpointConfig
    timeouts: TimeoutsConfig
    dropout: DropoutConfig
    telemetry: TelemetryConfig
    engine: str = "deepspeed"
    guard: GuardConfig = field(default_factory=GuardConfig)
    weights: WeightsConfig | None = None
    lora: LoraConfig | None = None
    offload_directory: str | None = None
    """Directory on a local disk of each host, for optimizer states that the plan offloads to nvme."""
    memory_limit_gib: float | None = None
    """Cap on the memory of one rank: of its GPU, or on CPU of its writable private memory."""

    def __post_init__(self) -> None:
        if self.schema != TRAIN_SCHEMA:
            raise StopError(f"train.json has schema {self.schema!r}; this trainer reads {TRAIN_SCHEMA}")
        require_choice("dtype", self.dtype, ("float32", "bfloat16", "float16"))
        require_choice("backend", self.backend, ("gloo", "nccl"))
        require_choice("engine", self.engine, ("deepspeed", "flat"))
        require_at_least(self, 1, "steps")
        require_at_least(self, 0, "seed")
        if self.memory_limit_gib is not None and self.memory_limit_gib <= 0:
            raise StopError(f"memory_limit_gib={self.memory_limit_gib} must be above 0")


@dataclass(frozen=True)
class JobConfig:
    """Everything that an attempt directory says."""

    attempt: Path
    plan: PlanConfig
    train: TrainConfig
    deepspeed: dict[str, Any] = field(default_factory=dict)
    """The attempt's ds_config.json; empty where the directory has none."""


def read_job(attempt: Path) -> JobConfig:
    """Read and check an attempt directory.

    Raises:
        StopError: with one sentence, if any file is absent, malformed or contradicts another.
    """
    if not attempt.is_dir():
        raise StopError(f"the attempt directory {attempt} does not exist")
    plan = parse(PlanConfig, read_json(attempt / "plan.json"), "plan.json")
    train = parse(TrainConfig, read_json(attempt / "train.json"), "train.json")
    check_engine(plan.sizes, train.engine, train.lora is not None, train.offload_directory)
    if plan.run != train.run:
        raise StopError(f"plan.json is for the run {plan.run!r}, train.json for {train.run!r}")
    ds_file = attempt / "ds_config.json"
    deepspeed = read_json(ds_file) if ds_file.exists() else {}
    return JobConfig(attempt, plan, train, deepspeed)


def runs_flat(zero_stage: int, engine: str) -> bool:
    """Tell whether a job runs on the flat buffer: where it is asked for, and without ZeRO.

    DeepSpeed's own stage 0 clips wrongly under tensor and pipeline parallelism (it counts replicated parameters on
    model-parallel rank 0 only), so ZeRO 0 never goes there.
    """
    return zero_stage == 0 or engine == "flat"


def check_engine(sizes: SizesConfig, engine: str, adapters: bool, offload_directory: str | None) -> None:
    """Raise StopError if the engine cannot do what the plan asks of it; `adapters`: only those are trained."""
    flat = runs_flat(sizes.zero_stage, engine)
    if adapters and flat and sizes.zero_stage == 3:
        raise StopError(
            "lora with engine=flat keeps the frozen weights whole on each rank, which zero_stage=3 is to avoid: "
            "take engine=deepspeed, or zero_stage <= 2"
        )
    if sizes.offload != "nvme":
        return
    if not flat:
        raise StopError(
            "offload=nvme needs engine=flat: DeepSpeed's needs ZeRO 3 and an operator that is compiled with libaio on "
            "every node"
        )
    if offload_directory is None:
        raise StopError("offload=nvme needs offload_directory in train.json: a directory on a local disk of each host")
