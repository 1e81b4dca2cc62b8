"""Action plugin: compute the parallel layout of a job once, on the controller, from the documents of all hosts."""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.action import ActionBase

from ..module_utils.rackweave.cli.calibrate import read_calibration
from ..module_utils.rackweave.cli.documents import load_documents, load_files
from ..module_utils.rackweave.cli.json_files import read_json
from ..module_utils.rackweave.errors import PlanError, RackweaveError
from ..module_utils.rackweave.fabric.block import read_fabric
from ..module_utils.rackweave.plan.cluster import Cluster
from ..module_utils.rackweave.plan.layout import plan_layout
from ..module_utils.rackweave.plan.request import (
    BACKENDS,
    ENGINES,
    OFFLOAD,
    PRECISIONS,
    RECOMPUTE,
    TASKS,
    LayoutRequest,
)

_SIZES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "virtual_pipeline_size",
    "data_parallel_size",
    "context_parallel_size",
    "expert_parallel_size",
    "micro_batch_size",
    "global_batch_size",
    "sequence_length",
    "zero_stage",
)
ARGUMENT_SPEC = {
    "model": {"type": "raw", "required": True},
    "documents_dir": {"type": "path"},
    "document_files": {"type": "dict"},
    "fabric": {"type": "dict"},
    "hosts": {"type": "list", "elements": "str"},
    "hardware_class": {"type": "dict"},
    **{name: {"type": "int"} for name in _SIZES},
    "sequence_parallel": {"type": "bool"},
    "recompute": {"type": "str", "choices": list(RECOMPUTE)},
    "offload": {"type": "str", "choices": list(OFFLOAD)},
    "engine": {"type": "str", "choices": list(ENGINES), "default": "megatron"},
    "precision": {"type": "str", "choices": list(PRECISIONS), "default": "bf16"},
    "backend": {"type": "str", "choices": list(BACKENDS), "default": "nccl"},
    "task": {"type": "str", "choices": list(TASKS), "default": "pretrain"},
    "stage_layers": {"type": "list", "elements": "int"},
    "cross_domain_tensor_parallel": {"type": "bool", "default": False},
    "run": {"type": "str", "default": "run"},
    "calibration": {"type": "path"},
}


class ActionModule(ActionBase):
    """Compute the parallel layout; nothing is changed anywhere."""

    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(
            ARGUMENT_SPEC,
            required_one_of=[["documents_dir", "document_files", "hardware_class"]],
            mutually_exclusive=[["documents_dir", "document_files"]],
            required_by={"hardware_class": "hosts"},
        )
        try:
            model = load_model(args.pop("model"))
            directory, files = args.pop("documents_dir"), args.pop("document_files")
            cluster = build_cluster(
                documents_of(directory, files), args.pop("hosts"), args.pop("hardware_class"), args.pop("fabric")
            )
            calibration = load_calibration(args.pop("calibration"))
            plan = plan_layout(cluster, model, LayoutRequest.from_mapping(args), calibration)
        except (RackweaveError, OSError) as error:
            return {**result, "failed": True, "msg": str(error)}
        if not plan.fits:
            return {**result, "failed": True, "msg": plan.reason, "layout": plan.as_dict()}
        return {**result, "changed": False, "layout": plan.as_dict(), "msg": plan.reason}


def load_model(model):
    """Return a preset name or a mapping; a path to a JSON file is read.

    Raises:
        DocumentError: if the file cannot be read or is not JSON.
    """
    return read_json(model) if isinstance(model, str) and model.endswith(".json") else model


def load_calibration(path):
    """Return the factors that `rackweave calibrate` stored; None where no file is named.

    Raises:
        RackweaveError: if the file cannot be read, or is not one.
    """
    return None if path is None else read_calibration(Path(path))


def build_cluster(documents, hosts, hardware_class, fabric=None):
    """Return the cluster from documents, in the order of hosts; the declared class stands in for hosts without one.

    Raises:
        RackweaveError: if a document, the class or the fabric block cannot be used.
    """
    if documents:
        block = None if fabric is None else read_fabric(fabric)
        return Cluster.from_documents(documents, hosts, block, hardware_class)
    if hardware_class is None:
        raise PlanError("there is no node document, and no hardware_class declared to plan with")
    return Cluster.declared(hosts, hardware_class)


def documents_of(directory, files):
    """Return the documents of a directory, or the named files by host; a missing directory holds none.

    Raises:
        DocumentError: if a document cannot be read.
    """
    if files is not None:
        return load_files({host: Path(path) for host, path in files.items()})
    return load_documents(Path(directory)) if directory else []
