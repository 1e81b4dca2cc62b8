"""The probe that runs on a node and in its containers, as it is, with stand-ins of devices and of nvidia-smi."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from rackweave.provision.engine import parse_probe

PROBE = Path(__file__).resolve().parents[4] / "roles/container_runtime/files/container-probe"
LEGEND = """
Legend:

  X    = Self
  OK   = Status Ok
  CNS  = Chipset not supported
  GNS  = GPU not supported
  TNS  = Topology not supported
  NS   = Not supported
  U    = Unknown
"""


def matrix(count, odd=()):
    """Return what `nvidia-smi topo -p2p r` prints, with pairs that are no OK."""
    rows = [" \t\x1b[4m" + "\t".join(f"GPU{column}" for column in range(count)) + "\t\x1b[0m"]
    for row in range(count):
        cells = ["X" if row == column else "CNS" if (row, column) in odd else "OK" for column in range(count)]
        rows.append("\t".join([f" GPU{row}", *cells]) + "\t")
    return "\n".join(rows) + "\n" + LEGEND


def peers(tmp_path, gpus, printed=None, code=0):
    """Return what the probe says of peer access on a machine with so many GPUs."""
    devices, tools = tmp_path / "dev", tmp_path / "tools"
    devices.mkdir()
    tools.mkdir()
    for number in range(gpus):
        (devices / f"nvidia{number}").touch()
    for name in ("nvidiactl", "nvidia-uvm"):
        (devices / name).touch()
    # Nothing else of this machine, which may have a tool and GPUs of its own.
    for program in ("awk", "cat", "df", "find", "head", "readlink", "timeout", "wc"):
        (tools / program).symlink_to(shutil.which(program))
    if printed is not None:
        (tmp_path / "printed").write_text(printed)
        tool = tools / "nvidia-smi"
        tool.write_text(f'#!/bin/sh\n[ "$*" = "topo -p2p r" ] || exit 9\ncat "{tmp_path}/printed"\nexit {code}\n')
        tool.chmod(0o755)
    environment = {**os.environ, "PATH": str(tools), "RACKWEAVE_PROBE_DEVICES": str(devices)}
    done = subprocess.run(["/bin/sh", PROBE], env=environment, capture_output=True, text=True, check=True)
    values = parse_probe(done.stdout)
    assert values["gpus"] == str(gpus)
    return values["gpu_peers"]


@pytest.mark.parametrize(
    ("odd", "shown"),
    [((), "56/56"), ([(0, 4), (4, 0)], "54/56"), ([(a, b) for a in range(8) for b in range(8)], "0/56")],
    ids=["all", "two are none", "none"],
)
def test_the_pairs_that_reach_each_other_are_counted(tmp_path, odd, shown):
    assert peers(tmp_path, 8, matrix(8, odd)) == shown


def test_a_machine_without_the_tool_or_without_a_pair_says_that_it_is_not_possible(tmp_path):
    for number, (gpus, printed) in enumerate([(0, None), (1, matrix(1)), (2, None)]):
        (tmp_path / str(number)).mkdir()
        assert peers(tmp_path / str(number), gpus, printed).startswith("not possible here: ")


@pytest.mark.parametrize(
    ("printed", "code", "shown"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\n", 18, "failed: Failed to initialize NVML"),
        ("No devices were found\n", 0, "failed: nvidia-smi topo -p2p r printed no matrix"),
    ],
    ids=["no driver", "no matrix"],
)
def test_a_tool_that_fails_is_no_answer(tmp_path, printed, code, shown):
    assert peers(tmp_path, 2, printed, code).startswith(shown)
