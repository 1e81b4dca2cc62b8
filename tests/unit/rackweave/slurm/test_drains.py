"""Drains of ours as sinfo lists them: whichever part of us made them, with their age; and one list of reasons."""

from datetime import datetime
from pathlib import Path

import pytest
from rackweave.rebuild.moves import REASON
from rackweave.slurm import drains
from rackweave.watch.recovery import REASON_PREFIX

from tests.support.programs import load_program

ROOT = Path(__file__).parents[4]
NOW = datetime(2026, 1, 5, 12, 0, 0)
SINFO = """gpu01|drained|2026-01-05T11:30:00|rackweave: gpu.fallen_off_bus in attempt 12.0 of demo
gpu02|draining|2026-01-05T11:00:00|rackweave: health: gpus: /dev/nvidia1 | is missing
gpu03|drained|2026-01-04T12:00:00|rackweave-rebuild: in work
gpu04|drained|2026-01-05T11:59:00|bad DIMM
gpu05|idle|Unknown|none
gpu05|idle|Unknown|none
gpu06|drained|Unknown|rackweave: health: x
gpu07|drained|2026-01-05T11:59:00|rackweave: restart of slurmd
"""


def test_every_drain_of_ours_is_listed_with_its_age():
    assert drains.our_drains(SINFO, NOW) == {"gpu01": 0.5, "gpu02": 1.0, "gpu03": 24.0, "gpu06": 0.0}


@pytest.mark.parametrize("path", ["slurm/files/node_hooks.py", "monitoring/files/slurm_metrics.py"])
def test_programs_without_the_package_know_the_same_reasons(path):
    module = load_program(ROOT / "roles" / path)
    assert (module.OURS, module.PASSING) == (drains.OURS, drains.PASSING)


def test_the_parts_that_drain_give_reasons_that_count():
    health = load_program(ROOT / "roles/slurm/files/node_hooks.py").PREFIX
    assert all(drains.is_ours(f"{reason}: x") for reason in (REASON, REASON_PREFIX.rstrip(": "), health.rstrip(":")))
