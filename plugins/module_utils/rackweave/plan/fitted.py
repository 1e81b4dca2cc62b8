"""Values of the fitted constants; written by `make fit`, not by hand."""

from __future__ import annotations

VALUES: dict[str, float] = {
    "product_ampere": 0.800913,
    "product_hopper": 0.623109,
    "product_blackwell": 0.458409,
    "product_fp8_hopper": 0.835423,
    "product_fp8_blackwell": 0.73695,
    "product_mxfp8": 0.678599,
    "product_nvfp4": 0.495889,
    "attention_ampere": 0.32535,
    "attention_hopper": 0.623406,
    "attention_blackwell": 0.385081,
    "attention_blackwell_fp8": 0.843505,
    "attention_portable": 0.224843,
    "attention_extra_keys": 232.224,
    "score_product": 0.195189,
    "operand_traffic": 0.320491,
    "elementwise_traffic": 2.547,
    "elementwise_old": 0.175862,
    "misaligned_factor": 1.51023,
    "library_2021": 0.932305,
    "power_exponent": 0.318857,
    "host_seconds_old": 0.000716647,
    "host_seconds_per_layer": 0.000550102,
    "nvlink_share": 0.900289,
    "network_share": 0.830061,
    "nvlink_latency_s": 2.36263e-05,
    "network_latency_s": 1.51536e-05,
    "tensor_overlap": 0.754453,
    "data_overlap": 0.924703,
    "gather_overlap": 0.577934,
    "pipeline_exposed": 0.224898,
    "deepspeed_pipeline_factor": 1.14472,
    "pipeline_step_s": 0.000336176,
    "step_overhead_s": 0.0301974,
    "expert_product": 0.823102,
    "expert_exchange": 0.589238,
    "backward_layers": 1.2822,
    "allocated_base_gib": 0.332197,
    "cached_share": 0.0732936,
    "pipeline_engine_gib": 5.5461,
}

# How they were found: scripts/fit on tests/fixtures/planner/planner-validation.csv.
RECORD: dict[str, float] = {
    "rows": 542,
    "band_low": 0.894,
    "band_high": 1.171,
    "step_error_percent": 6.576,
    "step_error_cross_validated_percent": 7.506,
}
