"""What is verified after the one reboot of a run, whichever role asked for it."""

from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

ROOT = Path(__file__).resolve().parents[4]
ROLE = ROOT / "roles/node_context"
DUE = {"node_base_reboot_due": {"action": "defer", "reasons": ["kernel"], "timeout_s": 900, "boot_time_command": ""}}
RDMA = {"__rdma_fabric_chosen": ["0000:0c:00.0"]}
GPU = {"__gpu_driver_present": True}


def verified(**facts):
    """Return what the task of the role loops over, with facts that the roles left."""
    tasks = yaml.safe_load((ROLE / "tasks/reboot.yml").read_text())
    (task,) = [task for task in tasks if task["name"] == "Verify what depends on the boot"]
    loader = DataLoader()
    own = loader.load_from_file(str(ROLE / "vars/main.yml"), trusted_as_template=True)
    facts = {"__node_context_reboot": {"roles": [name.removesuffix("_reboot_due") for name in DUE]}, **DUE, **facts}
    (name,) = [word for word in own if "{{ " + word + " }}" == task["loop"]]
    return Templar(loader, variables={**own, **facts}).template(own[name])


@pytest.mark.parametrize(
    ("facts", "roles"),
    [
        (RDMA | GPU, ["rdma_fabric", "gpu_driver"]),
        (RDMA, ["rdma_fabric"]),
        (GPU, ["gpu_driver"]),
        ({}, []),
        ({"__rdma_fabric_chosen": [], "__gpu_driver_present": False}, []),
        (RDMA | GPU | {"gpu_driver_stage_only": True}, ["rdma_fabric"]),
    ],
)
def test_a_reboot_that_only_the_base_asked_for_is_followed_by_every_check_that_a_boot_needs(facts, roles):
    assert verified(**facts) == roles


def test_the_check_is_one_that_each_role_has():
    for role in verified(**RDMA, **GPU):
        assert (ROOT / f"roles/{role}/tasks/verify.yml").exists()
