"""Faults of public reports whose usual cure hides the cause."""

from __future__ import annotations

import pytest
from rackweave.fabric.variables import harm_of
from rackweave.watch.verdict import diagnose

BIND = (
    "hgx3:1234:1300 [5] NCCL INFO NVLS multicast support is available on dev 5 (NVLS_NCHANNELS 16)\n"
    "hgx3:1234:1300 [5] {place} NCCL WARN {wording}\n"
    "hgx3:1234:1300 [5] NCCL INFO init.cc:1700 -> 1\n"
    "[rank5]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled cuda error\n"
)
REFUSED = "CUDA error 401 'the operation cannot be performed in the present state'"


@pytest.mark.parametrize(
    ("place", "wording"),
    [
        ("transport/nvls.cc:174", "Cuda failure 401 'the operation cannot be performed in the present state'"),
        ("nvls.cc:398", f"Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : {REFUSED}."),
        ("nvls.cc:398", "Failed to bind NVLink SHARP (NVLS) Multicast memory: CUDA error 1 'invalid argument'"),
    ],
)
def test_a_refused_multicast_bind_is_a_fault_of_the_switches_of_that_node(place: str, wording: str) -> None:
    """pytorch/pytorch#177472: the usual cure, NVLS off for ever, hides a fabric manager that needs mending."""
    verdict = diagnose(BIND.format(place=place, wording=wording))
    assert verdict.diagnosis_class == "gpu.nvswitch_fatal"
    assert verdict.alarm
    assert "host:hgx3" in verdict.culprit.split(",")


def test_too_many_multicast_groups_are_no_fault_of_the_switches() -> None:
    wording = "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 2 'out of memory'."
    assert diagnose(BIND.format(place="nvls.cc:398", wording=wording)).diagnosis_class != "gpu.nvswitch_fatal"


def test_switching_multicast_off_is_reported_as_hiding_a_fault_and_leaving_it_on_is_not() -> None:
    assert "hides a fault of fabric manager or NVSwitch" in (harm_of("NCCL_NVLS_ENABLE", "0", "2.29.3") or "")
    assert harm_of("NCCL_NVLS_ENABLE", "1", "2.29.3") is None
