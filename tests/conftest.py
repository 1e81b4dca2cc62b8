"""What more than one tier of tests needs: the lab, which all its tests share."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import lab as support

if importlib.util.find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    # Property tests take the time they need, since other programs of the machine must not fail them, and try the same
    # examples each time; `--hypothesis-profile=exploring` tries others.
    UNHURRIED = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("exploring", **UNHURRIED)
    settings.register_profile("repeated", derandomize=True, database=None, **UNHURRIED)
    settings.load_profile("repeated")

START_NICE = os.nice(0)
# Ansible refuses to start where the locale is not of UTF-8, and tests look for messages in English.
os.environ["LC_ALL"] = "C.UTF-8"
# A proxy that this machine may have for others must not get what tests ask of servers of their own.
os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(
    filter(None, (os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "127.0.0.1", "localhost"))
)


def pytest_configure(config: pytest.Config) -> None:
    """Import torch before anything imports ansible-core, where tests are run; a process that only deals them out waits.

    ansible-core puts an object in place of sys.intern, which torch's compiler then refuses to register. In one process
    with both, torch comes first; the product never has both in one.
    """
    deals_out = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if importlib.util.find_spec("torch") and not deals_out:
        import torch._dynamo  # noqa: F401


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the module that replaces a node last, since restoring the lab after it takes a minute that nobody needs."""
    items.sort(key=lambda item: item.path.name == "test_swap.py" and item.path.parent.name == "lab")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep all tests of the lab in one process, since there is one lab, and those of any other file in one."""
    from xdist.scheduler import LoadScopeScheduling

    class ByLab(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return "lab" if nodeid.startswith(("tests/lab/", "tests/testinfra/")) else nodeid.partition("::")[0]

    return ByLab(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let tests beside those of the lab, which wait for other machines, take what these leave of the cores."""
    nice = 0 if "PYTEST_XDIST_WORKER" not in os.environ or item.get_closest_marker("lab") else 10
    if nice > os.nice(0) or os.geteuid() == 0:
        os.setpriority(os.PRIO_PROCESS, 0, max(nice, START_NICE))


@pytest.fixture(scope="session")
def lab() -> Iterator[support.Lab]:
    """Return the lab, started and provisioned; it is taken down at the end only if it was not there before.

    With RACKWEAVE_LAB_READY=1 one that stands is taken as it is.
    """
    if os.geteuid() != 0:
        pytest.skip("the lab needs root")
    found = support.running_here()
    try:
        if not found or os.environ.get("RACKWEAVE_LAB_READY") != "1":
            support.play("playbooks/lab_up.yml")
            support.play("playbooks/provision.yml")
        yield support.Lab(support.addresses_of(), stays=found)
    finally:
        if not found:
            support.play("playbooks/lab_down.yml")
