"""Make Megatron core and DeepSpeed run on the machine at hand; on CUDA nothing is changed.

This file touches private names of both libraries (checked with megatron-core 0.15 and 0.16, DeepSpeed 0.14 to 0.19).
It must run before either is imported. Numeric test: tests/unit/trainer/test_layouts.py.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import types
from collections.abc import Iterator
from typing import Any, Callable

import torch

from .environment import prepare_environment


def prepare_platform(cuda: bool, deepspeed: bool = True) -> None:
    """Prepare this process; on CPU, replace the calls that assume CUDA.

    Args:
        deepspeed: whether the job runs on DeepSpeed; else it is not imported, and need not be installed.
    """
    prepare_environment(cuda)
    if cuda:
        return
    torch.set_num_threads(1)
    _redirect_cuda_calls()
    _spare_compiler()
    with _without_compiler():
        random = importlib.import_module("megatron.core.tensor_parallel.random")
        schedules = importlib.import_module("megatron.core.pipeline_parallel.schedules")
        if deepspeed:
            # It looks for this optimizer when it starts; its module compiles functions that nobody here calls.
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    _use_cpu_random_states(random)
    schedules.__dict__["torch"] = _CpuZeros("torch")
    if deepspeed:
        _tame_deepspeed()


def _tame_deepspeed() -> None:
    # DeepSpeed would build its shared-memory communication operator with a compiler on first use.
    importlib.import_module("deepspeed.ops").__dict__["__compatible_ops__"] = collections.defaultdict(bool)
    # It also refuses float16 on a CPU without instructions for it; PyTorch computes it all the same, only slowly.
    importlib.import_module("deepspeed.accelerator").get_accelerator().is_fp16_supported = lambda: True


def _redirect_cuda_calls() -> None:
    cpu = torch.device("cpu")
    torch.cuda.current_device = lambda: cpu  # type: ignore[assignment,return-value]
    torch.cuda.synchronize = lambda device=None: None
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # type: ignore[method-assign]


@contextlib.contextmanager
def _without_compiler() -> Iterator[None]:
    """Keep torch.compile out of Megatron's import: its decorators would load the compiler (seconds per process)."""
    original = torch.compile

    def identity(model: Any = None, **options: Any) -> Any:
        return model if model is not None else (lambda function: function)

    torch.compile = identity
    try:
        yield
    finally:
        torch.compile = original


def _spare_compiler() -> None:
    """Let functions that PyTorch hides from compilers run without loading one (a second of every process)."""
    for function in (torch.optim.Optimizer.add_param_group, torch.optim.Optimizer.zero_grad):
        hidden = getattr(function, "__wrapped__", None)
        if hidden is not None:
            hidden.__dict__.setdefault("__dynamo_disable", hidden)


def _use_cpu_random_states(random: Any) -> None:
    """Let Megatron's random-state tracker keep states of the CPU generator (dropout, recomputation)."""

    class CpuTracker(random.CudaRNGStatesTracker):
        def add(self, name: str, seed: int) -> None:
            kept = torch.get_rng_state()
            torch.manual_seed(seed)
            self.states_[name] = torch.get_rng_state()
            torch.set_rng_state(kept)

        @contextlib.contextmanager
        def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
            kept = torch.get_rng_state()
            torch.set_rng_state(self.states_[name])
            try:
                yield
            finally:
                self.states_[name] = torch.get_rng_state()
                torch.set_rng_state(kept)

    random._CUDA_RNG_STATE_TRACKER = CpuTracker()
    random._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)


class _CpuZeros(types.ModuleType):
    """The torch module as Megatron's schedules see it: zeros that they want on CUDA are made on the CPU."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def zeros(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        make: Callable[..., torch.Tensor] = torch.zeros
        return make(*args, **kwargs)
