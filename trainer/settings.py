"""The sections of train.json as typed, validated data; trainer.config puts them together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .errors import StopError

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
    prometheus_address: str = "127.0.0.1"
    """Address of rank 0's host that `prometheus_port` is opened on; 0.0.0.0 for all of them."""

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
