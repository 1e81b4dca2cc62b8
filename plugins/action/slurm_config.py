"""Action plugin: compute Slurm's files once from the documents of all hosts, then let the module write them."""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.action import ActionBase

from ..module_utils.rackweave.cli.documents import load_documents
from ..module_utils.rackweave.errors import RackweaveError
from ..module_utils.rackweave.slurm.accounting import accounting_parameters
from ..module_utils.rackweave.slurm.config import MissingDocumentsError, SlurmSite, slurm_files
from ..module_utils.rackweave.slurm.expectations import node_expectations
from ..module_utils.rackweave.slurm.versions import version_pair

ARGUMENT_SPEC = {
    "documents_dir": {"type": "path", "required": True},
    "hosts": {"type": "list", "elements": "str", "required": True},
    "cluster_name": {"type": "str", "required": True},
    "controller": {"type": "str", "required": True},
    "parameters": {"type": "dict", "default": {}},
    "cgroup": {"type": "dict", "default": {}},
    "partitions": {"type": "dict", "default": {}},
    "memory_margin_percent": {"type": "float", "default": 2.0},
    "mem_spec_limit_mib": {"type": "int", "default": 0},
    "hooks": {"type": "dict", "default": {}},
    "dbd_host": {"type": "str", "default": ""},
    "topology": {"type": "dict", "default": {}},
    "topology_block_sizes": {"type": "list", "elements": "int", "default": []},
    "topology_from_networks": {"type": "bool", "default": False},
    "hosts_here": {"type": "list", "elements": "str"},
    "version": {"type": "str", "default": ""},
    "directory": {"type": "path", "default": "/etc/slurm"},
    "mark": {"type": "path", "default": "/run/rackweave-slurm-due"},
    "adopt_ok": {"type": "bool", "default": False},
}


class ActionModule(ActionBase):
    """Render slurm.conf, gres.conf, cgroup.conf and the topology, and write them on the host of the task."""

    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(ARGUMENT_SPEC)
        try:
            documents = load_documents(Path(args["documents_dir"]))
            files = slurm_files(_site(args), documents)
            nodes = node_expectations(args["hosts"], documents, args["memory_margin_percent"])
        except MissingDocumentsError as exc:
            if not self._task.check_mode:
                return {**result, "failed": True, "msg": str(exc)}
            # A first run in check mode has observed the nodes but keeps no documents: all files would be new.
            return {**result, "changed": True, "action": "none", "files_changed": [], "msg": f"not foreseen: {exc}"}
        except RackweaveError as exc:
            return {**result, "failed": True, "msg": str(exc)}
        here = args["hosts"] if args["hosts_here"] is None else args["hosts_here"]
        module_args = {
            "files": files,
            "absent": [host for host in args["hosts"] if host not in set(here)],
            **{key: args[key] for key in ("directory", "mark", "adopt_ok", "version")},
        }
        written = self._execute_module("rackweave.cluster.slurm_config", module_args=module_args, task_vars=task_vars)
        return {**result, **written, "nodes": nodes}


def _site(args):
    return SlurmSite(
        cluster_name=args["cluster_name"],
        controller=args["controller"],
        hosts=tuple(args["hosts"]),
        parameters=args["parameters"],
        cgroup=args["cgroup"],
        partitions=args["partitions"],
        memory_margin_percent=args["memory_margin_percent"],
        mem_spec_limit_mib=args["mem_spec_limit_mib"],
        base={**args["hooks"], **accounting_parameters(args["dbd_host"], bool(args["dbd_host"]))},
        topology=args["topology"],
        topology_block_sizes=tuple(args["topology_block_sizes"]),
        topology_from_networks=args["topology_from_networks"],
        version=version_pair(args["version"]),
    )
