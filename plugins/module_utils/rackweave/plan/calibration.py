"""Factors that a cluster's own runs teach: measured over predicted step time and memory, per kind of cluster."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import PlanError
from .cluster import Cluster

SCHEMA = "rackweave.calibration/1"
# No figure of a run comes near it, and a larger whole number would be no float.
_LARGEST = 1e300
_WARM_UP_STEPS = 3  # first steps allocate, compile and open connections


@dataclass(frozen=True)
class Measurement:
    """One attempt: what was predicted and what its events say (seconds per step, GiB of one GPU)."""

    cluster: str
    predicted_s: float
    measured_s: float
    predicted_gib: float | None = None
    measured_gib: float | None = None


@dataclass(frozen=True)
class Calibration:
    """Factors per kind of cluster; a cluster without one keeps 1."""

    step_factors: Mapping[str, float]
    memory_factors: Mapping[str, float]

    def factor_for(self, cluster: Cluster) -> float:
        """Return measured over predicted step time on such a cluster."""
        return self.step_factors.get(cluster_key(cluster), 1.0)

    def memory_factor_for(self, cluster: Cluster) -> float:
        """Return measured over predicted allocated memory on such a cluster."""
        return self.memory_factors.get(cluster_key(cluster), 1.0)

    def as_dict(self) -> dict[str, Any]:
        """Return the calibration file."""
        return {
            "schema": SCHEMA,
            "step_factors": dict(self.step_factors),
            "memory_factors": dict(self.memory_factors),
        }

    @classmethod
    def from_mapping(cls, mapping: object) -> Calibration:
        """Read a calibration file.

        Raises:
            PlanError: if it is not one.
        """
        if not isinstance(mapping, Mapping) or mapping.get("schema") != SCHEMA:
            raise PlanError(f"the calibration file does not follow {SCHEMA}")
        parts = []
        for name in ("step_factors", "memory_factors"):
            values = mapping.get(name)
            if not isinstance(values, Mapping):
                raise PlanError(f"the calibration file lacks {name}")
            for key, value in values.items():
                if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < _LARGEST:
                    raise PlanError(f"the calibration file: {name}.{key}={value!r} must be a positive number")
            parts.append({str(key): float(value) for key, value in values.items()})
        return cls(parts[0], parts[1])


def cluster_key(cluster: Cluster) -> str:
    """Return what calibration is kept by: GPU, GPUs per host and network rate."""
    gpu = cluster.gpu.name if cluster.gpu else (cluster.hosts[0].gpu_product or "unknown")
    return f"{gpu} x{cluster.gpus_per_host} {cluster.nic_gbps_per_gpu or 0:g}Gb/s"


def plan_key(plan: Mapping[str, Any]) -> str:
    """Return the kind of cluster that a plan.json was made for."""
    prediction = plan.get("prediction")
    key = prediction.get("cluster_key") if isinstance(prediction, Mapping) else None
    if not isinstance(key, str):
        raise PlanError("the plan has no prediction to calibrate: it was made for GPUs that the catalog does not know")
    return key


def measure(plan: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> Measurement:
    """Return what one attempt measured, from its plan and its events.

    Raises:
        PlanError: if the plan predicts nothing, or the events hold too few steps.
    """
    key = plan_key(plan)
    steps = [event for event in events if event.get("kind") == "step" and _positive(event.get("step_time_s"))]
    steps = steps[_WARM_UP_STEPS:]
    if len(steps) < 3:
        raise PlanError(f"the attempt has {len(steps)} steps after {_WARM_UP_STEPS} of warm-up; at least 3 are needed")
    predicted = _uncalibrated(plan["prediction"], "step_time_s")
    if predicted is None:
        raise PlanError("the plan's prediction.step_time_s must be a positive number of seconds")
    peaks = [peak for peak in (_positive(event.get("peak_memory_gib")) for event in steps) if peak]
    return Measurement(
        cluster=key,
        predicted_s=predicted,
        measured_s=statistics.median(_positive(event["step_time_s"]) or 0.0 for event in steps),
        predicted_gib=_uncalibrated(plan.get("memory"), "allocated_gib") if peaks else None,
        measured_gib=max(peaks) if peaks else None,
    )


def _positive(value: object) -> float | None:
    """Return a positive finite number; None for anything else that a file may hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < _LARGEST:
        return None
    return float(value)


def _uncalibrated(figures: object, name: str) -> float | None:
    """Return a figure of the plan without the factor that it was made with; None where there is none."""
    if not isinstance(figures, Mapping):
        return None
    value = _positive(figures.get(name))
    return None if value is None else value / (_positive(figures.get("calibration_factor")) or 1.0)


def calibrate(measurements: Sequence[Measurement], known: Calibration | None = None) -> Calibration:
    """Return factors from measurements: the median ratio of each kind of cluster, beside what was known of others."""
    steps = dict(known.step_factors) if known else {}
    memories = dict(known.memory_factors) if known else {}
    for key in dict.fromkeys(item.cluster for item in measurements):
        mine = [item for item in measurements if item.cluster == key]
        steps[key] = statistics.median(item.measured_s / item.predicted_s for item in mine)
        sizes = [item.measured_gib / item.predicted_gib for item in mine if item.predicted_gib and item.measured_gib]
        if sizes:
            memories[key] = statistics.median(sizes)
    return Calibration(steps, memories)


def errors(measurements: Sequence[Measurement], calibration: Calibration | None) -> float:
    """Return the mean absolute step-time error of measurements in percent, with or without calibration."""
    return 100 * statistics.fmean(
        abs(
            item.predicted_s
            * (calibration.step_factors.get(item.cluster, 1.0) if calibration else 1.0)
            / item.measured_s
            - 1
        )
        for item in measurements
    )
