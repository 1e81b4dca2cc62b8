"""Figures of the diagnosis: seconds for 20 MB, memory for a long stream. Prints, asserts nothing timed.

``RACKWEAVE_BENCH_MEGABYTES=2048 pytest -m benchmark -s`` reads 2 GB.
"""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Iterator

import pytest
from rackweave.watch.verdict import diagnose

FAULT = b"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity\n"


def _training(megabytes: int) -> Iterator[bytes]:
    """Step lines, NCCL INFO lines and free text of 64 hosts, as a long job writes them."""
    chance = random.Random(1)
    step = 0
    for _ in range(megabytes):
        lines: list[str] = []
        size = 0
        while size < 1 << 20:
            step += 1
            clock = f"{step // 3600 % 24:02d}:{step // 60 % 60:02d}:{step % 60:02d}"
            lines.append(
                f" [2026-08-02 {clock}.100000] iteration {step:8d}/  250000 | consumed samples: {step * 1024:12d} | "
                f"elapsed time per iteration (ms): {9100 + chance.random() * 40:.1f} | learning rate: 1.480000E-04 | "
                f"global batch size:  1024 | lm loss: {2.3 + chance.random() * 0.02:.6E} | loss scale: 1.0 | "
                f"grad norm: {0.4 + chance.random() * 0.02:.3f} | number of skipped iterations:   0 | "
                "number of nan iterations:   0 |"
            )
            for gpu in range(6):
                ranks = f"{chance.randrange(64)}[{gpu}] -> {chance.randrange(64)}[{gpu}]"
                lines.append(
                    f"node{chance.randrange(64):02d}:{chance.randrange(9999)}:{chance.randrange(99)} [{gpu}] NCCL INFO "
                    f"Channel {gpu:02d}/0 : {ranks} [send] via NET/IB/{gpu}/GDRDMA"
                )
            lines.append(f"[2026-08-02 10:00:00,000] [INFO] [data.py:88:next] [Rank 0] shard {step % 128} ready")
            size += sum(map(len, lines[-8:])) + 8
        yield ("\n".join(lines) + "\n").encode()


@pytest.mark.benchmark
@pytest.mark.timeout(3600)
def test_print_seconds_and_memory_of_a_long_log(capsys: pytest.CaptureFixture[str]) -> None:
    megabytes = int(os.environ.get("RACKWEAVE_BENCH_MEGABYTES", "20"))
    chunks = list(_training(min(megabytes, 20)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def stream() -> Iterator[bytes]:
        for number in range(megabytes):
            yield chunks[number % len(chunks)]
        yield FAULT

    began = time.process_time()
    verdict = diagnose(stream())
    seconds = time.process_time() - began
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    with capsys.disabled():
        print(f"\n{megabytes} MB: {seconds:.2f} s of CPU, {grown / 1024:.0f} MiB more, {verdict.diagnosis_class}")  # noqa: T201
    assert verdict.diagnosis_class == "mem.cuda_oom"
