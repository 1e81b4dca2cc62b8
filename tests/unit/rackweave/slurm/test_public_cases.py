"""Cases that people reported in public about Slurm's files, with host names of our own; each is one claim."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rackweave.provision.inventory import expand_hosts
from rackweave.slurm.change import ACTIONS, config_change
from rackweave.slurm.config import SlurmSite, slurm_files
from rackweave.slurm.hardware import configured_memory_mib, gpu_type
from rackweave.slurm.hostlist import compress
from rackweave.slurm.munge import SlurmError

from tests.support.slurm_nodes import h100_node, node

ROLE = Path(__file__).resolve().parents[4] / "roles/slurm"
SITE = SlurmSite("prod", "ctl01", ("hgx-01", "hgx-02"), partitions={"training": {}}, version=(22, 5))
NODES = [h100_node("hgx-01"), h100_node("hgx-02")]


def test_invalid_core_specification():
    """NVIDIA/deepops#1195: thread numbers of the kernel in gres.conf; a core index is at most sockets times cores."""
    rows = [row for row in slurm_files(SITE, NODES)["gres.conf"].splitlines() if "Cores=" in row]
    assert rows
    assert all(int(number) < 112 for row in rows for number in re.search(r"Cores=(\S+)", row)[1].split("-"))


def test_gpus_that_come_late_at_boot():
    """awslabs/awsome-distributed-ai#195: slurmd counts the GPUs before the driver has made their files."""
    unit = (ROLE / "templates/slurmd.conf.j2").read_text()
    assert "After=nvidia-persistenced.service" in unit
    assert re.search(r"ExecStartPre=-.+/slurm-health wait \{\{ slurm_gpu_wait_s \}\}", unit)


def test_type_that_is_no_piece_of_the_detected_name():
    """SlinkyProject/slurm-operator#111: ``gpu:h100:8`` against ``nvidia_h100_80gb_hbm3``."""
    assert gpu_type("NVIDIA H100 80GB HBM3") in "nvidia_h100_80gb_hbm3"


def test_controller_without_the_lines_of_its_nodes():
    """BiBiServ/bibigrid#726: gres.conf on nodes only; here one file lies on the controller, and nodes fetch it."""
    files = slurm_files(SITE, NODES)
    assert "SlurmctldParameters=enable_configless" in files["slurm.conf"]
    assert "NodeName=hgx-[01-02] Name=gpu" in files["gres.conf"]


def test_job_that_sees_the_gpus_of_others():
    """NVIDIA/pyxis#47: without ConstrainDevices a job with one GPU sees all of them."""
    cgroup = yaml.safe_load((ROLE / "defaults/main.yml").read_text())["slurm_cgroup"]
    assert "ConstrainDevices=yes" in slurm_files(replace(SITE, cgroup=cgroup), NODES)["cgroup.conf"]


def test_memory_above_what_the_node_reports():
    """aws/aws-parallelcluster#1517, Azure/az-hop#686: 435161 MiB reported, 443596 configured."""
    small = replace(h100_node("hgx-02", 435161), gpus=NODES[1].gpus)
    text = slurm_files(SITE, [h100_node("hgx-01", 443596), small])["slurm.conf"]
    assert int(re.search(r"RealMemory=(\d+)", text)[1]) <= 435161
    assert configured_memory_mib(443596, 0.0) <= 443596


def test_core_specification_that_differs_until_a_restart():
    """stackhpc/ansible-role-openhpc#199: a changed node line is more than a reconfigure before 23.11."""
    other = [h100_node("hgx-01"), node("hgx-02", (2, 48, 2), ["0-47,96-143", "48-95,144-191"], [0, 1])]
    assert config_change(slurm_files(SITE, NODES), slurm_files(SITE, other), (22, 5)).action == "restart"


def test_padding_that_is_merged():
    """stackhpc/ansible-role-openhpc PR#143: compute-001, compute-002 and compute-10 in one range."""
    names = ["compute-001", "compute-002", "compute-10"]
    assert sorted(expand_hosts(compress(names))) == names


def test_reconfigure_that_fails_after_the_file_was_written():
    """GoogleCloudPlatform/cluster-toolkit PR#3316: what is due is noted before the files are written, and kept."""
    module = (ROLE.parents[1] / "plugins/modules/slurm_config.py").read_text()
    body = module[module.index("def main(") :]
    assert body.index("write(mark, action)") < body.index("write(directory / name")
    tasks = yaml.safe_load((ROLE / "tasks/apply.yml").read_text())
    assert [task["name"] for task in tasks][-1] == "Forget what was due"
    assert ACTIONS[0] == "none"


@pytest.mark.parametrize("plugin", ["topology/flat", "topology/default"])
def test_topology_plugin_that_this_slurm_lacks(plugin):
    """stackhpc/ansible-slurm-appliance PR#754: the name of the default plugin changed between versions."""
    with pytest.raises(SlurmError, match=plugin):
        slurm_files(replace(SITE, parameters={"TopologyPlugin": plugin}), NODES)


def test_limited_run_that_renders_a_partial_file():
    """NVIDIA/deepops#307, #1178: a template over all hosts with facts of some."""
    with pytest.raises(SlurmError, match=r"no node document of hgx-02: a partial slurm\.conf is never written"):
        slurm_files(SITE, NODES[:1])


def test_file_with_two_writers():
    """stackhpc/ansible-slurm-appliance PR#185: a template and a line edit change one file in turn, at each run."""
    texts = "".join(path.read_text() for path in (ROLE / "tasks").glob("*.yml"))
    assert "lineinfile" not in texts
    assert "blockinfile" not in texts
    assert slurm_files(SITE, NODES) == slurm_files(SITE, NODES[::-1])


def test_password_in_a_file_that_all_can_read():
    """galaxyproject/ansible-slurm#39, NVIDIA/deepops PR#746."""
    tasks = yaml.safe_load((ROLE / "tasks/accounting.yml").read_text())
    written = next(task for task in tasks if task["name"] == "Write slurmdbd.conf")
    assert written["ansible.builtin.copy"]["mode"] == "0600"
    assert written["no_log"] is True
    assert written["diff"] is False
    secret = [task for task in tasks if "password" in str(task) or "__slurm_dbd |" in str(task)]
    assert all(task.get("no_log") for task in secret)
