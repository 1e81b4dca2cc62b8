"""What is believed of each fitted constant before the fit: its kind, the most plausible value, and how sure that is.

Centres come from data sheets, NCCL and GEMM benchmarks in public reports (SimuMax's and calculon's system files,
FlashAttention papers); spreads are wide, so that the data decide where they say anything. NVLink's latency is held
closer to what was measured directly (5 to 9 us a ring step).
"""

from __future__ import annotations

from .fitting import Prior

STEP_PRIORS = {
    "product_ampere": Prior("share", 0.75, 2.0),
    "product_hopper": Prior("share", 0.65, 2.0),
    "product_blackwell": Prior("share", 0.6, 2.0),
    "product_fp8_hopper": Prior("share", 0.55, 2.0),
    "product_fp8_blackwell": Prior("share", 0.5, 2.0),
    "product_mxfp8": Prior("share", 0.5, 2.0),
    "product_nvfp4": Prior("share", 0.4, 2.0),
    "attention_ampere": Prior("share", 0.55, 2.0),
    "attention_hopper": Prior("share", 0.6, 2.0),
    "attention_blackwell": Prior("share", 0.6, 2.0),
    "attention_blackwell_fp8": Prior("share", 0.7, 2.0),
    "attention_portable": Prior("share", 0.25, 2.0),
    "attention_extra_keys": Prior("positive", 1000.0, 2.8),
    "score_product": Prior("share", 0.45, 2.0),
    "operand_traffic": Prior("positive", 1.0, 3.2),
    "elementwise_traffic": Prior("positive", 1.5, 2.0),
    "elementwise_old": Prior("positive", 1.0, 2.0),
    "misaligned_factor": Prior("positive", 1.3, 1.2),
    "library_2021": Prior("share", 0.9, 2.0),
    "power_exponent": Prior("positive", 0.5, 2.0),
    "host_seconds_old": Prior("positive", 0.0012, 1.6),
    "host_seconds_per_layer": Prior("positive", 0.0006, 2.0),
    "nvlink_share": Prior("share", 0.7, 1.6),
    "network_share": Prior("share", 0.7, 1.6),
    "nvlink_latency_s": Prior("positive", 7e-6, 1.0),
    "network_latency_s": Prior("positive", 20e-6, 2.0),
    "tensor_overlap": Prior("share", 0.5, 2.8),
    "data_overlap": Prior("share", 0.7, 2.8),
    "gather_overlap": Prior("share", 0.8, 2.8),
    "pipeline_exposed": Prior("positive", 1.5, 2.0),
    "deepspeed_pipeline_factor": Prior("positive", 1.05, 0.12),
    "pipeline_step_s": Prior("positive", 5e-4, 2.8),
    "step_overhead_s": Prior("positive", 0.01, 2.8),
    "expert_product": Prior("share", 0.6, 2.0),
    "expert_exchange": Prior("share", 0.5, 2.0),
}
MEMORY_PRIORS = {
    "backward_layers": Prior("positive", 1.5, 1.0),
    "allocated_base_gib": Prior("positive", 0.4, 1.0),
    "cached_share": Prior("positive", 0.06, 1.0),
    "pipeline_engine_gib": Prior("positive", 3.0, 1.0),
}
