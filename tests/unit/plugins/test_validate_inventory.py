"""Which hosts are checked, and what is said about variables without a value."""

import importlib

from ansible.errors import AnsibleError

action = importlib.import_module("ansible_collections.rackweave.cluster.plugins.action.validate_inventory")
SPECS = {"slurm": {"slurm_manage": {"type": "bool"}, "slurm_munge_key": {"type": "str", "no_log": True}}}


class Variables(dict):
    """Variables of a host of which some cannot be computed, as Ansible's own are."""

    def __getitem__(self, name):
        value = super().__getitem__(name)
        if isinstance(value, Exception):
            raise value
        return value


class HostVariables(dict):
    def raw_get(self, host):
        return self[host]


def test_hosts_with_the_same_variables_of_roles_are_checked_once_and_a_secret_makes_a_difference():
    hosts = HostVariables(
        a={"slurm_manage": True, "ansible_host": "10.0.0.1"},
        b={"slurm_manage": True, "ansible_host": "10.0.0.2"},
        c={"slurm_manage": True, "ansible_become_password": "changeme"},
    )
    assert action.alike(hosts, ["a", "b", "c"], SPECS, []) == [["a", "b"], ["c"]]


def test_an_undefined_secret_is_named_with_the_way_to_give_it():
    variables = Variables(slurm_munge_key=AnsibleError("'vault_slurm_munge_key' is undefined"), site=AnsibleError("x"))
    values, undefined = action.templated(variables, SPECS)
    assert values == {}
    (text,) = undefined
    assert text.startswith("slurm_munge_key has no value: 'vault_slurm_munge_key' is undefined")
    assert "vault" in text.rpartition(";")[2]


def test_a_variable_that_needs_facts_is_left_to_its_role():
    variables = Variables(slurm_manage=AnsibleError("object of type 'dict' has no attribute 'x' in ansible_facts"))
    assert action.templated(variables, SPECS) == ({}, [])


def test_a_name_that_no_run_can_have_is_named():
    assert action.wrong_run_name("llama3-70b") == action.wrong_run_name(None) == []
    (text,) = action.wrong_run_name("../up")
    assert text.startswith("training_job_run: run name '../up' cannot be used")
