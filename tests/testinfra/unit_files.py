"""Compare the units that systemd has in force with the files on disk; printed as JSON. Runs on the node; stands alone.

NeedDaemonReload does not tell of a drop-in in a directory that was not there when systemd last read its units.

unit_files.py UNIT...
"""

import json
import os
import subprocess
import sys
from pathlib import Path


def real(path):
    return os.path.realpath(path)


def drop_in_directories(name):
    """Return the names of directories whose drop-ins a unit takes, the most special first (man 5 systemd.unit)."""
    stem, _, kind = name.rpartition(".")
    template = [f"{stem.split('@')[0]}@.{kind}.d"] if "@" in stem else []
    words = stem.split("-")
    prefixes = [f"{'-'.join(words[:count])}-.{kind}.d" for count in range(len(words) - 1, 0, -1)]
    return [f"{name}.d", *template, *prefixes, f"{kind}.d"]


def drop_ins(names, unit_paths):
    """Return the drop-ins that a unit with these names would have; of two with one name the more special one counts."""
    chosen = {}
    directories = [directory for name in names for directory in drop_in_directories(name)]
    for parent in unit_paths:
        for directory in directories:
            for path in sorted(Path(parent, directory).glob("*.conf")):
                chosen.setdefault(path.name, real(path))
    return sorted(path for path in chosen.values() if path != "/dev/null")


def fragment(name, unit_paths):
    """Return the file that defines the unit: the first in the search path, links followed; empty if there is none."""
    found = [Path(parent, name) for parent in unit_paths if os.path.lexists(Path(parent, name))]
    return real(found[0]) if found else ""


def in_force(unit):
    """Return what systemd has loaded: its names, fragment and drop-ins."""
    properties = ("Id", "Names", "LoadState", "FragmentPath", "DropInPaths")
    command = ["systemctl", "show", unit, *(f"--property={key}" for key in properties)]
    shown = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    return dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)


def differences(unit, unit_paths):
    """Return the files that are only in force, and those that are only on disk."""
    loaded = in_force(unit)
    had = {real(path) for path in loaded["DropInPaths"].split()}
    if loaded["FragmentPath"]:
        had.add(real(loaded["FragmentPath"]))
    there = set(drop_ins(loaded["Names"].split(), unit_paths))
    there.update(filter(None, [fragment(loaded["Id"], unit_paths)]))
    return {"only in force": sorted(had - there), "only on disk": sorted(there - had)}


def main():
    command = ["systemd-analyze", "unit-paths"]
    paths = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.split()
    found = {unit: differences(unit, paths) for unit in sys.argv[1:]}
    sys.stdout.write(json.dumps({unit: lists for unit, lists in found.items() if any(lists.values())}) + "\n")


if __name__ == "__main__":
    main()
