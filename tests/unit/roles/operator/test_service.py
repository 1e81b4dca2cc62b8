"""The service of a run: its command, when systemd tries again, and where secrets go."""

import argparse
import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import jinja2
import pytest
import yaml
from rackweave.cli import operate
from rackweave.cli.stopping import STOPPED
from rackweave.provision import units
from rackweave.watch.operation import DONE, GAVE_UP, STUCK

ROLE = Path(__file__).parents[4] / "roles" / "operator"
USAGE = 2  # status of the command for a user's error


def rendered(checkout):
    """Return the unit as the role renders it for a checkout."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    environment.filters["comment"] = lambda text: f"# {text}"
    for name in ("unit_setting", "unit_quoted", "unit_command"):
        environment.filters[f"rackweave.cluster.{name}"] = getattr(units, name)
    values = {
        "ansible_managed": "managed",
        "training_job_run": "demo",
        "operator_service_user": "root",
        "operator_environment_file": "/etc/rackweave/operate.env",
        "rackweave_checkout": checkout,
        "ansible_playbook_python": "/usr/bin/python3",
        "__operator_inventory": f"{checkout}/inventory/prod",
    }
    words = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())["__operator_command"]
    command = [environment.from_string(word).render(values) for word in words]
    template = environment.from_string((ROLE / "templates" / "operate.service.j2").read_text())
    return template.render(**values, __operator_command=command)


@pytest.fixture
def unit(tmp_path):
    path = tmp_path / "rackweave-operate-demo.service"
    path.write_text(rendered("/srv/rackweave"))
    return path


def service(path):
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str
    parser.read_string(path.read_text())
    return parser["Service"]


def test_its_command_is_one_that_we_have(unit):
    words = shlex.split(service(unit)["ExecStart"])
    assert words[1:4] == ["-m", "rackweave", "operate"]
    parser = argparse.ArgumentParser()
    operate.add_arguments(parser)
    given = parser.parse_args(words[4:])
    assert (given.run_name, str(given.inventory)) == ("demo", "/srv/rackweave/inventory/prod")


def test_a_checkout_with_a_blank_and_a_percent_sign_is_found_by_the_service(tmp_path):
    path = tmp_path / "unit"
    path.write_text(rendered("/srv/100% ours"))
    settings = service(path)
    assert settings["WorkingDirectory"] == "/srv/100%% ours"
    assert settings["Environment"] == '"PYTHONPATH=/srv/100%% ours/plugins/module_utils" PYTHONUNBUFFERED=1'
    assert settings["ExecStart"].endswith(' --inventory "/srv/100%% ours/inventory/prod"')


def test_systemd_tries_again_only_what_another_try_can_help(unit):
    final = {int(word) for word in service(unit)["RestartPreventExitStatus"].split()}
    assert final == {STUCK, USAGE}
    assert GAVE_UP not in final
    assert service(unit)["Restart"] == "on-failure"
    assert DONE == 0


def test_ending_the_service_is_no_failure_and_whoever_else_ends_it_is_followed_by_another_try(unit):
    settings = service(unit)
    assert settings["SuccessExitStatus"] == settings["RestartForceExitStatus"] == str(STOPPED)
    assert str(STOPPED) not in settings["RestartPreventExitStatus"].split()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_unit(unit):
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert "Unknown" not in done.stderr
    assert "Failed to parse" not in done.stderr


def test_secrets_go_into_one_file_that_others_cannot_read_and_are_never_shown(unit):
    tasks = yaml.safe_load((ROLE / "tasks" / "service.yml").read_text())
    task = next(task for task in tasks if task["name"].startswith("Write addresses and secrets"))
    assert (task["ansible.builtin.template"]["mode"], task["no_log"], task["diff"]) == ("0600", True, False)
    assert not {"operator_mail_password", "operator_webhook_url"} & set(
        yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
    )
    assert "PASSWORD" not in unit.read_text()
