import pytest
from rackweave.errors import ProvisionError
from rackweave.provision import gate

REASON = ["driver 570.86.10 is loaded, 580.65.06 is installed"]


def decide(reasons=REASON, consent=False, disruptive_ok=True, container=False):
    return gate.reboot_decision(
        reasons,
        consent=consent,
        consent_variable="gpu_driver_reboot_ok",
        disruptive_ok=disruptive_ok,
        container=container,
    )


def test_nothing_due_is_nothing_done_even_with_consent():
    assert decide(reasons=[], consent=True)["action"] == "none"


def test_without_consent_the_reboot_is_reported_with_reason_and_variable():
    found = decide()
    assert found["action"] == "report"
    assert "580.65.06" in found["message"]
    assert "gpu_driver_reboot_ok" in found["message"]


def test_consent_does_not_reach_a_node_with_work():
    assert decide(consent=True, disruptive_ok=False)["action"] == "pending"


def test_consent_on_a_free_node_reboots():
    assert decide(consent=True)["action"] == "reboot"


def defer(**others):
    return gate.reboot_decision(
        REASON, consent=True, consent_variable="x_reboot_ok", disruptive_ok=True, container=False, **others
    )


def test_a_run_that_reboots_once_collects_the_reason():
    assert defer(deferred=True)["action"] == "defer"


def test_a_run_does_not_reboot_a_node_twice():
    found = defer(deferred=True, rebooted=True)
    assert found["action"] == "again"
    assert "run again" in found["message"]


def due(action, *reasons, timeout_s=900, command=""):
    return {"action": action, "reasons": list(reasons), "timeout_s": timeout_s, "boot_time_command": command}


def test_one_reboot_serves_all_roles_and_names_all_reasons():
    found = gate.collected_reboot(
        {
            "node_base": due("defer", "the kernel line gets iommu=pt", "nouveau is loaded", timeout_s="600"),
            "gpu_driver": due("defer", "driver 580.65.06 is installed and not loaded", command="stat /proc/1"),
            "shared_storage": {},
            "rdma_fabric": due("report", "mlx5_core 25.04 is installed"),
        },
        disruptive_ok=True,
    )
    assert found["action"] == "reboot"
    assert found["roles"] == ["gpu_driver", "node_base", "rdma_fabric"]
    assert (found["timeout_s"], found["boot_time_command"]) == (900, "stat /proc/1")
    for words in ("iommu=pt", "nouveau", "580.65.06", "rdma_fabric: mlx5_core 25.04"):
        assert words in found["message"]


def test_without_consent_of_any_role_nothing_is_rebooted():
    assert gate.collected_reboot({"gpu_driver": due("report", "x")}, disruptive_ok=True)["action"] == "none"
    assert gate.collected_reboot({}, disruptive_ok=True)["action"] == "none"


def test_work_that_came_meanwhile_keeps_the_collected_reboot_back():
    found = gate.collected_reboot({"gpu_driver": due("defer", "driver moved")}, disruptive_ok=False)
    assert found["action"] == "pending"
    assert "driver moved" in found["message"]


def test_a_container_skips_the_reboot():
    assert decide(consent=True, container=True)["action"] == "skip"


@pytest.mark.parametrize(
    ("facts", "container"),
    [
        (
            {
                "virtualization_type": "podman",
                "virtualization_role": "guest",
                "virtualization_tech_guest": ["container"],
            },
            True,
        ),
        ({"virtualization_type": "docker", "virtualization_role": "guest"}, True),
        ({"virtualization_type": "kvm", "virtualization_role": "guest", "virtualization_tech_guest": ["kvm"]}, False),
        ({"virtualization_type": "docker", "virtualization_role": "host", "virtualization_tech_guest": []}, False),
        ({}, False),
    ],
)
def test_only_the_inside_of_a_container_is_a_container(facts, container):
    assert gate.is_container(facts) is container


def test_only_what_would_change_is_pending_and_only_while_held_back():
    changes = {"packages": True, "units": False}
    (entry,) = gate.pending_entries("gpu_driver", changes, disruptive_ok=False)
    assert (entry["role"], entry["change"]) == ("gpu_driver", "packages")
    assert "drained" in entry["reason"]
    assert gate.pending_entries("gpu_driver", changes, disruptive_ok=True) == []


def test_a_skip_without_a_reason_is_refused():
    with pytest.raises(ProvisionError, match="without a reason"):
        gate.guarded("gpu_driver", ["modules"], "")


def test_an_unproven_system_is_warned_about_and_a_proven_one_is_not():
    assert "el-9" in gate.unproven_warning("gpu_driver", "el-9", ["debian-12"])
    assert gate.unproven_warning("gpu_driver", "debian-12", ["debian-12"]) is None
