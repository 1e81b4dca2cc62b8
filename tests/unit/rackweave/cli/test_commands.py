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


def test_no_command_at_all_shows_which_there_are(capsys):
    assert main([]) == 2
    shown = capsys.readouterr().err
    assert all(f"  {name} " in shown for name in COMMANDS)


def test_an_option_before_the_command_is_told_where_it_belongs(capsys):
    with pytest.raises(SystemExit):
        main(["--json", "plan"])
    assert "--json comes before the command" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["plan", "--model", "llama3-8b", "--cluster", ""], "--cluster"),
        (["plan", "--model", "llama3-8b", "--cluster", "1x8xH100", "--html="], "--html"),
        (["nccl", "--nodes", "x", "--fabric", "y", "--waivers", ""], "--waivers"),
        (["report", ""], "an argument"),
        (["diagnose", "a.log", ""], "an argument"),
    ],
)
def test_an_empty_word_is_refused_instead_of_meaning_this_directory_or_nothing(capsys, words, named):
    assert main(words) == 2
    assert f"rackweave {words[0]}: {named} is empty" in capsys.readouterr().err


def test_a_value_of_a_playbook_may_be_empty(capsys):
    assert main(["operate", "demo", "--set=x=", "--inventory", "nowhere"]) == 2
    assert "does not exist" in capsys.readouterr().err
