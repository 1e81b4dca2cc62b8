"""A Slurm that was there before: with `slurm_manage: false` nothing of it is touched, and the rest still works."""

import json

import pytest

from tests.support.lab import play

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]
FILES = (
    "find /etc/slurm /etc/munge /etc/systemd/system/slurmd.service.d /etc/rackweave /usr/local/libexec/rackweave "
    "/var/lib/rackweave -type f -exec sha256sum {} + 2>/dev/null | sort; "
    "systemctl show --property ActiveEnterTimestamp,UnitFileState munge slurmd slurmctld"
)
OTHER = json.dumps(
    {
        "slurm_manage": False,
        "slurm_parameters": {"SlurmdTimeout": 77},
        "slurm_cluster_name": "other",
        "slurm_topology": {"elsewhere": {"nodes": ["gpu01"]}},
        "slurm_health_interval_s": 7,
        "slurm_gpu_wait_s": 7,
    }
)


@pytest.fixture
def made_by_hand(lab):
    """The lab's own Slurm with the mark of ours taken out of its files, as an administrator would have written them."""
    mend = "for file in slurm gres cgroup topology; do sed -i '/Written by Rackweave/d' /etc/slurm/$file.conf; done"
    lab.ssh("ctl", f"cp -a /etc/slurm /root/slurm.before && {mend}")
    yield
    lab.ssh("ctl", "cp -a /root/slurm.before/. /etc/slurm/ && rm -r /root/slurm.before")


def test_no_file_and_no_service_of_an_existing_slurm_is_touched(lab, made_by_hand):
    before = {host: lab.ssh(host, FILES) for host in lab.addresses}
    play("playbooks/validate.yml", "-e", OTHER)
    play("playbooks/provision.yml", "-e", OTHER)
    assert {host: lab.ssh(host, FILES) for host in lab.addresses} == before
    assert lab.ssh("ctl", "runuser -u hpc -- srun --chdir=/tmp --nodes=2 hostname").split()
