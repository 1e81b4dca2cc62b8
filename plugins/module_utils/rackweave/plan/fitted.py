"""Values of the fitted constants; written by `make fit`, not by hand."""

from __future__ import annotations

VALUES: dict[str, float] = {
    "product_ampere": 0.811926,
    "product_hopper": 0.656848,
    "product_blackwell": 0.457548,
    "product_fp8_hopper": 0.893005,
    "product_fp8_blackwell": 0.784203,
    "product_mxfp8": 0.706394,
    "product_nvfp4": 0.552979,
    "attention_ampere": 0.329307,
    "attention_hopper": 0.630147,
    "attention_blackwell": 0.386648,
    "attention_blackwell_fp8": 0.845997,
    "attention_portable": 0.220933,
    "attention_extra_keys": 303.466,
    "score_product": 0.258332,
    "operand_traffic": 0.323964,
    "elementwise_traffic": 2.77343,
    "elementwise_old": 0.750924,
    "misaligned_factor": 1.50969,
    "library_2021": 0.91723,
    "power_exponent": 0.293605,
    "host_seconds_old": 0.000709789,
    "host_seconds_per_layer": 0.000828832,
    "nvlink_share": 0.888126,
    "network_share": 0.869473,
    "nvlink_latency_s": 2.17294e-05,
    "network_latency_s": 1.58069e-05,
    "tensor_overlap": 0.60437,
    "data_overlap": 0.966791,
    "gather_overlap": 0.500042,
    "pipeline_exposed": 0.405148,
    "deepspeed_pipeline_factor": 1.13778,
    "pipeline_step_s": 0.000266591,
    "step_overhead_s": 0.0248401,
    "expert_product": 0.800805,
    "expert_exchange": 0.637869,
    "backward_layers": 1.28223,
    "allocated_base_gib": 0.332196,
    "cached_share": 0.0733085,
    "pipeline_engine_gib": 5.54479,
}

# How they were found: scripts/fit on tests/fixtures/planner/planner-validation.csv.
RECORD: dict[str, float] = {
    "rows": 542,
    "band_low": 0.898,
    "band_high": 1.181,
    "step_error_percent": 6.685,
    "step_error_cross_validated_percent": 7.999,
}
