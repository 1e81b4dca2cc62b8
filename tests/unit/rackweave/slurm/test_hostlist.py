import re

from hypothesis import given
from hypothesis import strategies as st
from rackweave.provision.inventory import expand_hosts
from rackweave.slurm.hostlist import compress

PREFIXES = st.sampled_from(["gpu", "node-", "rack1-n"])
NAMES = st.builds(
    lambda prefix, number, width: f"{prefix}{number:0{width}d}", PREFIXES, st.integers(0, 120), st.integers(1, 4)
)


def test_consecutive_names_become_a_range():
    assert compress(["gpu02", "gpu01", "gpu04"]) == "gpu[01-02,04]"


def test_padding_is_part_of_a_name():
    assert compress(["compute-001", "compute-002", "compute-10"]) == "compute-10,compute-[001-002]"


def test_padded_names_run_on_over_the_power_of_ten():
    assert compress([f"n{number:02d}" for number in (8, 9, 10, 11)]) == "n[08-11]"


def test_names_without_number_stay_as_they_are():
    assert compress(["ctl", "gpu1"]) == "gpu1,ctl"


@given(st.sets(NAMES, min_size=1))
def test_the_expression_expands_to_exactly_the_names(names):
    assert set(expand_hosts(compress(names))) == names


@given(st.sets(NAMES, min_size=1))
def test_an_expression_has_only_what_slurm_reads(names):
    assert re.fullmatch(r"[A-Za-z0-9,\[\]-]+", compress(names))
