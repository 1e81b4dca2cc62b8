"""Rails of the twelve layouts, and of machines that differ from them in one respect."""

import json
from functools import cache

import pytest
from rackweave.cli.system import LocalSystem
from rackweave.fabric.block import read_fabric
from rackweave.fabric.rails import plan_rails
from rackweave.hardware.collect import collect_node

from tests.support.layouts import LAYOUTS
from tests.support.machines import build


@pytest.fixture(scope="session")
def collected(tmp_path_factory):
    @cache
    def collect(name):
        root = build(LAYOUTS[name]().machine, tmp_path_factory.mktemp(name))
        return collect_node(LocalSystem([str(root)]), "gx01", "measured", "3.9.18", None)

    return collect


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout_gets_its_rails_in_gpu_order(name, collected):
    layout = LAYOUTS[name]()

    plan = plan_rails(collected(name), read_fabric(layout.fabric))

    assert tuple(member.device for member in plan.members) == layout.hcas
    assert tuple(rail.gpus for rail in plan.rails) == layout.gpus_of_rails
    assert plan.findings == ()


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_device_left_out_has_its_right_reason(name, collected):
    layout = LAYOUTS[name]()

    plan = plan_rails(collected(name), read_fabric(layout.fabric))

    excluded = {verdict.device: verdict.reason for verdict in plan.verdicts if verdict.role == "excluded"}
    assert set(excluded) == set(layout.excluded)
    for device, words in layout.excluded.items():
        assert words in excluded[device]


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_document_of_each_layout_is_small_and_without_warning(name, collected):
    document = collected(name)

    size = len(json.dumps(document.as_dict(), separators=(",", ":")))
    assert size < (20_000 if len([nic for nic in document.nics if not nic.virtual_function]) <= 12 else 28_000)
    assert document.collection.warnings == ()
