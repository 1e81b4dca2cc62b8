"""Optional outputs of rank 0 beside events.jsonl: TensorBoard, Prometheus, a progress line, a profiler window."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch

from .config import JobConfig
from .errors import StopError

STEP_KEYS = ("loss", "grad_norm", "lr", "tokens_per_second", "tokens_per_second_per_gpu", "mfu", "peak_memory_gib")
NO_NUMBERS = ("loss", "grad_norm")
"""Keys that a record holds as None where the value was NaN or infinite; JSON has no word for these."""


class Exporter(Protocol):
    """Takes each step's record."""

    def begin(self, step: int) -> None:
        """Training goes on after `step`, 0 at its start."""

    def step(self, record: Mapping[str, Any]) -> None:
        """Take the record of a finished step."""

    def evaluation(self, step: int, loss: float) -> None:
        """Take a validation loss."""

    def close(self) -> None:
        """Write what is left."""


class TensorBoard:
    """Scalars under the keys of the step record."""

    def __init__(self, directory: Path) -> None:
        writer = _library("torch.utils.tensorboard", "telemetry.tensorboard", "tensorboard").SummaryWriter
        self._writer = writer(str(directory))

    def begin(self, step: int) -> None:
        return

    def step(self, record: Mapping[str, Any]) -> None:
        for key in (*STEP_KEYS, "step_time_s"):
            if record.get(key) is not None:
                self._writer.add_scalar(f"train/{key}", record[key], record["step"])

    def evaluation(self, step: int, loss: float) -> None:
        self._writer.add_scalar("validation/loss", loss, step)

    def close(self) -> None:
        self._writer.close()


class Prometheus:
    """Gauges on a port of rank 0's host, labelled with the run.

    A loss or norm that is no number is shown as such. It lasts one step only, which may lie between two looks of the
    reader, so such steps are counted as well.
    """

    def __init__(self, port: int, run: str, address: str) -> None:
        library = _library("prometheus_client", "telemetry.prometheus_port", "prometheus-client")
        self._registry = library.CollectorRegistry()
        names = ("step", *STEP_KEYS, "step_time_s", "validation_loss")
        self._gauges = {
            name: library.Gauge(f"rackweave_{name}", f"{name} of the last step", ["run"], registry=self._registry)
            for name in names
        }
        self._not_finite = library.Counter(
            "rackweave_steps_not_finite", "steps whose loss was no number", ["run"], registry=self._registry
        )
        self._run = run
        self._not_finite.labels(run)  # at 0 from the beginning: an increase needs a value before it
        try:
            self._server, _ = library.start_http_server(port, address.strip("[]"), registry=self._registry)
        except OSError as error:
            raise StopError(
                f"telemetry.prometheus_port={port} cannot be opened at telemetry.prometheus_address={address}: "
                f"{error}; set training_job_prometheus_address to an address of the host that has rank 0"
            ) from error

    def begin(self, step: int) -> None:
        return

    def step(self, record: Mapping[str, Any]) -> None:
        for name, gauge in self._gauges.items():
            value = record.get(name)
            if value is None and name in NO_NUMBERS and name in record:
                value = math.nan
            if value is not None:
                gauge.labels(self._run).set(value)
        if record.get("loss", 0.0) is None:
            self._not_finite.labels(self._run).inc()

    def evaluation(self, step: int, loss: float) -> None:
        self._gauges["validation_loss"].labels(self._run).set(loss)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class ProgressLine:
    """One line that is written over, for a person at a terminal."""

    def __init__(self, steps: int) -> None:
        self._steps, self._began, self._first = steps, time.monotonic(), None

    def begin(self, step: int) -> None:
        return

    def step(self, record: Mapping[str, Any]) -> None:
        step = int(record["step"])
        first = self._first = step if self._first is None else self._first
        rate = (time.monotonic() - self._began) / (step - first + 1)
        loss = "no number" if record["loss"] is None else f"{record['loss']:.4f}"
        left_s = rate * (self._steps - step)
        text = (
            f"step {step}/{self._steps}  loss {loss}  {record['tokens_per_second']:.0f} tokens/s  {left_s:.0f} s left"
        )
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()

    def evaluation(self, step: int, loss: float) -> None:
        sys.stderr.write(f"\r\x1b[Kstep {step}  validation loss {loss:.4f}\n")

    def close(self) -> None:
        sys.stderr.write("\n")

    _first: int | None


class ProfilerWindow:
    """Traces the steps from the first to the last of `profile_steps` into `profile/0.json` (Chrome's format)."""

    def __init__(self, steps: tuple[int, ...], path: Path) -> None:
        self._first, self._last, self._path = min(steps), max(steps), path
        self._profiler: torch.profiler.profile | None = None

    @property
    def running(self) -> bool:
        """Whether what runs now is traced."""
        return self._profiler is not None

    def begin(self, step: int) -> None:
        if step == self._first - 1:
            self._profiler = torch.profiler.profile()
            self._profiler.start()

    def step(self, record: Mapping[str, Any]) -> None:
        step = int(record["step"])
        if step >= self._last:
            self.close()
        self.begin(step)

    def evaluation(self, step: int, loss: float) -> None:
        return

    def close(self) -> None:
        if self._profiler is None:
            return
        self._profiler.stop()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._profiler.export_chrome_trace(str(self._path))
        self._profiler = None


def open_exporters(job: JobConfig, rank: int) -> list[Exporter]:
    """Return what the configuration asks for on rank 0, nothing on the others.

    Raises:
        StopError: if a library is missing or a port is taken.
    """
    if rank != 0:
        return []
    telemetry = job.train.telemetry
    exporters: list[Exporter] = []
    if telemetry.tensorboard:
        exporters.append(TensorBoard(job.attempt / "tensorboard"))
    if telemetry.prometheus_port is not None:
        exporters.append(Prometheus(telemetry.prometheus_port, job.train.run, telemetry.prometheus_address))
    if telemetry.profile_steps:
        exporters.append(ProfilerWindow(telemetry.profile_steps, job.attempt / "profile" / "0.json"))
    if sys.stderr.isatty():
        exporters.append(ProgressLine(job.train.steps))
    return exporters


def _library(module: str, key: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise StopError(f"{key} needs the Python package {package}, which is not installed") from None
