"""Switches given as text: `-e some_ok=false` is the text "false", which is true unless it is read as a switch."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted(
    path
    for pattern in (
        "roles/*/tasks/*.yml",
        "roles/*/handlers/*.yml",
        "roles/*/vars/*.yml",
        "playbooks/*.yml",
        "site.yml",
    )
    for path in ROOT.glob(pattern)
)
# Parts of a task whose value is an expression without braces.
CONDITIONS = ("when", "that", "until", "failed_when", "changed_when")
PROSE = ("name", "fail_msg", "success_msg", "msg", "reason", "reasons", "description", "short_description", "label")


def documented_switches():
    """Return the names of all boolean options, nested ones are read by the modules they are given to."""
    names = set()
    for path in ROOT.glob("roles/*/meta/argument_specs.yml"):
        for entry in yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"].values():
            names |= {name for name, option in (entry.get("options") or {}).items() if option["type"] == "bool"}
    return names


def used_as_switch(expression, names):
    """Return the variables of an expression that are switches, by their documentation or by their name."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "''", expression)
    for match in re.finditer(r"(?<![\w.])([a-z]\w*)\b(?!\s*[=(](?!=))", bare):
        name = match.group(1)
        if name in names or re.fullmatch(r"[a-z]\w*_ok", name):
            yield name, bare[match.end() :]


def unread(expression, names):
    """Return the switches of an expression that are taken as they come."""
    for name, rest in used_as_switch(expression, names):
        if not re.match(r"\s*(\|\s*default\([^)]*\)\s*)?\|\s*bool\b", rest):
            yield name


def expressions(value, key=""):
    """Yield all expressions below a node of YAML; a whole value `{{ name }}` is read by the module it is given to."""
    if isinstance(value, dict):
        for name, part in value.items():
            if name not in PROSE:
                yield from expressions(part, name)
    elif isinstance(value, list):
        for part in value:
            yield from expressions(part, key)
    elif isinstance(value, str):
        if key in CONDITIONS:
            yield value
        elif not re.fullmatch(r"\{\{\s*\w+\s*\}\}", value.strip()):
            yield from re.findall(r"\{\{(.*?)\}\}", value, re.DOTALL)


# Facts that the code sets itself, always as switches.
OWN_FACTS = {"node_context_disruptive_ok", "__slurm_node_disruptive_ok", "disruptive_ok"}
NAMES = documented_switches()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_switch_is_read_as_a_switch(path):
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    wrong = [name for text in expressions(content) for name in unread(text, NAMES) if name not in OWN_FACTS]
    assert wrong == []


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("x_ok", ["x_ok"]),
        ("not x_ok and y", ["x_ok"]),
        ("x_ok | bool", []),
        ("x_ok | default(false) | bool", []),
        ("f(consent=x_ok, y=1)", ["x_ok"]),
        ("f(x_ok=z)", []),
        ("'set x_ok'", []),
        ("a == b and x_ok == true", ["x_ok"]),
    ],
)
def test_the_scan_finds_what_it_should(expression, found):
    assert list(unread(expression, NAMES)) == found


def test_the_scan_knows_the_switches_of_all_roles():
    assert {"node_base_reboot_ok", "gpu_driver_hold_enabled", "slurm_manage", "training_job_stop_ok"} <= NAMES
