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

PLAN_SCHEMA = "rackweave.plan/1"
TRAIN_SCHEMA = "rackweave.train/1"
LARGEST_PORT = 65535
LONGEST_TIMEOUT_S = 7 * 24 * 3600


def require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise StopError unless a value is one of the choices."""
    if value not in choices:
        raise StopError(f"{name}={value!r} is none of {', '.join(choices)}")


def require_at_least(owner: object, minimum: float, *names: str) -> None:
    """Raise StopError for the first named field that is below a minimum."""
    for name in names:
        value = getattr(owner, name)
        if value < minimum:
            raise StopError(f"{type(owner).__name__}: {name}={value} must be at least {minimum:g}")


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
class CorpusConfig:
    """One indexed corpus: `<prefix>.bin` and `<prefix>.idx`, drawn in proportion to its weight."""

    prefix: str
    weight: float

    def __post_init__(self) -> None:
        if not Path(self.prefix).name:
            raise StopError(f"data: the prefix {self.prefix!r} names no corpus")
        if not self.weight > 0:
            raise StopError(f"data: the weight of {self.prefix} is {self.weight}, it must be above 0")


@dataclass(frozen=True)
class TokenizerConfig:
    """`kind`: byte, huggingface (a tokenizer.json) or sentencepiece (a model file)."""

    kind: str
    file: str | None

    def __post_init__(self) -> None:
        require_choice("data.tokenizer.kind", self.kind, ("byte", "huggingface", "sentencepiece"))
        if (self.kind == "byte") != (self.file is None):
            raise StopError(f"data.tokenizer: kind={self.kind} and file={self.file!r} do not go together")


@dataclass(frozen=True)
class DataConfig:
    """Where samples come from."""

    train: tuple[CorpusConfig, ...]
    validation: tuple[CorpusConfig, ...]
    cache: str | None
    tokenizer: TokenizerConfig

    def __post_init__(self) -> None:
        if not self.train:
            raise StopError("train.json: data.train is empty, there is nothing to train on")


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and its learning-rate schedule, in optimizer steps."""

    learning_rate: float
    minimum_learning_rate: float
    warmup_steps: int
    decay_steps: int
    schedule: str
    weight_decay: float
    beta1: float
    beta2: float
    epsilon: float
    clip_grad: float

    def __post_init__(self) -> None:
        require_choice("optimizer.schedule", self.schedule, ("cosine", "linear", "constant"))
        require_at_least(self, 0, "learning_rate", "minimum_learning_rate", "warmup_steps", "weight_decay", "clip_grad")
        require_at_least(self, 0, "epsilon")
        for name in ("beta1", "beta2"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise StopError(f"optimizer.{name}={getattr(self, name)} must lie in [0, 1)")
        if self.schedule != "constant" and self.decay_steps <= self.warmup_steps:
            raise StopError(f"optimizer.decay_steps={self.decay_steps} must be above warmup_steps={self.warmup_steps}")


@dataclass(frozen=True)
class EvaluationConfig:
    """Every `interval` steps, `batches` fixed global batches of the validation split; interval 0 means never."""

    interval: int
    batches: int

    def __post_init__(self) -> None:
        require_at_least(self, 0, "interval")
        require_at_least(self, 1, "batches")


@dataclass(frozen=True)
class CheckpointConfig:
    """Every `interval` steps (0: only at the end); `keep` newest validated checkpoints stay."""

    directory: str
    interval: int
    keep: int
    mode: str

    def __post_init__(self) -> None:
        if not self.directory:
            raise StopError("checkpoint.directory is empty: name a directory on the shared file system")
        require_choice("checkpoint.mode", self.mode, ("sync", "async_thread", "async_process"))
        require_at_least(self, 0, "interval")
        require_at_least(self, 2, "keep")


@dataclass(frozen=True)
class TimeoutsConfig:
    """`collective_s`: seconds until a collective of any group is given up."""

    collective_s: float

    def __post_init__(self) -> None:
        require_at_least(self, 1, "collective_s")
        if self.collective_s > LONGEST_TIMEOUT_S:
            raise StopError(f"timeouts.collective_s={self.collective_s:g} must be at most {LONGEST_TIMEOUT_S} (a week)")


@dataclass(frozen=True)
class DropoutConfig:
    """Probabilities."""

    hidden: float
    attention: float

    def __post_init__(self) -> None:
        for name in ("hidden", "attention"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise StopError(f"dropout.{name}={getattr(self, name)} must lie in [0, 1)")


@dataclass(frozen=True)
class TelemetryConfig:
    """Optional outputs beside events.jsonl."""

    tensorboard: bool
    prometheus_port: int | None
    profile_steps: tuple[int, ...]
    peak_flops_per_second: float | None = None
    """Dense peak of one GPU in the training dtype; null leaves `mfu` null."""

    def __post_init__(self) -> None:
        port, peak = self.prometheus_port, self.peak_flops_per_second
        if port is not None and not 1 <= port <= LARGEST_PORT:
            raise StopError(f"telemetry.prometheus_port={port} must lie in 1 .. {LARGEST_PORT}")
        if any(step < 1 for step in self.profile_steps):
            raise StopError(f"telemetry.profile_steps={list(self.profile_steps)} must be steps from 1 on")
        if peak is not None and peak <= 0:
            raise StopError(f"telemetry.peak_flops_per_second={peak:g} must be above 0")


@dataclass(frozen=True)
class GuardConfig:
    """What happens when a loss is no number, or above `spike_factor` times the median of the last `window` losses.

    `policy`: stop, skip (drop the batch's gradients) or rollback (to the last checkpoint, past the batch's data).
    After more than `limit` such steps in a row the job stops in any case.
    """

    policy: str = "stop"
    spike_factor: float | None = None
    window: int = 50
    limit: int = 5

    def __post_init__(self) -> None:
        require_choice("guard.policy", self.policy, ("stop", "skip", "rollback"))
        require_at_least(self, 8, "window")
        require_at_least(self, 1, "limit")
        if self.spike_factor is not None and self.spike_factor <= 1.0:
            raise StopError(f"guard.spike_factor={self.spike_factor} must be above 1")


@dataclass(frozen=True)
class WeightsConfig:
    """Weights to start from instead of the seed: a directory with Hugging Face safetensors."""

    format: str
    path: str

    def __post_init__(self) -> None:
        require_choice("weights.format", self.format, ("huggingface",))


LORA_TARGETS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters (Hu et al. 2021) on the named linears; all other weights stay as they are."""

    rank: int
    alpha: float
    targets: tuple[str, ...]

    def __post_init__(self) -> None:
        require_at_least(self, 1, "rank")
        if not self.targets:
            raise StopError("lora.targets is empty: nothing would be trained")
        for target in self.targets:
            require_choice("lora.targets", target, LORA_TARGETS)


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
    guard: GuardConfig = GuardConfig()
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
