"""``rackweave plan``: lay a model out on a cluster and print the plan, a table, or JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..plan.cluster import Cluster
from ..plan.layout import Plan, plan_layout, sizes_as_dict
from ..plan.request import BACKENDS, ENGINES, OFFLOAD, PRECISIONS, RECOMPUTE, TASKS, LayoutRequest
from ..plan.sizing import Hardware, size_task
from .calibrate import read_calibration
from .documents import read_file
from .json_files import read_json, replace_file

HELP = "Lay a model out on a cluster: sizes, placement, memory, time, and the reasons."

_SIZES = (
    "tensor-parallel-size",
    "pipeline-parallel-size",
    "virtual-pipeline-size",
    "data-parallel-size",
    "context-parallel-size",
    "expert-parallel-size",
    "micro-batch-size",
    "global-batch-size",
    "sequence-length",
    "zero-stage",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the subcommand."""
    parser.add_argument("--model", required=True, help="a preset (llama3-70b) or a JSON file")
    parser.add_argument("--cluster", required=True, help="HOSTSxGPUSxPRODUCT (4x8xH100) or a directory of documents")
    for name in _SIZES:
        parser.add_argument(f"--{name}", type=int, metavar="N")
    parser.add_argument("--recompute", choices=RECOMPUTE)
    parser.add_argument("--offload", choices=OFFLOAD)
    parser.add_argument("--engine", choices=ENGINES, default="megatron")
    parser.add_argument("--precision", choices=PRECISIONS, default="bf16")
    parser.add_argument("--backend", choices=BACKENDS, default="nccl", help="of the trainer, for --engine trainer")
    parser.add_argument("--task", choices=TASKS, default="pretrain")
    parser.add_argument("--no-sequence-parallel", action="store_true")
    parser.add_argument("--cross-domain-tensor-parallel", action="store_true")
    parser.add_argument("--stage-layers", type=_whole_numbers, metavar="N,N,…", help="layers of each pipeline stage")
    parser.add_argument("--calibration", type=Path, metavar="FILE", help="factors stored by `rackweave calibrate`")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the picture of the plan")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the plan; 0 if it fits, 1 if it does not."""
    cluster, model, wish = read_cluster(arguments.cluster), read_model(arguments.model), request_of(arguments)
    calibration = read_calibration(arguments.calibration) if arguments.calibration else None
    plan = plan_layout(cluster, model, wish, calibration)
    sizing = sizing_of(cluster, plan, wish)
    if arguments.html:
        # The page is imported only when it is asked for: planning alone must stay fast.
        from ..report.plan_page import render_plan_page

        replace_file(arguments.html, render_plan_page(plan, sizing))
    if arguments.json:
        sys.stdout.write(json.dumps({**plan.as_dict(), "task": wish.task, "sizing": sizing}) + "\n")
    else:
        sys.stdout.write(as_text(plan, sizing))
    return 0 if plan.fits else 1


def sizing_of(cluster: Cluster, plan: Plan, wish: LayoutRequest) -> dict[str, Any]:
    """Return the `sizing` object: the memory of the task over all GPUs, and how many of these GPUs hold it."""
    hardware = None
    if cluster.gpu is not None:
        memory = cluster.gpu_memory_bytes or cluster.gpu.memory_bytes
        hardware = Hardware(cluster.gpu.name, memory, cluster.gpus_per_host)
    return size_task(plan.model, wish.task, hardware, wish.sequence_length, wish.micro_batch_size).as_dict()


def _whole_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers such as 7,8,8,7") from None


def request_of(arguments: argparse.Namespace) -> LayoutRequest:
    """Return the request that the arguments spell."""
    values: dict[str, Any] = {name.replace("-", "_"): getattr(arguments, name.replace("-", "_")) for name in _SIZES}
    for name in ("recompute", "offload", "engine", "precision", "backend", "task"):
        values[name] = getattr(arguments, name)
    for name in ("cross_domain_tensor_parallel", "stage_layers"):
        values[name] = getattr(arguments, name)
    values["sequence_parallel"] = False if arguments.no_sequence_parallel else None
    return LayoutRequest.from_mapping(values)


def read_model(text: str) -> Any:
    """Return a preset name, or the mapping of a JSON file."""
    path = Path(text)
    if path.suffix == ".json" or (path.exists() and not path.is_dir()):  # a pipe too: --model <(jq …)
        return read_json(path)
    return text


def read_cluster(text: str) -> Cluster:
    """Return the cluster of a shorthand or of a directory of node documents."""
    directory = Path(text)
    if directory.is_dir():
        return Cluster.from_documents(read_file(path) for path in sorted(directory.glob("*.json")))
    return Cluster.from_shorthand(text)


def as_text(plan: Plan, sizing: dict[str, Any]) -> str:
    """Return the plan for people: sizes, memory, time, the best layouts and the rejected, and the tables."""
    lines = [plan.reason, ""]
    lines += [f"  {key:24} {value}" for key, value in sizes_as_dict(plan.layout).items()]
    if plan.memory and plan.prediction and plan.reliability:
        lines += ["", *_prediction_lines(plan.memory, plan.prediction, plan.reliability)]
        lines += ["", "reasons", *(f"  {line}" for line in plan.prediction["explanation"])]
        for name, title in (("zero_table", "ZeRO-2 or ZeRO-3?"), ("offload_table", "offload or more nodes?")):
            lines += ["", title, *_option_lines(plan.prediction[name])]
        lines += ["", *(f"note: {note}" for note in plan.prediction["notes"])]
    if plan.rejected:
        lines += ["", "rejected", *(f"  {row['reason']}" for row in plan.rejected)]
    lines += ["", f"sizing of the task: {sizing['advice']}"]
    low, high = sizing["range_gb"]
    lines += [f"  {low:g} to {high:g} GB over all GPUs", *(f"  assumes {line}" for line in sizing["assumptions"])]
    return "\n".join(lines) + "\n"


def _prediction_lines(memory: dict[str, Any], prediction: dict[str, Any], reliability: dict[str, Any]) -> list[str]:
    low, high = prediction["step_time_band_s"]
    use = ", ".join(f"{name} {value:.1%}" for name, value in prediction["mfu"].items() if value is not None)
    return [
        f"step time {prediction['step_time_s']:.4g} s (band {low:.4g} to {high:.4g}), "
        f"{prediction['tokens_per_second_per_gpu']:.5g} tokens/s per GPU",
        f"MFU by convention: {use}; HFU {prediction['hfu']:.1%}",
        f"memory: allocated {memory['allocated_gib']:.1f}, reserved {memory['reserved_gib']:.1f}, nvidia-smi "
        f"{memory['nvidia_smi_gib']:.1f} of {memory['limit_gib']:.1f} GiB "
        f"on stage {memory['worst_stage']}",
        f"failures: {reliability['failures_per_day']:.3g} a day; checkpoint {reliability['checkpoint_gb']:.4g} GB "
        f"every {reliability['checkpoint_interval_s']:.4g} s; "
        f"{reliability['effective_training_time_ratio']:.1%} of the time trains",
    ]


def _option_lines(rows: list[dict[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        if row["refused"]:
            lines.append(f"  {row['option']:22} refused: {row['refused']}")
        else:
            fits = "fits" if row["fits"] else "does not fit"
            lines.append(f"  {row['option']:22} {row['step_time_s']:10.4g} s {row['needed_gib']:8.1f} GiB  {fits}")
    return lines
