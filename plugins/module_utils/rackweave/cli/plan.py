"""``rackweave plan``: lay a model out on a cluster and print the plan, a table, or JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..errors import PlanError
from ..plan.cluster import Cluster
from ..plan.layout import Plan, plan_layout
from ..plan.request import ENGINES, OFFLOAD, PRECISIONS, RECOMPUTE, TASKS, LayoutRequest

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
    parser.add_argument("--task", choices=TASKS, default="pretrain")
    parser.add_argument("--no-sequence-parallel", action="store_true")
    parser.add_argument("--cross-domain-tensor-parallel", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the plan; 0 if it fits, 1 if it does not."""
    cluster = read_cluster(arguments.cluster)
    plan = plan_layout(cluster, read_model(arguments.model), request_of(arguments))
    if arguments.json:
        json.dump(plan.as_dict(), sys.stdout)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(as_text(plan))
    return 0 if plan.fits else 1


def request_of(arguments: argparse.Namespace) -> LayoutRequest:
    """Return the request that the arguments spell."""
    values: dict[str, Any] = {name.replace("-", "_"): getattr(arguments, name.replace("-", "_")) for name in _SIZES}
    for name in ("recompute", "offload", "engine", "precision", "task", "cross_domain_tensor_parallel"):
        values[name] = getattr(arguments, name)
    values["sequence_parallel"] = False if arguments.no_sequence_parallel else None
    return LayoutRequest.from_mapping(values)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        PlanError: if it cannot be read or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlanError(f"{path} cannot be read as JSON: {error}") from error


def read_model(text: str) -> Any:
    """Return a preset name, or the mapping of a JSON file."""
    path = Path(text)
    if path.suffix == ".json" or path.is_file():
        return read_json(path)
    return text


def read_cluster(text: str) -> Cluster:
    """Return the cluster of a shorthand or of a directory of node documents."""
    directory = Path(text)
    if directory.is_dir():
        return Cluster.from_documents(read_json(path) for path in sorted(directory.glob("*.json")))
    return Cluster.from_shorthand(text)


def as_text(plan: Plan) -> str:
    """Return the plan for people."""
    lines = [f"{key:24} {value}" for key, value in plan.as_dict()["sizes"].items()]
    return "\n".join([*lines, f"{'reason':24} {plan.reason}"]) + "\n"
