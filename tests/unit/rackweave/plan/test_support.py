"""Which versions go together, and what an inventory may say of them."""

from pathlib import Path

import pytest
import yaml
from rackweave.errors import PlanError
from rackweave.plan import support

REFERENCE = "nvcr.io/nvidia/pytorch:24.08-py3"


@pytest.mark.parametrize(
    ("python", "numpy"), [("3.10.12", "2.2.6"), ("3.11.2", "2.4.6"), ("3.12", "2.4.6"), ("3.13.1", "2.4.6")]
)
def test_the_pins_follow_the_python_of_the_nodes(python, numpy):
    assert support.pinned(support.environment_pins(python))["numpy"] == numpy


@pytest.mark.parametrize("row", support.ENVIRONMENTS, ids=lambda row: row.python)
def test_no_row_of_pins_contradicts_the_needs_of_its_packages(row):
    assert support.clashes({**support.pinned(row.packages), "python": row.python}) == []
    assert len(support.pinned(row.packages)) == len(row.packages)


@pytest.mark.parametrize(("name", "image"), support.IMAGES.items(), ids=lambda part: str(part)[:40].replace(":", "-"))
def test_what_the_recipe_puts_into_a_base_image_goes_with_it(name, image):
    versions = {"python": image.python, "torch": image.torch, "megatron-core": image.megatron_core}
    assert support.clashes({**versions, "deepspeed": image.deepspeed}) == []


def test_a_python_that_is_too_old_is_refused_with_the_variable_that_names_another():
    with pytest.raises(PlanError, match=r"3\.9\.18.*3\.10.*trainer_runtime_python"):
        support.environment_pins("3.9.18")


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({"megatron-core": "0.15.3", "torch": "2.5.0a0"}, "megatron-core 0.15.3 needs torch 2.6"),
        ({"megatron-core": "0.17.0", "python": "3.11"}, "needs python 3.12"),
        ({"torch": "2.6.0", "deepspeed": "0.14.2"}, "needs deepspeed 0.14.4"),
        ({"numpy": "2.4.6", "python": "3.10.12"}, "needs python 3.11"),
    ],
)
def test_versions_that_do_not_go_together_are_named(versions, words):
    (sentence,) = support.clashes(versions)
    assert words in sentence


def test_the_reference_image_takes_megatron_core_0_15_0():
    assert support.clashes({"megatron-core": "0.15.0", "torch": "2.5.0a0", "python": "3.10"}) == []


def settings(**given):
    return {"runtime": "docker", "image": "registry.example.org/train:1", "base_image": REFERENCE, **given}


@pytest.mark.parametrize(
    "given",
    [
        {"nccl_version": "2.22.3", "torch_version": "2.5.0a0", "cuda_version": "12.6"},
        {"nccl_version": "2.28.9", "base_image": "", "image": "registry.example.org/ours:1"},
        {"runtime": "venv", "base_image": "", "image": "", "torch_version": "2.13.0+cu130"},
        {"runtime": "venv", "packages": ["six==1.17.0"]},
        {"runtime": "venv", "packages": [], "torch_version": None},
    ],
)
def test_an_inventory_that_says_the_same_everywhere_has_no_finding(given):
    assert support.support_findings(settings(**given)) == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"nccl_version": "2.28.9"}, "rackweave_nccl_version=2.28.9"),
        ({"torch_version": "2.13.0"}, "has 2.5.0a0"),
        ({"cuda_version": "13.0"}, "gpu_driver_cuda_version=13.0"),
        ({"runtime": "venv", "torch_version": "2.5.0a0"}, "virtual environment with torch 2.13.0"),
        ({"runtime": "venv", "packages": ["torch==2.5.1", "megatron_core==0.16.1"]}, "needs torch 2.6"),
    ],
)
def test_a_version_of_another_environment_than_the_jobs_is_a_finding(given, words):
    (sentence,) = support.support_findings(settings(**given))
    assert words in sentence


def test_it_is_said_what_was_never_run_and_what_an_image_lacks():
    assert "unproven" in support.support_note(settings())
    assert "Containerfile" in support.support_note(settings(image=REFERENCE, base_image=""))
    assert "does not know" in support.support_note(settings(base_image=""))
    assert "Python 3.11: run" in support.support_note({"runtime": "venv"})


def test_names_of_packages_are_read_as_pip_spells_them():
    pins = ["Megatron_Core[dev] == 0.15.0", 'numpy==2.2.6; python_version < "3.11"', "trainer @ file:///x"]
    assert support.pinned(pins) == {"megatron-core": "0.15.0", "numpy": "2.2.6"}


ROOT = Path(__file__).resolve().parents[4]


def argument_of(name):
    (line,) = [line for line in (ROOT / "Containerfile").read_text().splitlines() if line.startswith(f"ARG {name}=")]
    return line.partition("=")[2]


def test_the_recipe_of_the_image_has_the_versions_of_the_matrix():
    image = support.IMAGES[argument_of("BASE_IMAGE")]
    assert argument_of("MEGATRON_CORE_VERSION") == image.megatron_core
    assert argument_of("DEEPSPEED_VERSION") == image.deepspeed


def test_the_recipe_imports_what_a_job_looks_for():
    text = (ROOT / "Containerfile").read_text()
    assert f'python3 -c "import {", ".join(support.MODULES)}"' in text


def test_the_reference_deployment_runs_in_an_image_of_the_reference_base():
    files = (ROOT / "inventory/prod/group_vars/all").glob("*.yml")
    site = {name: value for path in files for name, value in (yaml.safe_load(path.read_text()) or {}).items()}
    assert site["training_job_runtime"] == "docker"
    given = {
        "runtime": site["training_job_runtime"],
        "image": site["training_job_image"],
        "base_image": site["rackweave_base_image"],
        "torch_version": site["rackweave_torch_version"],
        "nccl_version": site["rackweave_nccl_version"],
    }
    assert site["rackweave_base_image"] in support.IMAGES
    assert support.support_findings(given) == []
