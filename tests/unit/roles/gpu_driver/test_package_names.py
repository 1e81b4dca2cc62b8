"""The names of driver packages by branch, against what vendors' repositories really list."""

import json
from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from rackweave.provision import transactions

ROOT = Path(__file__).resolve().parents[4]
VARIABLES = ROOT / "roles/gpu_driver/vars"
LISTINGS = json.loads((ROOT / "tests/fixtures/provision/nvidia_repositories.json").read_text())["listings"]


def templar(system, driver, flavour="open", **further):
    """Return what evaluates the role's own variables on a system for a driver version."""
    variables = {
        "gpu_driver_packages": [], "gpu_driver_source": "nvidia", "gpu_driver_version": driver,
        "gpu_driver_flavour": flavour, "__gpu_driver_fabric_manager": {"wanted": False, "subnet_manager": False},
        **further,
    }  # fmt: skip
    loader = DataLoader()
    for name in ("main", system):
        variables |= loader.load_from_file(str(VARIABLES / f"{name}.yml"), trusted_as_template=True)
    return lambda name: Templar(loader, variables=variables).template(variables[name])


def wanted(listing, part):
    evaluated = templar(listing["system"], listing["driver"], listing["flavour"])
    if part == "driver":
        return evaluated("__gpu_driver_known")
    return evaluated("__gpu_driver_fabric_manager_table")


CASES = [
    pytest.param(listing, part, id=f"{listing['system']} {listing['driver']} {part}")
    for listing in LISTINGS
    for part in listing["shows"]
]


@pytest.mark.parametrize(("listing", "part"), CASES)
def test_the_repository_has_what_the_role_asks_for_at_this_very_version(listing, part):
    table = wanted(listing, part)
    left_out = transactions.packages_left_out(table, listing["packages"])
    if part == "driver":
        assert left_out == listing["left_out"]
    names = [row["name"] for row in table if row["same_version"] and row["name"] not in left_out]
    assert len(names) >= 2
    assert transactions.check_candidates(listing["packages"], names, listing["driver"]) == listing["driver"]


@pytest.mark.parametrize("listing", [it for it in LISTINGS if "driver" in it["shows"]], ids=lambda it: it["driver"])
def test_what_brings_the_persistence_daemon_is_known_where_the_listing_shows_it(listing):
    evaluated = templar(listing["system"], listing["driver"], listing["flavour"])
    table = evaluated("__gpu_driver_known")
    left_out = transactions.packages_left_out(table, listing["packages"])
    kept = [row["name"] for row in table if row["name"] not in left_out]
    daemons = [name for name in kept if name in evaluated("__gpu_driver_persistence")]
    shown = [name for name in listing["packages"] if "persistenced" in name or "compute-utils" in name]
    assert bool(daemons) == any(name not in left_out for name in shown)


def test_the_driver_of_the_example_inventory_has_names_that_ubuntu_has():
    pinned = yaml.safe_load((ROOT / "inventory/prod/group_vars/gpu_nodes/driver.yml").read_text())
    evaluated = templar(
        "ubuntu-22.04", pinned["gpu_driver_version"], pinned["gpu_driver_flavour"],
        __gpu_driver_fabric_manager={"wanted": True, "subnet_manager": False},
    )  # fmt: skip
    names = {row["name"] for row in evaluated("__gpu_driver_known") if not row.get("optional")}
    assert names == {"libnvidia-compute-570", "nvidia-dkms-570-open", "nvidia-fabricmanager-570", "libnvidia-nscq-570"}


@pytest.mark.parametrize(
    ("system", "loaded", "name"),
    [("ubuntu-24.04", "575.57.08", "libnvidia-compute-575"), ("debian-12", None, "nvidia-driver-cuda")],
)
def test_where_packages_are_left_alone_the_names_are_those_of_the_driver_in_use(system, loaded, name):
    known = templar(system, "", __gpu_driver_facts={"loaded_driver": loaded})("__gpu_driver_known")
    assert name in {row["name"] for row in known}


@pytest.mark.parametrize(
    ("driver", "flavour", "stream", "superseded"),
    [
        ("570.133.20", "open", "570-open", "nvidia-fabricmanager"),
        ("580.95.05", "proprietary", "580-dkms", "nvidia-fabric-manager"),
    ],
)
def test_el_reads_the_stream_of_the_branch_and_keeps_the_other_fabric_manager_out(driver, flavour, stream, superseded):
    evaluated = templar("el-9", driver, flavour)
    assert evaluated("__gpu_driver_stream") == stream
    assert evaluated("__gpu_driver_superseded") == [superseded]
