"""Every command that is offered is really there."""

from importlib import import_module

import pytest
from rackweave.cli import COMMANDS, main


@pytest.mark.parametrize("name", COMMANDS)
def test_an_offered_command_can_be_run(name):
    command = import_module(f"rackweave.cli.{name}")
    assert command.HELP
    assert callable(command.add_arguments)
    assert callable(command.run)


def test_an_unknown_command_ends_with_2_and_names_the_known_ones(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["improvise"])
    assert ended.value.code == 2
    assert "diagnose" in capsys.readouterr().err
