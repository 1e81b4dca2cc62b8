"""Secrets that are none, and values nobody replaced."""

import pytest
from rackweave.provision.placeholders import is_secret, placeholder_problems
from rackweave.provision.variables import check_host


@pytest.mark.parametrize(
    "value",
    [
        "changeme",
        "CHANGE_ME",
        "Change-Me-Now",
        "<munge key>",
        "<>",
        "replace_with_key",
        "xxxx",
        "...",
        "TODO",
        "secret",
    ],
)
def test_a_placeholder_in_the_place_of_a_secret_is_refused_and_not_repeated(value):
    (problem,) = placeholder_problems({"slurm_munge_key": value})
    assert "slurm_munge_key is a secret and still a placeholder" in problem
    assert value not in problem.replace("a secret", "")


@pytest.mark.parametrize("value", ["", "   ", None])
def test_an_empty_secret_is_refused(value):
    (problem,) = placeholder_problems({"vault_database_password": value})
    assert "empty" in problem


@pytest.mark.parametrize(
    "name",
    [
        "ansible_become_pass",
        "ansible_password",
        "vault_slurm_munge_key",
        "StoragePass",
        "registry_token",
        "site_api_key",
        "hf_token",
    ],
)
def test_names_that_say_secret_are_taken_for_one(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "training_job_tokenizer",
        "gpu_driver_gpudirect",
        "tokens",
        "key",
        "signed_by",
        "gpgkey",
        "bypass",
        "training_job_run",
    ],
)
def test_other_names_are_not(name):
    assert not is_secret(name)


def test_secrets_inside_mappings_and_lists_are_found_with_their_place():
    variables = {"slurm_parameters": {"AccountingStoragePass": "changeme"}, "users": [{"name": "a", "password": ""}]}
    first, second = placeholder_problems(variables)
    assert first.startswith("slurm_parameters.AccountingStoragePass ")
    assert second.startswith("users[0].password ")


def test_a_placeholder_in_any_other_variable_is_named_with_its_value():
    (problem,) = placeholder_problems({"training_job_run": "<name of the run>"})
    assert "'<name of the run>'" in problem


def test_a_password_inside_an_address_is_refused_and_not_repeated():
    (problem,) = placeholder_problems({"trainer_runtime_index_url": "https://bot:hunter2@mirror.example.org/simple"})
    assert problem.startswith("trainer_runtime_index_url holds a password")
    assert "hunter2" not in problem
    assert placeholder_problems({"x": ["https://mirror.example.org:8443/simple", "10.0.0.1@o2ib:/training"]}) == []


def test_real_values_are_left_alone():
    real = {
        "slurm_munge_key": "q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJCrze8SNFZ4kA==",
        "training_job_command": ["python", "-c", "print(1 < 2 > 0)"],
        "training_job_run": "todolist",
        "slurm_cluster_name": "test",
        "rackweave_fabric": {"kind": "none"},
    }
    assert placeholder_problems(real) == []


def test_a_secret_of_the_wrong_type_is_not_shown():
    specs = {
        "slurm": {
            "slurm_munge_key": {"type": "str", "no_log": True},
            "slurm_secret_size": {"type": "int", "no_log": True},
        }
    }
    problems = check_host("n1", {"slurm_secret_size": "hunter2x"}, specs)
    assert [problem.text for problem in problems if "hunter2x" in problem.text] == []
    assert len(problems) == 1


def test_what_a_role_declares_as_secret_is_one_by_any_name():
    specs = {"slurm": {"slurm_seed": {"type": "str", "no_log": True}}}
    (problem,) = check_host("n1", {"slurm_seed": "changeme"}, specs)
    assert "secret" in problem.text
