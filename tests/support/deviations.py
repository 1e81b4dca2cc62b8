"""Deviations that are planted on nodes of the lab, how they are undone, and which check must name each."""

from __future__ import annotations

from dataclasses import dataclass

CONF = "/run/slurm/conf"
UNITS = "/etc/systemd/system"
LIMITS = "/etc/security/limits.d"
ROOT = "/run/fixture/root"
KEPT = "/root/planted"
RUN = "deviations"  # a made-up run whose plan the controller has


@dataclass(frozen=True)
class Deviation:
    """One deviation; `checks` are (test, host, further parameter). `outside`: done by the host in the node's mounts."""

    name: str
    host: str
    plant: str
    undo: str
    checks: tuple[tuple[str, str, str], ...]
    outside: bool = False


def edited(name: str, host: str, path: str, edit: str, *checks: tuple[str, str, str]) -> Deviation:
    """Return a deviation of one file, which is kept and put back with owner and mode."""
    kept = f"{KEPT}/{name.replace(' ', '-')}"
    # /etc/hosts of a container is a mount point, so content is put back into the file.
    undo = f"cat {kept} > {path} && chmod --reference={kept} {path}"
    return Deviation(name, host, f"cp -p {path} {kept} && {edit}", undo, checks)


def appended(name: str, host: str, path: str, line: str, test: str, parameter: str = "") -> Deviation:
    return edited(name, host, path, f"echo '{line}' >> {path}", (test, host, parameter))


SLURMD_PID = "$(systemctl show slurmd --value --property=MainPID)"
FILE_TEST = "test_slurmd_has_the_file_of_the_controller"
MUNGE_KEY = "/etc/munge/munge.key"
PLAN = f"/mnt/shared/runs/{RUN}/plan/nccl"

DEVIATIONS = (
    Deviation(
        # First, for it makes systemd read its units, which those below rely on not to happen.
        "another file limits slurmd", "gpu01",
        f"printf '[Service]\\nLimitMEMLOCK=32768\\n' > {UNITS}/slurmd.service.d/zz.conf && systemctl daemon-reload",
        f"rm {UNITS}/slurmd.service.d/zz.conf && systemctl daemon-reload && systemctl restart slurmd",
        (("test_slurmd_is_configured_without_a_limit", "gpu01", ""),),
    ),
    Deviation(
        "limit of the running slurmd lowered", "gpu01",
        f"prlimit --pid {SLURMD_PID} --memlock=65536:65536", "systemctl restart slurmd",
        (
            ("test_the_running_slurmd_has_the_limit_that_is_configured", "gpu01", ""),
            ("test_a_job_step_has_the_limit_that_slurmd_should_have", "gpu01", ""),
        ),
    ),
    Deviation(
        "settings of the slurmd unit removed", "gpu02",
        f"mv {UNITS}/slurmd.service.d/rackweave.conf {KEPT}/dropin",
        f"mv {KEPT}/dropin {UNITS}/slurmd.service.d/rackweave.conf && systemctl daemon-reload",
        (
            ("test_slurmd_has_its_settings_file", "gpu02", ""),
            ("test_the_units_in_force_are_those_on_disk", "gpu02", ""),
        ),
    ),
    Deviation(
        # In a directory that systemd knows: it remembers which ones there were when it last read its units.
        "unit of slurmd changed on disk only", "gpu01",
        f"printf '[Service]\\nNice=5\\n' > {UNITS}/slurmd.service.d/planted.conf",
        f"rm {UNITS}/slurmd.service.d/planted.conf && systemctl daemon-reload",
        (("test_the_units_in_force_are_those_on_disk", "gpu01", ""),),
    ),
    Deviation(
        # In a directory that was not there when systemd last read its units, which it does not report as changed.
        "unit of munge changed on disk only", "ctl",
        f"mkdir -p {UNITS}/munge.service.d && printf '[Service]\\nNice=5\\n' > {UNITS}/munge.service.d/planted.conf",
        f"rm -r {UNITS}/munge.service.d && systemctl daemon-reload",
        (("test_the_units_in_force_are_those_on_disk", "ctl", ""),),
    ),
    Deviation(
        "slurmd not started at boot", "gpu01",
        f"mv {UNITS}/multi-user.target.wants/slurmd.service {KEPT}/wants",
        f"mv {KEPT}/wants {UNITS}/multi-user.target.wants/slurmd.service",
        (("test_the_units_of_the_cluster_start_at_boot", "gpu01", ""),),
    ),
    Deviation(
        "a unit failed", "ctl",
        "systemd-run --quiet --unit=planted /bin/sh -c 'echo out of order; exit 3'; sleep 0.5",
        "systemctl reset-failed planted", (("test_no_unit_has_failed", "ctl", ""),),
    ),
    Deviation(
        "network settings not applied at boot", "gpu02",
        f"mv {UNITS}/multi-user.target.wants/rackweave-rdma-qos.service {KEPT}/qos",
        f"mv {KEPT}/qos {UNITS}/multi-user.target.wants/rackweave-rdma-qos.service",
        (("test_the_settings_of_the_network_are_applied_at_every_boot", "gpu02", ""),),
    ),
    Deviation(
        "network settings lost", "gpu02", "mlnx_qos -i ens3np0 --trust pcp", "systemctl restart rackweave-rdma-qos",
        (("test_the_settings_of_the_network_are_in_force", "gpu02", ""),),
    ),
    edited(
        "fabric manager of another version", "gpu02", "/usr/local/sbin/nv-fabricmanager",
        "sed -i s/570.86.10/570.86.15/ /usr/local/sbin/nv-fabricmanager",
        ("test_the_fabric_manager_has_the_full_version_of_the_driver", "gpu02", ""),
    ),
    appended("slurm conf differs", "gpu01", f"{CONF}/slurm.conf", "# planted", FILE_TEST, "slurm.conf"),
    appended("gres conf differs", "gpu02", f"{CONF}/gres.conf", "# planted", FILE_TEST, "gres.conf"),
    appended("cgroup conf differs", "gpu01", f"{CONF}/cgroup.conf", "# planted", FILE_TEST, "cgroup.conf"),
    edited(
        "another munge key", "gpu01", MUNGE_KEY, f"dd if=/dev/urandom of={MUNGE_KEY} bs=1024 count=1 status=none",
        ("test_the_munge_key_is_one_key", "gpu01", ""),
    ),
    Deviation(
        "munge key readable by its group", "gpu02", f"chmod 0440 {MUNGE_KEY}", f"chmod 0400 {MUNGE_KEY}",
        (("test_only_munge_reads_the_munge_key", "gpu02", ""),),
    ),
    Deviation(
        "secret readable by everybody", "gpu02", "install -m 0644 /dev/null /etc/slurm/planted.key",
        "rm /etc/slurm/planted.key", (("test_no_secret_is_readable_by_others", "gpu02", ""),),
    ),
    edited(
        "limit of logins lowered", "gpu01", f"{LIMITS}/90-rackweave.conf",
        f"sed -i s/unlimited/8192/ {LIMITS}/90-rackweave.conf",
        ("test_locked_memory_of_logins_is_configured", "gpu01", ""),
    ),
    Deviation(
        "another file limits logins", "gpu02", f"echo '* hard memlock 64' > {LIMITS}/99-site.conf",
        f"rm {LIMITS}/99-site.conf", (("test_no_other_file_limits_locked_memory_of_logins", "gpu02", ""),),
    ),
    Deviation(
        "limit of services removed", "ctl", f"mv /etc/systemd/system.conf.d/90-rackweave.conf {KEPT}/system",
        f"mv {KEPT}/system /etc/systemd/system.conf.d/90-rackweave.conf",
        (("test_locked_memory_of_services_is_configured", "ctl", ""),),
    ),
    Deviation(
        "another file limits services", "gpu02",
        "printf '[Manager]\\nDefaultLimitMEMLOCK=65536\\n' > /etc/systemd/system.conf.d/99-site.conf",
        "rm /etc/systemd/system.conf.d/99-site.conf",
        (("test_no_other_file_limits_locked_memory_of_services", "gpu02", ""),),
    ),
    Deviation(
        "shared memory too small", "gpu01",
        "mount -o remount,size=64m /dev/shm", "mount -o remount,size=1024m /dev/shm",
        (("test_shared_memory_is_as_large_as_the_node_document_says", "gpu01", ""),), outside=True,
    ),
    Deviation(
        "shared directory not writable", "gpu02", "mount -o remount,bind,ro /mnt/shared",
        "mount -o remount,bind,rw /mnt/shared",
        (("test_a_step_writes_to_the_shared_directory", "gpu02", ""),), outside=True,
    ),
    edited(
        "wrong address of a node", "gpu02", "/etc/hosts",
        "sed 's/^10.89.77.21 .*/10.89.77.99 gpu01/' /etc/hosts > /tmp/h; cat /tmp/h > /etc/hosts; rm /tmp/h",
        ("test_every_node_finds_the_others_by_name", "gpu02", ""),
    ),
    edited(
        "machine id of another node", "gpu02", "/etc/machine-id",
        "echo 00000000000000000000000000000001 > /etc/machine-id",
        ("test_no_two_hosts_have_one_machine_id", "gpu02", ""), ("test_no_two_hosts_have_one_machine_id", "gpu01", ""),
    ),
    edited("machine id copied", "gpu01", "/etc/machine-id", "echo 00000000000000000000000000000001 > /etc/machine-id"),
    Deviation(
        "a GPU gone", "gpu02", "mv /dev/nvidia3 /dev/planted", "mv /dev/planted /dev/nvidia3",
        (("test_every_gpu_of_the_node_document_has_its_device_file", "gpu02", ""),),
    ),
    edited(
        "NCCL file edited", "ctl", f"{PLAN}/gpu01.conf",
        f"sed -i 's/^NCCL_DEBUG=.*/NCCL_DEBUG = INFO/' {PLAN}/gpu01.conf",
        ("test_the_nccl_files_say_what_was_planned", "gpu01", ""),
    ),
    edited(
        "version of a trainer package changed", "ctl", "/mnt/shared/venv/lib/python3.11/site-packages/numpy-*/METADATA",
        "sed -i 's/^Version: .*/Version: 1.0.0/' /mnt/shared/venv/lib/python3.11/site-packages/numpy-*/METADATA",
        ("test_the_trainers_packages_are_those_pinned", "gpu01", ""),
        ("test_the_trainers_packages_are_those_pinned", "gpu02", ""),
    ),
)  # fmt: skip
