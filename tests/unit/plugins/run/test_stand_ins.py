"""The stand-ins for Slurm's commands may run side by side, as Slurm's own do."""

import subprocess
import sys
from pathlib import Path

from tests.fixtures.slurm.stub import turn

COMMANDS = Path(__file__).parents[3] / "fixtures/slurm"


def test_no_command_loses_what_another_one_wrote(tmp_path, slurm):
    slurm.write(jobs={str(number): {"name": "demo", "state": "RUNNING", "exit": "0:0"} for number in range(1, 9)})
    with turn(tmp_path / "slurm.json") as state:
        running = [subprocess.Popen([sys.executable, COMMANDS / "scancel", str(number)]) for number in range(1, 9)]
        state["nodes"] = {"node-a": {"state": "IDLE", "reason": ""}}
    assert [command.wait(60) for command in running] == [0] * 8
    assert {job["state"] for job in slurm.read()["jobs"].values()} == {"CANCELLED"}
    assert sorted(call[1] for call in slurm.read()["calls"]) == sorted(map(str, range(1, 9)))
    assert list(slurm.read()["nodes"]) == ["node-a"]
