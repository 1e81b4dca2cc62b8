"""The fitted constants, each a named physical quantity. `make fit` writes `fitted.py`; nothing else sets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from ..errors import PlanError
from .fitted import VALUES


@dataclass(frozen=True)
class Constants:
    """What was fitted on published measurements; shares, factors and multiples are dimensionless.

    Attributes:
        product_ampere: share of the bf16 peak that large matrix products sustain on Ampere.
        product_hopper: the same on Hopper.
        product_blackwell: the same on Blackwell.
        product_fp8_hopper: share of the fp8 peak on Hopper.
        product_fp8_blackwell: the same on Blackwell.
        product_mxfp8: share of the mxfp8 peak (block scaling).
        product_nvfp4: share of the nvfp4 peak.
        attention_ampere: share of the bf16 peak that fused attention sustains on Ampere.
        attention_hopper: the same on Hopper.
        attention_blackwell: the same on Blackwell.
        attention_blackwell_fp8: the same in 8-bit recipes, whose attention runs partly in 8 bit there.
        attention_portable: the same of kernels written for Ampere, on later generations.
        attention_extra_keys: keys per query that fused attention spends on partial blocks.
        score_product: share of the peak of the score products in unfused attention.
        operand_traffic: operand bytes that a product reads again, in multiples of the operands.
        elementwise_traffic: bytes of elementwise kernels, in multiples of the necessary ones.
        elementwise_old: the same before fused attention.
        misaligned_factor: time factor of products with a dimension that 64 does not divide.
        library_2021: share of today's matrix product rate that libraries before fused attention reach.
        power_exponent: how sustained rates grow with board power within a generation.
        host_seconds_old: host time to launch one layer's forward pass, before fused attention.
        host_seconds_per_layer: the same with fused kernels.
        nvlink_share: share of NVLink's rate that rings sustain.
        network_share: share of the NIC's rate.
        nvlink_latency_s: seconds per ring step within a domain.
        network_latency_s: seconds per ring step between domains.
        tensor_overlap: share of tensor-parallel traffic hidden behind products where software overlaps them.
        data_overlap: share of gradient and parameter traffic hidden where software overlaps it.
        gather_overlap: the same for ZeRO-3 gathers.
        pipeline_exposed: time of pipeline messages, in multiples of that at the network's rate.
        deepspeed_pipeline_factor: time factor of passes under DeepSpeed's pipeline engine over Megatron's schedule.
        pipeline_step_s: host seconds of one pass of one chunk through the pipeline schedule.
        step_overhead_s: seconds of each step outside the model.
        expert_product: share of a dense product's rate that grouped expert products reach.
        expert_exchange: share of the link rate that all-to-all exchanges reach.
        backward_layers: working set of the backward pass, in layers' saved activations.
        allocated_base_gib: tensors that belong to no layer.
        cached_share: blocks the allocator caches beyond live tensors, as a share of them.
        pipeline_engine_gib: buffers of DeepSpeed's pipeline engine and its communicators, outside the allocator.
    """

    product_ampere: float
    product_hopper: float
    product_blackwell: float
    product_fp8_hopper: float
    product_fp8_blackwell: float
    product_mxfp8: float
    product_nvfp4: float
    attention_ampere: float
    attention_hopper: float
    attention_blackwell: float
    attention_blackwell_fp8: float
    attention_portable: float
    attention_extra_keys: float
    score_product: float
    operand_traffic: float
    elementwise_traffic: float
    elementwise_old: float
    misaligned_factor: float
    library_2021: float
    power_exponent: float
    host_seconds_old: float
    host_seconds_per_layer: float
    nvlink_share: float
    network_share: float
    nvlink_latency_s: float
    network_latency_s: float
    tensor_overlap: float
    data_overlap: float
    gather_overlap: float
    pipeline_exposed: float
    deepspeed_pipeline_factor: float
    pipeline_step_s: float
    step_overhead_s: float
    expert_product: float
    expert_exchange: float
    backward_layers: float
    allocated_base_gib: float
    cached_share: float
    pipeline_engine_gib: float

    @classmethod
    def shipped(cls) -> Constants:
        """Return the constants fitted on the whole table."""
        return cls(**VALUES)

    def with_values(self, values: Mapping[str, float]) -> Constants:
        """Return constants with some replaced.

        Raises:
            PlanError: if a name is unknown.
        """
        unknown = sorted(set(values) - {field.name for field in fields(self)})
        if unknown:
            raise PlanError(f"unknown constants {', '.join(unknown)}")
        return replace(self, **values)

    def product_share(self, generation: str, precision: str) -> float:
        """Return the share of the peak that large products sustain."""
        if precision == "nvfp4":
            return self.product_nvfp4
        if precision == "mxfp8":
            return self.product_mxfp8
        # TF32 and 16-bit products sustain the same share of their peaks.
        name = f"product_fp8_{generation}" if precision == "fp8" else f"product_{generation}"
        return float(getattr(self, name))

    def attention_share(self, generation: str, low_precision: bool) -> float:
        """Return the share of the bf16 peak that fused attention sustains."""
        if generation == "blackwell" and low_precision:
            return self.attention_blackwell_fp8
        return float(getattr(self, f"attention_{generation}"))
