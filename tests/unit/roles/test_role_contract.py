"""Every role: its defaults and its argument specification are the same list, and every task has a name."""

from pathlib import Path

import pytest
import yaml
from rackweave.provision.placeholders import is_secret

ROOT = Path(__file__).resolve().parents[3]
ROLES = sorted(path.parent for path in (ROOT / "roles").glob("*/tasks"))
PHASES = ("validate", "install", "configure", "service")


def load(path):
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None


def options(role):
    return load(role / "meta/argument_specs.yml")["argument_specs"]["main"].get("options") or {}


def tasks(entries):
    for entry in entries or []:
        yield entry
        for key in ("block", "rescue", "always"):
            yield from tasks(entry.get(key))


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_defaults_and_argument_specification_have_the_same_keys(role):
    defaults = load(role / "defaults/main.yml") or {}
    optional = {name for name, option in options(role).items() if not option.get("required")}
    assert set(defaults) == optional


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_every_option_has_a_type_and_a_description(role):
    for name, option in options(role).items():
        assert option.get("type"), name
        assert option.get("description"), name


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_the_documented_default_is_the_real_one(role):
    defaults = load(role / "defaults/main.yml") or {}
    for name, option in options(role).items():
        if "default" in option:
            assert option["default"] == defaults[name], name


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_public_variables_bear_the_roles_name(role):
    assert all(name.startswith(f"{role.name}_") for name in load(role / "defaults/main.yml") or {})


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_role_says_what_it_is_for(role):
    assert (role / "README.md").read_text(encoding="utf-8").startswith(f"# {role.name}\n")


@pytest.mark.parametrize(
    "path", sorted((ROOT / "roles").glob("*/*/*.yml")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_every_task_has_a_name_and_a_file_stays_short(path):
    text = path.read_text(encoding="utf-8")
    if path.parent.name not in ("tasks", "handlers"):
        return
    assert text.count("\n") < 150
    assert all(task.get("name") for task in tasks(yaml.safe_load(text)))


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_what_only_templates_know_stands_in_no_task(role):
    """`ansible_managed` is undefined in the content of a copy, which is not seen before the task runs."""
    files = [path for part in ("tasks", "handlers", "vars") for path in (role / part).glob("*.yml")]
    assert [path.name for path in files if "ansible_managed" in path.read_text(encoding="utf-8")] == []


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_an_option_whose_name_says_secret_is_never_logged(role):
    assert [name for name, option in options(role).items() if is_secret(name) and not option.get("no_log")] == []
