"""Every switch that lets a part of us drain nodes is found, with the number of nodes it is on for."""

import pytest
from rackweave.provision.consents import drain_consents


@pytest.mark.parametrize(
    ("variables", "health", "restart"),
    [
        ({}, 0, 0),
        ({"slurm_drain_ok": True}, 2, 2),
        ({"slurm_drain_ok": "yes", "slurm_health_drain_ok": False}, 0, 2),
        ({"slurm_health_drain_ok": True}, 2, 0),
        ({"slurm_health_drain_ok": True, "slurm_health_interval_s": 0}, 0, 0),
        ({"slurm_health_drain_ok": True, "slurm_hooks_enabled": False}, 0, 0),
        ({"slurm_drain_ok": True, "slurm_manage": False}, 0, 0),
    ],
)
def test_the_switches_of_all_nodes_are_counted(variables, health, restart):
    found = drain_consents(["a", "b"], {"a": variables, "b": variables})
    assert found["slurm_health_drain_ok"][1:] == (health, 2)
    assert found["slurm_drain_ok"][1:] == (restart, 2)


def test_nodes_may_differ_and_one_without_variables_has_the_defaults():
    found = drain_consents(["a", "b", "c"], {"a": {"slurm_health_drain_ok": True}, "b": {}})
    assert found["slurm_health_drain_ok"] == ("health check drains its own node", 1, 3)
