"""Action plugin: compute Slurm's files once from the documents of all hosts, then let the module write them."""

from __future__ import annotations

from pathlib import Path

from ansible.plugins.action import ActionBase

from ..module_utils.rackweave.cli.documents import load_documents
from ..module_utils.rackweave.errors import RackweaveError
from ..module_utils.rackweave.slurm.config import MissingDocumentsError, SlurmSite, slurm_files, version_pair

ARGUMENT_SPEC = {
    "documents_dir": {"type": "path", "required": True},
    "hosts": {"type": "list", "elements": "str", "required": True},
    "cluster_name": {"type": "str", "required": True},
    "controller": {"type": "str", "required": True},
    "parameters": {"type": "dict", "default": {}},
    "cgroup": {"type": "dict", "default": {}},
    "partitions": {"type": "dict", "default": {}},
    "memory_margin_percent": {"type": "float", "default": 2.0},
    "version": {"type": "str", "default": ""},
    "directory": {"type": "path", "default": "/etc/slurm"},
    "mark": {"type": "path", "default": "/run/rackweave-slurm-due"},
    "adopt_ok": {"type": "bool", "default": False},
}


class ActionModule(ActionBase):
    """Render slurm.conf, gres.conf and cgroup.conf and write them on the host of the task."""

    _supports_check_mode = True

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(ARGUMENT_SPEC)
        site = SlurmSite(
            cluster_name=args["cluster_name"],
            controller=args["controller"],
            hosts=tuple(args["hosts"]),
            parameters=args["parameters"],
            cgroup=args["cgroup"],
            partitions=args["partitions"],
            memory_margin_percent=args["memory_margin_percent"],
            version=version_pair(args["version"]),
        )
        try:
            files = slurm_files(site, load_documents(Path(args["documents_dir"])))
        except MissingDocumentsError as exc:
            if not self._task.check_mode:
                return {**result, "failed": True, "msg": str(exc)}
            # A first run in check mode has observed the nodes but keeps no documents: all files would be new.
            return {**result, "changed": True, "action": "none", "files_changed": [], "msg": f"not foreseen: {exc}"}
        except RackweaveError as exc:
            return {**result, "failed": True, "msg": str(exc)}
        module_args = {"files": files, **{key: args[key] for key in ("directory", "mark", "adopt_ok")}}
        return {
            **result,
            **self._execute_module("rackweave.cluster.slurm_config", module_args=module_args, task_vars=task_vars),
        }
