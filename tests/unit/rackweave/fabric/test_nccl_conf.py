"""The configuration file, re-read by NCCL's own rules."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rackweave.errors import FabricError
from rackweave.fabric.nccl_conf import conf_text, parse_conf

names = st.from_regex(r"[A-Z][A-Z0-9_]{0,30}", fullmatch=True)
values = st.from_regex(r"[A-Za-z0-9=^:,./%_-]{1,200}", fullmatch=True)


@given(environment=st.dictionaries(names, values))
def test_what_is_written_is_what_nccl_reads(environment):
    assert parse_conf(conf_text(environment)) == environment


def test_an_exact_list_begins_with_a_second_equals_sign():
    assert conf_text({"NCCL_IB_HCA": "=mlx5_0:1"}) == "NCCL_IB_HCA==mlx5_0:1\n"


@pytest.mark.parametrize("value", ["", " 1", "1 ", '"1"', "a b", "1\n", "1\r", "$HOME", "`id`", "a\\b", "x" * 1024])
def test_a_value_that_would_change_on_the_way_is_refused(value):
    with pytest.raises(FabricError):
        conf_text({"NCCL_DEBUG": value})


@pytest.mark.parametrize("name", ["", "export NCCL_DEBUG", "nccl_debug", "NCCL-DEBUG", "#NCCL"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(FabricError):
        conf_text({name: "1"})


def test_nccl_trims_nothing_and_knows_comments_only_in_the_first_column():
    text = "# comment\nNCCL_A = 1\nNCCL_B=2 # why\n #NCCL_C=3\nno equals sign\nNCCL_D=1\nNCCL_D=4\n"

    assert parse_conf(text) == {"NCCL_A ": " 1", "NCCL_B": "2 # why", " #NCCL_C": "3", "NCCL_D": "4"}
