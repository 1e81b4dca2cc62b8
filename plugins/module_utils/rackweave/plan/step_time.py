"""Seconds of one training step by component.

Stages, micro-batches and the schedule combine the passes of `passes.py` (arXiv:2104.04473 section 2.2); gradient and
parameter traffic, and the optimizer, come on top.
"""

from __future__ import annotations

from dataclasses import dataclass

from .activations import tokens_per_rank
from .architecture import Architecture
from .constants import Constants
from .kernels import Kernels, Links
from .machine import Machine, Software
from .passes import PassModel, PassTimes, hidden_seconds
from .rules import Layout
from .shapes import StageParameters, moe_layers_of_stage, stage_layer_counts, stage_parameters

_LINK_SHARE = 0.75  # of the host link's rate that pinned copies reach; assumed
_HOST_BYTES_PER_SECOND = 200e9  # memory rate that Adam on two sockets sustains; assumed
_NVME_BYTES_PER_SECOND = 25e9  # eight drives of a host together; assumed
_FLAT_OPTIMIZER_BYTES = 32  # read and write gradient 8, weight and rest 8, moments 16
_OPTIMIZER_BYTES = 30  # read gradient 4, read and write master 8 and moments 16, write bf16 weights 2


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step by component; their sum is the prediction."""

    compute: float
    attention: float
    tensor_traffic: float
    recompute: float
    bubble: float
    pipeline_traffic: float
    data_traffic: float
    optimizer: float
    offload: float
    overhead: float

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return float(sum(vars(self).values()))


class StepModel:
    """Step times of one model on one machine; passes of a layer are worked out once per shape and kept."""

    def __init__(self, model: Architecture, machine: Machine, software: Software, constants: Constants) -> None:
        self.model, self.machine, self.software, self.constants = model, machine, software, constants
        self.links = Links.of(machine, constants)
        self._passes: dict[tuple[object, ...], tuple[PassTimes, PassTimes, PassTimes]] = {}
        self._kernels: dict[str, Kernels] = {}

    def passes(self, layout: Layout) -> tuple[PassTimes, PassTimes, PassTimes]:
        """Return the passes of a dense layer, of a mixture layer and of the head."""
        sizes = layout.sizes
        key = (
            sizes.tensor_parallel_size,
            sizes.context_parallel_size,
            sizes.expert_parallel_size,
            layout.micro_batch_size,
            layout.sequence_parallel,
            layout.engine,
            layout.precision,
        )
        found = self._passes.get(key)
        if found is None:
            kernels = self.kernels(layout.precision)
            rules = PassModel(self.model, self.software, kernels, self.links, self.constants)
            dense = rules.layer(layout)
            moe = rules.layer(layout, moe=True) if self.model.experts is not None else dense
            found = self._passes[key] = (dense, moe, rules.head(layout))
        return found

    def kernels(self, precision: str) -> Kernels:
        """Return the rates for a precision."""
        found = self._kernels.get(precision)
        if found is None:
            found = Kernels.of(self.machine, self.software, precision, self.constants)
            self._kernels[precision] = found
        return found

    def lower_bound(self, layout: Layout) -> float:
        """Return seconds that no step of these tensor and micro-batch sizes undercuts, whatever else is chosen."""
        dense, moe, _ = self.passes(layout)
        layer = min(dense.forward_total + dense.backward_total, moe.forward_total + moe.backward_total)
        return layout.num_microbatches * self.model.num_layers / layout.sizes.pipeline_parallel_size * layer

    def predict(self, layout: Layout) -> StepTime:
        """Return the time of one step."""
        model, software, constants, links = self.model, self.software, self.constants, self.links
        dense, moe, head = self.passes(layout)
        stages = _stage_passes(model, layout, dense, moe, head)
        slots = [sum(parts) for parts in stages]
        heaviest = max(range(len(slots)), key=slots.__getitem__)
        count, sizes = layout.num_microbatches, layout.sizes
        factor = constants.deepspeed_pipeline_factor if layout.engine == "deepspeed-pipeline" else 1.0
        compute, attention, traffic, again = (factor * count * part for part in stages[heaviest])
        bubble = factor * (sum(slots) - slots[heaviest]) / sizes.virtual_pipeline_size
        return StepTime(
            compute=compute,
            attention=attention,
            tensor_traffic=traffic,
            recompute=again,
            bubble=bubble,
            pipeline_traffic=_pipeline_traffic(model, layout, software, links, constants),
            data_traffic=_data_traffic(model, layout, software, links, constants, slots[heaviest]),
            optimizer=_optimizer(model, layout, software, self.kernels(layout.precision)),
            offload=offload_seconds(model, layout, self.machine),
            overhead=constants.step_overhead_s * software.overhead_factor,
        )


def step_time(
    model: Architecture, layout: Layout, machine: Machine, software: Software, constants: Constants
) -> StepTime:
    """Return the time of one step."""
    return StepModel(model, machine, software, constants).predict(layout)


def offload_seconds(model: Architecture, layout: Layout, machine: Machine) -> float:
    """Return the seconds of an optimizer step on the host; assumed rates, no published row measures it.

    Gradients go down and weights come up over the host link; the host's Adam is bound by its memory, which all GPUs of
    a host share. States on NVMe are read and written once more.
    """
    if layout.offload == "none":
        return 0.0
    held = _heaviest_parameters(model, layout)
    parameters = held.total / (layout.sizes.data_parallel_size * layout.sizes.context_parallel_size)
    link = (4 + 2) * parameters / (_LINK_SHARE * machine.gpu.host_link_bytes_per_second)
    host = _OPTIMIZER_BYTES * parameters * machine.gpus_per_host / _HOST_BYTES_PER_SECOND
    drive = 24 * parameters * machine.gpus_per_host / _NVME_BYTES_PER_SECOND if layout.offload == "nvme" else 0.0
    return link + host + drive


def _stage_passes(
    model: Architecture, layout: Layout, dense: PassTimes, moe: PassTimes, head: PassTimes
) -> list[tuple[float, float, float, float]]:
    """Return (compute, attention, tensor traffic, recomputation) of one micro-batch on each stage."""
    counts = stage_layer_counts(model, layout)
    stages = []
    for stage, layers in enumerate(counts):
        mixed = moe_layers_of_stage(model, layout.sizes, layers, stage)
        parts = [0.0, 0.0, 0.0, 0.0]
        for number, passes in ((layers - mixed, dense), (mixed, moe)):
            parts[0] += number * (passes.forward + passes.backward)
            parts[1] += number * (passes.attention_forward + passes.attention_backward)
            parts[2] += number * (passes.traffic_forward + passes.traffic_backward)
            parts[3] += number * _recomputed(model, layout, passes)
        if stage == len(counts) - 1:
            parts[0] += head.forward + head.backward
        stages.append((parts[0], parts[1], parts[2], parts[3]))
    return stages


def _recomputed(model: Architecture, layout: Layout, passes: PassTimes) -> float:
    if layout.recompute == "full":
        return passes.forward_total
    if layout.recompute == "none":
        return 0.0
    if layout.recompute in ("elementwise", "partial"):
        return passes.stream_forward
    if layout.engine == "flat":
        # The feed-forward block with its normalisation; products are in proportion to their parameters.
        return passes.forward * model.mlp_parameters / (model.mlp_parameters + model.attention_parameters)
    if layout.zero_stage == 3:
        # Every second matrix product and the elementwise kernels between (torchtitan's policy).
        return 0.5 * passes.forward
    return passes.attention_forward


def _pipeline_traffic(
    model: Architecture, layout: Layout, software: Software, links: Links, constants: Constants
) -> float:
    """Return the exposed seconds of messages between stages: one each way per micro-batch and chunk."""
    sizes = layout.sizes
    stages, chunks = sizes.pipeline_parallel_size, sizes.virtual_pipeline_size
    if stages == 1:
        return 0.0
    tensor = sizes.tensor_parallel_size
    stride = tensor * sizes.context_parallel_size * sizes.data_parallel_size
    # Each tensor rank sends its part, with or without sequence parallelism (DeepSpeed's PartitionedTensor, Megatron's
    # scatter-gather); without, the receivers gather the whole.
    whole = 2 * tokens_per_rank(model, layout) * model.hidden_size
    message = links.point_to_point(whole / tensor, stride)
    if not layout.sequence_parallel:
        message += links.ring(whole, tensor, 1)
    steps = layout.num_microbatches * chunks + stages - 1
    exposed = constants.pipeline_exposed * (1 - constants.data_overlap if software.overlap else 1.0)
    return 2 * steps * (exposed * message + constants.pipeline_step_s)


def _heaviest_parameters(model: Architecture, layout: Layout) -> StageParameters:
    counts = stage_layer_counts(model, layout)
    ends = {0, len(counts) - 1, min(1, len(counts) - 1)}
    held = [stage_parameters(model, layout.sizes, counts[stage], stage) for stage in ends]
    return max(held, key=lambda parameters: parameters.total)


def _data_traffic(
    model: Architecture, layout: Layout, software: Software, links: Links, constants: Constants, slot: float
) -> float:
    """Return the exposed seconds of gradient reduction and parameter gathering."""
    sizes = layout.sizes
    held = _heaviest_parameters(model, layout)
    if software.trains == "adapters":
        return 0.0
    replicas, stride = sizes.data_parallel_size * sizes.context_parallel_size, sizes.tensor_parallel_size
    expert_replicas = max(1, replicas * sizes.tensor_parallel_size // sizes.expert_parallel_size)
    if layout.zero_stage == 3:
        return _sharded_traffic(model.num_layers, layout, software, links, constants, held, slot)
    width = software.reduce_bytes
    total = 0.0
    for parameters, size, apart in (
        (held.dense, replicas, stride),
        (held.expert, expert_replicas, sizes.expert_parallel_size),
    ):
        # DeepSpeed's pipeline engine all-reduces gradients even where ZeRO-1 needs only its own part.
        rounds = 2 if layout.engine == "deepspeed-pipeline" else 1
        reduced = links.ring(width * parameters, size, apart, rounds)
        # An all-reduce gathers gradients, ZeRO gathers the updated 16-bit weights instead.
        gathered = links.ring((width if layout.zero_stage == 0 else 2) * parameters, size, apart)
        if layout.zero_stage == 2 and layout.engine != "fsdp":
            # DeepSpeed reduces partitioned gradients after every micro-batch; FSDP keeps whole ones for a pipeline.
            reduced *= layout.num_microbatches
        total += reduced + gathered
    beside = slot * (layout.num_microbatches if layout.zero_stage == 2 else 1)
    return total - hidden_seconds(total, beside, constants.data_overlap if software.overlap else 0.0)


def _sharded_traffic(
    layout_layers: int,
    layout: Layout,
    software: Software,
    links: Links,
    constants: Constants,
    held: StageParameters,
    slot: float,
) -> float:
    """Return the exposed seconds of ZeRO-3: two gathers and one reduction of every layer per micro-batch."""
    sizes = layout.sizes
    replicas = sizes.data_parallel_size * sizes.context_parallel_size
    if not software.overlap:
        links = links.one_nic_per_group()
    # Each layer is gathered on its own, and pays the latency of its own rings.
    layers = max(1, layout_layers // sizes.pipeline_parallel_size)
    once = layers * links.ring(2 * held.total / layers, replicas, sizes.tensor_parallel_size, 2)
    once += layers * links.ring(software.reduce_bytes * held.total / layers, replicas, sizes.tensor_parallel_size)
    exposed = once - hidden_seconds(once, slot, constants.gather_overlap)
    # With a pipeline the gathered weights are kept for all micro-batches of the step.
    return exposed * (layout.num_microbatches if sizes.pipeline_parallel_size == 1 else 1)


def _optimizer(model: Architecture, layout: Layout, software: Software, kernels: Kernels) -> float:
    """Return the seconds of clipping and updating, bound by device memory."""
    if software.trains == "adapters" or layout.offload != "none":
        return 0.0
    held = _heaviest_parameters(model, layout)
    replicas = layout.sizes.data_parallel_size * layout.sizes.context_parallel_size
    parameters = held.total / (replicas if layout.zero_stage >= 1 else 1)
    return (_FLAT_OPTIMIZER_BYTES if software.flat else _OPTIMIZER_BYTES) * parameters * kernels.seconds_per_byte
