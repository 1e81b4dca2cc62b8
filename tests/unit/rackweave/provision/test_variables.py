import pytest
from rackweave.provision.variables import check_host, sentences

SPECS = {
    "slurm": {
        "slurm_manage": {"type": "bool"},
        "slurm_margin": {"type": "float"},
        "slurm_nodes": {"type": "list"},
        "slurm_mode": {"type": "str", "choices": ["a", "b"]},
    },
    "gpu_driver": {"gpu_driver_version": {"type": "str", "required": True}},
}


def texts(**variables):
    return [problem.text for problem in check_host("n1", {"gpu_driver_version": "1", **variables}, SPECS)]


def test_the_choices_of_a_list_are_those_of_its_elements():
    specs = {"engine": {"engine_names": {"type": "list", "elements": "str", "choices": ["docker", "enroot"]}}}
    assert check_host("n1", {"engine_names": ["docker", "enroot"]}, specs) == []
    assert check_host("n1", {"engine_names": []}, specs) == []
    (problem,) = check_host("n1", {"engine_names": ["docker", "lxc"]}, specs)
    assert problem.text == "engine_names must only hold docker, enroot, not ['docker', 'lxc']"


def test_a_misspelt_variable_is_named_with_the_nearest_known_one():
    assert texts(slurm_mangae=True) == ["slurm_mangae is a variable of no role; did you mean slurm_manage?"]


def test_variables_of_the_site_are_nobodys_business():
    assert texts(site_name="x", ansible_user="root") == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slurm_manage", "maybe"),
        ("slurm_margin", True),
        ("slurm_margin", "much"),
        ("slurm_nodes", "gpu01"),
        ("slurm_mode", "c"),
    ],
)
def test_a_value_of_another_type_or_choice_is_refused(name, value):
    (text,) = texts(**{name: value})
    assert name in text
    assert repr(value) in text


@pytest.mark.parametrize(
    ("name", "value"), [("slurm_manage", "yes"), ("slurm_margin", "2.5"), ("slurm_margin", 2), ("slurm_nodes", [])]
)
def test_what_ansible_would_convert_passes(name, value):
    assert texts(**{name: value}) == []


@pytest.mark.parametrize(
    ("value", "words"),
    [(-1, "at least 0, not -1"), ("-2.5", "at least 0, not -2.5"), (float("nan"), "can be meant, not nan"),
     (10**400, "can be meant, not inf"), ("1e30", "can be meant, not 1e+30")],
)  # fmt: skip
def test_a_number_that_nothing_is_counted_by_is_refused(value, words):
    (text,) = texts(slurm_margin=value)
    assert words in text


def test_a_default_below_zero_allows_that_and_no_less():
    specs = {"job": {"job_stage": {"type": "int", "default": -1}}}
    assert check_host("n1", {"job_stage": -1}, specs) == []
    (problem,) = check_host("n1", {"job_stage": -2}, specs)
    assert problem.text == "job_stage must be at least -1, not -2"


def test_a_missing_required_variable_is_an_error_of_each_host():
    problems = check_host("n1", {}, SPECS) + check_host("n2", {}, SPECS)
    assert sentences(problems) == [("gpu_driver_version is required by role gpu_driver", ["n1", "n2"])]
