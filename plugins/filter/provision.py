"""Filters for the roles that change nodes: names of pure functions of ``rackweave.provision``, nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from ansible.errors import AnsibleFilterError

from ..module_utils.rackweave.errors import RackweaveError
from ..module_utils.rackweave.plan import support
from ..module_utils.rackweave.provision import (
    engine,
    gate,
    gpu,
    inventory,
    kernel,
    proxy,
    qos,
    repositories,
    runtime,
    storage,
    transactions,
    units,
    users,
    versions,
)


def _said_plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn our own errors into the template error that Ansible shows, without a traceback."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except RackweaveError as exc:
            raise AnsibleFilterError(str(exc)) from exc

    return call


def _fabric_manager_decision(facts: Mapping[str, Any], state: str) -> dict[str, object]:
    return gpu.fabric_manager_decision(gpu.pci_devices(facts["pci"]), state)


def _gpudirect(_value: object, **options: Any) -> dict[str, object]:
    return gpu.gpudirect_decision(**options)


def _gpu_count(facts: Mapping[str, Any]) -> int:
    return len(gpu.gpus(gpu.pci_devices(facts["pci"])))


def _runtime_conf(settings: Mapping[str, Any]) -> str:
    return runtime.runtime_conf(runtime.job_runtime(settings))


def _probe_findings(inside: str, outside: str) -> list[str]:
    return engine.probe_findings(engine.parse_probe(inside), engine.parse_probe(outside))


def _image_modules(_value: object) -> list[str]:
    return list(support.MODULES)


def _same_shared_view(
    results: Mapping[str, Mapping[str, Any]], submitted: str, submit_host: str, path: str
) -> list[str]:
    """Judge the results of ``slurp`` by host; a host without the file has no content."""
    seen = {host: result.get("content") for host, result in results.items()}
    return storage.check_same_view(submitted, seen, submit_host, path)


def _slurm_inventory(nodes: str, config: str, wanted: str = "", **options: Any) -> dict[str, object]:
    controller = inventory.Host(inventory.parse_slurm_controller(config))
    return inventory.inventory(_training_nodes(nodes, wanted), controller, **options)


def _slurm_gpus(nodes: str, wanted: str = "") -> dict[str, object]:
    """Return what the nodes that train are declared to be (``declared``), and the nodes that are left out."""
    chosen = _training_nodes(nodes, wanted)
    names = {host.name for host in chosen}
    others = [host.name for host in inventory.parse_slurm_nodes(nodes) if host.name not in names]
    return {"declared": inventory.declared_gpus(chosen), "left_out": others}


def _training_nodes(nodes: str, wanted: str) -> list[inventory.Host]:
    return inventory.training_nodes(inventory.parse_slurm_nodes(nodes), inventory.expand_hosts(wanted))


def _host_inventory(hosts: str, controller: str, **options: Any) -> dict[str, object]:
    compute: Sequence[inventory.Host] = inventory.hosts_named(inventory.expand_hosts(hosts))
    return inventory.inventory(compute, inventory.Host(controller), **options)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "require_driver_version": versions.require_driver_version,
    "driver_branch": versions.driver_branch,
    "upstream_version": versions.upstream_version,
    "equal_versions": versions.require_equal_versions,
    "apt_candidates": transactions.parse_apt_policy,
    "check_candidates": transactions.check_candidates,
    "packages_left_out": transactions.packages_left_out,
    "rpm_candidate": transactions.rpm_candidate,
    "stream_state": transactions.stream_state,
    "rpm_transaction": transactions.rpm_transaction,
    "check_driver_transaction": transactions.check_driver_transaction,
    "check_package_transaction": transactions.check_package_transaction,
    "installed_packages": transactions.parse_installed,
    "repoquery_candidates": transactions.parse_repoquery,
    "fabric_manager_decision": _fabric_manager_decision,
    "gpu_count": _gpu_count,
    "gpudirect": _gpudirect,
    "smi_library_version": gpu.smi_library_version,
    "first_version": gpu.first_version,
    "fabric_is_up": gpu.fabric_is_up,
    "driver_reboot_reasons": gpu.driver_reboot_reasons,
    "driver_library_mismatch": gpu.driver_library_mismatch,
    "peermem_rebuild": gpu.peermem_rebuild,
    "kernel_headers_missing": gpu.kernel_headers_missing,
    "kernel_findings": kernel.kernel_findings,
    "kernel_moved": kernel.kernel_moved,
    "newest_kernel": kernel.newest_kernel,
    "leftover_repositories": repositories.leftover_files,
    "check_repositories": repositories.check_repositories,
    "check_users": users.check_users,
    "kernel_arguments": kernel.check_kernel_arguments,
    "missing_arguments": kernel.missing_arguments,
    "arguments_absent": kernel.arguments_absent,
    "kernel_line_report": kernel.kernel_line_report,
    "initramfs_stale": kernel.initramfs_stale,
    "sysctl_lines": kernel.sysctl_lines,
    "sysctl_differences": kernel.sysctl_differences,
    "size_bytes": kernel.size_bytes,
    "base_reboot_reasons": kernel.base_reboot_reasons,
    "unit_setting": units.unit_setting,
    "unit_quoted": units.unit_quoted,
    "unit_command": units.unit_command,
    "proxy_environment": proxy.proxy_environment,
    "proxy_direct_hosts": proxy.direct_hosts,
    "in_container": gate.is_container,
    "reboot_decision": gate.reboot_decision,
    "collected_reboot": gate.collected_reboot,
    "pending_entries": gate.pending_entries,
    "guarded_entries": gate.guarded,
    "unproven_warning": gate.unproven_warning,
    "qos_document": qos.qos_document,
    "select_rdma_devices": qos.select_devices,
    "persistent_rdma_names": qos.persistent_names,
    "storage_mounts": storage.mounts,
    "fstab_lines": storage.fstab_lines,
    "mounted_wrongly": storage.mounted_wrongly,
    "absent_mounts": storage.absent_mounts,
    "directories_ready": storage.directories_ready,
    "nvme_discovery_lines": storage.discovery_lines,
    "same_shared_view": _same_shared_view,
    "storage_directories": storage.directories,
    "stripe_arguments": storage.stripe_arguments,
    "stripe_is_set": storage.stripe_is_set,
    "docker_daemon": engine.docker_daemon,
    "enroot_lines": engine.enroot_lines,
    "container_probe": engine.parse_probe,
    "container_probe_findings": _probe_findings,
    "job_runtime_conf": _runtime_conf,
    "image_modules": _image_modules,
    "trainer_pins": support.environment_pins,
    "support_findings": support.support_findings,
    "support_note": support.support_note,
    "slurm_inventory": _slurm_inventory,
    "slurm_gpus": _slurm_gpus,
    "host_inventory": _host_inventory,
}


class FilterModule:
    """The filters, by the name they have in templates."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name to function."""
        return {name: _said_plainly(function) for name, function in FUNCTIONS.items()}
