"""Values of people in units of systemd: what it would read as something else is written so that it does not."""

import pytest
from rackweave.errors import ProvisionError
from rackweave.provision.units import unit_command, unit_quoted, unit_setting


@pytest.mark.parametrize(
    ("value", "setting", "quoted"),
    [
        ("/srv/rackweave", "/srv/rackweave", "/srv/rackweave"),
        (
            "http://p.example.org:3128/%7Esite",
            "http://p.example.org:3128/%%7Esite",
            "http://p.example.org:3128/%%7Esite",
        ),
        ("fe80::1%eth0", "fe80::1%%eth0", "fe80::1%%eth0"),
        ("/srv/a b", "/srv/a b", "/srv/a b"),
        ('say "hi"', 'say "hi"', 'say \\"hi\\"'),
        ("a\\b", "a\\b", "a\\\\b"),
        ("$HOME", "$HOME", "$HOME"),
        (9100, "9100", "9100"),
    ],
)
def test_a_value_reaches_the_service_as_it_was_written(value, setting, quoted):
    assert (unit_setting(value), unit_quoted(value)) == (setting, quoted)


@pytest.mark.parametrize("value", ["a\nExecStartPre=/bin/evil", "a\r"])
@pytest.mark.parametrize("write", [unit_setting, unit_quoted, lambda value: unit_command(["/bin/true", value])])
def test_a_line_break_is_refused_for_it_would_begin_another_setting(value, write):
    with pytest.raises(ProvisionError, match="must be one line"):
        write(value)


def test_a_backslash_at_the_end_of_a_setting_is_refused_for_it_takes_in_the_next_line():
    with pytest.raises(ProvisionError, match="ends in no backslash"):
        unit_setting("/srv/x\\")


def test_a_command_of_plain_words_is_written_plainly():
    words = ["/usr/bin/python3", "-m", "rackweave", "operate", "demo", "--inventory", "/srv/inventory/prod"]
    assert unit_command(words) == " ".join(words)


def test_words_with_blanks_signs_and_quotes_stay_single_words():
    words = ["/opt/my $py/python", "100%", "a b", "$HOME", "", 'x"y', "a'b", "c;d"]
    assert unit_command(words) == '"/opt/my $py/python" 100%% "a b" $$HOME "" "x\\"y" "a\'b" "c;d"'
