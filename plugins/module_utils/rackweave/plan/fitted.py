"""Values of the fitted constants; written by `make fit`, not by hand."""

from __future__ import annotations

VALUES: dict[str, float] = {
    "product_ampere": 0.801466,
    "product_hopper": 0.623419,
    "product_blackwell": 0.4586,
    "product_fp8_hopper": 0.836092,
    "product_fp8_blackwell": 0.737267,
    "product_mxfp8": 0.678841,
    "product_nvfp4": 0.496127,
    "attention_ampere": 0.325269,
    "attention_hopper": 0.623394,
    "attention_blackwell": 0.385206,
    "attention_blackwell_fp8": 0.84352,
    "attention_portable": 0.224753,
    "attention_extra_keys": 243.093,
    "score_product": 0.194435,
    "operand_traffic": 0.322773,
    "elementwise_traffic": 2.54657,
    "elementwise_old": 0.165439,
    "misaligned_factor": 1.5107,
    "library_2021": 0.932859,
    "power_exponent": 0.318148,
    "host_seconds_old": 0.000716774,
    "host_seconds_per_layer": 0.000546072,
    "nvlink_share": 0.897498,
    "network_share": 0.829011,
    "nvlink_latency_s": 2.36203e-05,
    "network_latency_s": 1.51486e-05,
    "tensor_overlap": 0.754385,
    "data_overlap": 0.925227,
    "gather_overlap": 0.578978,
    "pipeline_exposed": 0.277387,
    "deepspeed_pipeline_factor": 1.14508,
    "pipeline_step_s": 0.000333781,
    "step_overhead_s": 0.0302456,
    "expert_product": 0.823766,
    "expert_exchange": 0.589737,
    "backward_layers": 1.28221,
    "allocated_base_gib": 0.332197,
    "cached_share": 0.0732972,
    "pipeline_engine_gib": 5.54581,
}

# How they were found: scripts/fit on tests/fixtures/planner/planner-validation.csv.
RECORD: dict[str, float] = {
    "rows": 542,
    "band_low": 0.894,
    "band_high": 1.171,
    "step_error_percent": 6.581,
    "step_error_cross_validated_percent": 7.506,
}
