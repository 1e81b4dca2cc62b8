"""Every unit of systemd that a role writes: values of people pass through a filter that keeps them what they are."""

import re
from pathlib import Path

import jinja2
import pytest
from rackweave.provision import units
from rackweave.provision.proxy import proxy_environment

ROOT = Path(__file__).resolve().parents[3]
UNITS = [
    path
    for path in sorted((ROOT / "roles").glob("*/templates/*.j2"))
    if re.search(r"^\[(Unit|Service|Timer|Manager)\]$", path.read_text(), re.MULTILINE)
]
FILTERS = ("unit_setting", "unit_quoted", "unit_command")
# What is no text of a person: numbers, sizes and names that were checked, sentences and paths of our own.
CHECKED = {
    "ansible_managed | comment",
    "node_base_shm_size",
    "'infinity' if node_base_memlock == 'unlimited' else (node_base_memlock ~ 'K')",
    "monitoring_dcgm_exporter_port",
    "monitoring_slurm_interval_s",
    "__rdma_fabric_config",
    "__slurm_library",
    "slurm_gpu_wait_s",
    "slurm_gpu_wait_s | int + 90",
    "name",
    "training_job_run",
    "__gpu_driver_facts | rackweave.cluster.gpu_count",
    "__gpu_driver_fabric_manager.reason",
}


def rendered(path, **variables):
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters["comment"] = lambda text: f"# {text}"
    environment.filters["rackweave.cluster.proxy_environment"] = proxy_environment
    for name in FILTERS:
        environment.filters[f"rackweave.cluster.{name}"] = getattr(units, name)
    text = (ROOT / "roles" / path).read_text()
    return environment.from_string(text).render(ansible_managed="managed", **variables)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: str(path.relative_to(ROOT / "roles")))
def test_no_value_of_a_person_goes_into_a_unit_as_it_comes(path):
    for expression in re.findall(r"\{\{-?\s*(.*?)\s*-?\}\}", path.read_text(), re.DOTALL):
        escaped = any(expression.endswith(f"| rackweave.cluster.{name}") for name in FILTERS)
        assert escaped or expression in CHECKED, expression


def test_the_scan_finds_the_units():
    names = {path.name for path in UNITS}
    assert {"docker-proxy.conf.j2", "operate.service.j2", "slurm_metrics.service.j2", "dcgm_exporter.conf.j2"} <= names


def test_a_proxy_with_a_percent_sign_is_no_specifier_to_docker():
    proxy = {"http": "http://proxy.example.org:3128/%7Esite"}
    text = rendered("container_runtime/templates/docker-proxy.conf.j2", container_runtime_proxy=proxy)
    assert 'Environment="http_proxy=http://proxy.example.org:3128/%%7Esite"\n' in text


def test_an_address_with_a_zone_is_no_specifier_to_the_gpu_exporter():
    text = rendered(
        "monitoring/templates/dcgm_exporter.conf.j2",
        monitoring_listen_address="[fe80::1%eth0]", monitoring_dcgm_exporter_port=9400,
    )  # fmt: skip
    assert 'Environment="DCGM_EXPORTER_LISTEN=[fe80::1%%eth0]:9400"' in text
