"""Where rank 0 serves its metrics: on the address that the exporters of its own host have."""

from pathlib import Path

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

ROLE = Path(__file__).parents[4] / "roles" / "training_job"
HOSTS = {
    "ctl": {"monitoring_listen_address": "10.0.0.9"},
    "gpu01": {"monitoring_listen_address": "10.0.0.1"},
    "gpu02": {},
}


def address(first_host, said=""):
    """Return what the run file gets where ``first_host`` has rank 0."""
    expression = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())["__training_job_train"]["telemetry"]
    variables = {
        "hostvars": HOSTS,
        "training_job_prometheus_address": said,
        "__training_job_layout": {"layout": {"ranks": [{"rank": 0, "host": first_host}, {"rank": 1, "host": "ctl"}]}},
    }
    return Templar(DataLoader(), variables=variables).template(trust_as_template(expression["prometheus_address"]))


@pytest.mark.parametrize(
    ("first_host", "said", "expected"),
    [
        ("gpu01", "", "10.0.0.1"),
        ("gpu02", "", "127.0.0.1"),
        ("elsewhere", "", "127.0.0.1"),
        ("gpu01", "0.0.0.0", "0.0.0.0"),
    ],
)
def test_rank_0_listens_where_its_own_host_does_unless_told_otherwise(first_host, said, expected):
    assert address(first_host, said) == expected
