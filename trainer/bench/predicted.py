"""What the planner says of a bench case, to stand beside what was measured."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from rackweave.hardware.catalog import Gpu, find_gpu
from rackweave.plan.constants import Constants
from rackweave.plan.kernels import Links
from rackweave.plan.machine import Machine
from rackweave.plan.memory import peak_memory
from rackweave.plan.model_file import resolve_model
from rackweave.plan.ranks import ParallelSizes
from rackweave.plan.rules import Layout
from rackweave.plan.software import planned_software
from rackweave.plan.step_time import step_time

from .case import BenchCase

GIB = 2**30
PRECISIONS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class Predicted:
    """Seconds of a step, and live tensors of the fullest rank."""

    step_time_s: float
    allocated_gib: float

    def beside(self, step_time_s: float, allocated_gib: float | None) -> str:
        """Return both predictions and their errors in percent."""
        text = f"predicted {self.step_time_s * 1e3:.1f} ms ({_error(self.step_time_s, step_time_s)})"
        if allocated_gib is None:
            return text
        return f"{text}, {self.allocated_gib:.2f} GiB ({_error(self.allocated_gib, allocated_gib)})"


def predict(case: BenchCase, gpu_name: str) -> Predicted | None:
    """Return the planner's figures for GPUs of one host, or None for a GPU that its catalog does not know."""
    gpu = find_gpu(gpu_name)
    if gpu is None:
        return None
    model = resolve_model({**asdict(case.model), "parameters": None})
    layout = _layout(case)
    software = planned_software("flat" if case.engine == "flat" else "megatron", "pretrain", model)
    constants = Constants.shipped()
    seconds = step_time(model, layout, _machine(gpu, case.world_size), software, constants).total
    return Predicted(seconds, peak_memory(model, layout, software, constants).allocated / GIB)


def predict_allreduce(message_bytes: int, world_size: int, gpu_name: str) -> float | None:
    """Return the planner's seconds of an all-reduce over the GPUs of one host, or None for an unknown GPU."""
    gpu = find_gpu(gpu_name)
    if gpu is None:
        return None
    links = Links.of(_machine(gpu, world_size), Constants.shipped())
    return links.ring(message_bytes, world_size, 1, rounds=2)


def peak_flops_per_second(gpu_name: str) -> float | None:
    """Return the dense bf16 peak of a GPU, or None for an unknown one."""
    gpu = find_gpu(gpu_name)
    return None if gpu is None else gpu.peak_flops_per_second("bf16")


def _layout(case: BenchCase) -> Layout:
    return Layout(
        sizes=ParallelSizes(
            case.tensor_parallel_size, case.pipeline_parallel_size, case.data_parallel_size, case.virtual_pipeline_size
        ),
        micro_batch_size=case.micro_batch_size,
        global_batch_size=case.global_batch_size,
        zero_stage=case.zero_stage,
        sequence_parallel=case.sequence_parallel,
        recompute=case.recompute,
        offload=case.offload,
        precision=PRECISIONS[case.dtype],
        engine="flat" if case.engine == "flat" else "megatron",
    )


def _machine(gpu: Gpu, world_size: int) -> Machine:
    network = gpu.nic_gbps * 1e9 / 8
    return Machine(gpu, world_size, max(world_size, 1), network, gpu.memory_bytes, gpu.host_memory_bytes)


def _error(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.1f} %"
