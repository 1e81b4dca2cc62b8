"""Values of the fitted constants; written by `make fit`, not by hand."""

from __future__ import annotations

VALUES: dict[str, float] = {
    "product_ampere": 0.801035,
    "product_hopper": 0.624771,
    "product_blackwell": 0.459235,
    "product_fp8_hopper": 0.839493,
    "product_fp8_blackwell": 0.739032,
    "product_mxfp8": 0.680629,
    "product_nvfp4": 0.497505,
    "attention_ampere": 0.326111,
    "attention_hopper": 0.623197,
    "attention_blackwell": 0.38625,
    "attention_blackwell_fp8": 0.843185,
    "attention_portable": 0.224226,
    "attention_extra_keys": 247.801,
    "score_product": 0.206178,
    "operand_traffic": 0.319404,
    "elementwise_traffic": 2.54966,
    "elementwise_old": 0.22912,
    "misaligned_factor": 1.5109,
    "library_2021": 0.931925,
    "power_exponent": 0.315751,
    "host_seconds_old": 0.000705949,
    "host_seconds_per_layer": 0.000563957,
    "nvlink_share": 0.870865,
    "network_share": 0.818872,
    "nvlink_latency_s": 2.29579e-05,
    "network_latency_s": 1.4576e-05,
    "tensor_overlap": 0.756749,
    "data_overlap": 0.927355,
    "gather_overlap": 0.586147,
    "pipeline_exposed": 0.342248,
    "deepspeed_pipeline_factor": 1.14268,
    "pipeline_step_s": 0.000346758,
    "step_overhead_s": 0.0305597,
    "expert_product": 0.824695,
    "expert_exchange": 0.593294,
    "backward_layers": 1.2822,
    "allocated_base_gib": 0.332197,
    "cached_share": 0.0732936,
    "pipeline_engine_gib": 5.5461,
}

# How they were found: scripts/fit on tests/fixtures/planner/planner-validation.csv.
RECORD: dict[str, float] = {
    "rows": 542,
    "band_low": 0.891,
    "band_high": 1.174,
    "step_error_percent": 6.57,
    "step_error_cross_validated_percent": 7.875,
}
