"""Words of alarm that another line, or the rest of the same line, takes back; each beside one that nothing does."""

from __future__ import annotations

import pytest
from rackweave.watch.verdict import diagnose

LOST = (
    "Jan  4 10:00:01 host4 kernel: [90.1] Lustre: fs1-MDT0000-mdc-ffff81: Connection to fs1-MDT0000 "
    "(at 192.0.2.7@tcp) was lost; in progress operations using this service will wait for recovery "
    "to complete"
)
SLOW = (
    "Jan  4 10:00:07 host4 kernel: [96.2] Lustre: 41:0:(client.c:2116:ptlrpc_expire_one_request()) "
    "@@@ Request sent has timed out for slow reply: [sent 1/real 1]"
)
BACK = (
    "Jan  4 10:00:12 host4 kernel: [101.0] Lustre: fs1-MDT0000-mdc-ffff81: Connection restored to "
    "192.0.2.7@tcp (at 192.0.2.7@tcp)"
)
NOTHING = (
    "Jan 04 10:00:00 host4 nv-fabricmanager[81]: request to query NVSwitch device information from "
    "NVSwitch driver failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]"
)
EXITED = (
    "Jan 04 10:00:01 {host} systemd[1]: nvidia-fabricmanager.service: Control process exited, "
    "code=exited, status=1/FAILURE"
)


def test_a_request_of_lustre_that_timed_out_is_over_once_the_host_is_connected_again() -> None:
    assert not diagnose([LOST, SLOW, BACK]).alarm
    assert diagnose([LOST, SLOW]).diagnosis_class == "storage.unresponsive"
    assert diagnose([SLOW]).diagnosis_class == "storage.unresponsive"


def test_another_target_that_stays_away_is_still_told_after_one_is_back() -> None:
    other = LOST.replace("fs1-MDT0000", "fs1-OST0003")
    assert diagnose([LOST, other, SLOW, BACK]).culprit == "host:host4"


@pytest.mark.parametrize(
    "line",
    [
        "[sample 4] prompt: 'Why does tar say No space left on device?'",
        "[sample 4] output: 'It's full: No space left on device'",
        'example 12: answer: "CUDA out of memory. Tried to allocate 2 GiB"',
        "{'prompt': 'RuntimeError: CUDA error: an illegal memory access was encountered'}",
    ],
)
def test_a_printed_sample_is_no_report(line: str) -> None:
    assert not diagnose(line).alarm


@pytest.mark.parametrize(
    "line",
    [
        "sample 4 failed: OSError: [Errno 28] No space left on device: '/ckpt/a'",
        "[sample 4] prompt: 'a b c' OSError: [Errno 28] No space left on device: '/ckpt/a'",
    ],
)
def test_a_report_beside_a_sample_is_one(line: str) -> None:
    assert diagnose(line).diagnosis_class == "ckpt.write_failed"


def _steps(rates: tuple[float, float]) -> list[str]:
    seconds = [10.0] * 20 + [20.0] * 10
    return [
        f" [2026-01-01 10:{at:02d}:00] iteration {at:8d}/ 9000 | elapsed time per iteration (ms): {1000 * time:.1f} | "
        f"throughput per GPU (TFLOP/s/GPU): {rates[time > 10]:.1f} | lm loss: 2.310000E+00 |"
        for at, time in enumerate(seconds, 1)
    ]


def test_longer_steps_at_the_same_rate_of_operations_are_no_slowdown() -> None:
    assert not diagnose(_steps((420.0, 418.0))).alarm
    assert diagnose(_steps((420.0, 210.0))).diagnosis_class == "perf.slowdown"


def test_fabric_manager_may_fail_where_it_has_nothing_to_do() -> None:
    assert not diagnose([NOTHING, EXITED.format(host="host4")]).alarm
    other = diagnose([NOTHING, EXITED.format(host="host5")])
    assert (other.diagnosis_class, other.culprit) == ("gpu.nvswitch_fatal", "host:host5")


def test_what_nvidia_smi_says_of_a_gpu_is_explained_by_the_kernel() -> None:
    handle = (
        "2026-01-04T08:01:00Z host4 nvidia-smi: Unable to determine the device handle for GPU1: "
        "0000:3B:00.0: Unknown Error"
    )
    gsp = (
        "2026-01-04T08:00:00Z host4 kernel: NVRM: Xid (PCI:0000:3b:00): 119, pid=8, name=python3, "
        "Timeout after 45s of waiting for RPC response from GPU1 GSP!"
    )
    lost = (
        "2026-01-04T08:00:00Z host4 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=8, name=python3, GPU "
        "has fallen off the bus."
    )
    assert diagnose([gsp, handle]).diagnosis_class == "gpu.gsp_timeout"
    assert diagnose([lost, handle]).diagnosis_class == "gpu.fallen_off_bus"
    assert diagnose([handle]).diagnosis_class == "gpu.fallen_off_bus"
