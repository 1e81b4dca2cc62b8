"""Values of the fitted constants; written by `make fit`, not by hand."""

from __future__ import annotations

VALUES: dict[str, float] = {
    "product_ampere": 0.795527,
    "product_hopper": 0.62079,
    "product_blackwell": 0.429138,
    "product_fp8_hopper": 0.811636,
    "product_fp8_blackwell": 0.762984,
    "product_mxfp8": 0.685438,
    "product_nvfp4": 0.607444,
    "attention_ampere": 0.327149,
    "attention_hopper": 0.622699,
    "attention_blackwell": 0.823339,
    "attention_portable": 0.231214,
    "attention_extra_keys": 526.506,
    "score_product": 0.386179,
    "operand_traffic": 0.258275,
    "elementwise_traffic": 2.37995,
    "elementwise_old": 1.07596,
    "misaligned_factor": 1.52099,
    "library_2021": 0.913549,
    "power_exponent": 0.355165,
    "host_seconds_old": 0.000727031,
    "host_seconds_per_layer": 0.000750192,
    "nvlink_share": 0.806684,
    "network_share": 0.784481,
    "nvlink_latency_s": 1.83351e-05,
    "network_latency_s": 1.23482e-05,
    "tensor_overlap": 0.792674,
    "data_overlap": 0.892527,
    "gather_overlap": 0.61519,
    "pipeline_exposed": 0.660332,
    "deepspeed_pipeline_factor": 1.10531,
    "pipeline_step_s": 0.000387002,
    "step_overhead_s": 0.0189535,
    "expert_product": 0.674708,
    "expert_exchange": 0.636819,
    "backward_layers": 1.50022,
    "allocated_base_gib": 0.394106,
    "cached_share": 0.0877705,
    "context_gib": 4.6864,
}

# How they were found: scripts/fit on tests/fixtures/planner/planner-validation.csv.
RECORD: dict[str, float] = {
    "rows": 542,
    "step_error_percent": 7.206,
    "step_error_cross_validated_percent": 8.48,
}
