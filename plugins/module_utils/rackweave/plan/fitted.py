"""Values of the fitted constants; written by `make fit`, not by hand."""

from __future__ import annotations

VALUES: dict[str, float] = {
    "product_ampere": 0.803944,
    "product_hopper": 0.630255,
    "product_blackwell": 0.457797,
    "product_fp8_hopper": 0.855362,
    "product_fp8_blackwell": 0.751331,
    "product_mxfp8": 0.691459,
    "product_nvfp4": 0.510156,
    "attention_ampere": 0.327845,
    "attention_hopper": 0.625891,
    "attention_blackwell": 0.384049,
    "attention_blackwell_fp8": 0.844908,
    "attention_portable": 0.221181,
    "attention_extra_keys": 288.777,
    "score_product": 0.249375,
    "operand_traffic": 0.326219,
    "elementwise_traffic": 2.64043,
    "elementwise_old": 0.551819,
    "misaligned_factor": 1.51082,
    "library_2021": 0.931259,
    "power_exponent": 0.300378,
    "host_seconds_old": 0.0007142,
    "host_seconds_per_layer": 0.000556716,
    "nvlink_share": 0.857451,
    "network_share": 0.781742,
    "nvlink_latency_s": 2.38018e-05,
    "network_latency_s": 1.17621e-05,
    "tensor_overlap": 0.754702,
    "data_overlap": 0.930554,
    "gather_overlap": 0.596916,
    "pipeline_exposed": 0.401428,
    "deepspeed_pipeline_factor": 1.13902,
    "pipeline_step_s": 0.000328688,
    "step_overhead_s": 0.0239362,
    "expert_product": 0.823613,
    "expert_exchange": 0.612005,
    "backward_layers": 1.2823,
    "allocated_base_gib": 0.332193,
    "cached_share": 0.0733437,
    "pipeline_engine_gib": 5.54116,
}

# How they were found: scripts/fit on tests/fixtures/planner/planner-validation.csv.
RECORD: dict[str, float] = {
    "rows": 542,
    "band_low": 0.87,
    "band_high": 1.15,
    "step_error_percent": 6.497,
    "step_error_cross_validated_percent": 7.491,
}
