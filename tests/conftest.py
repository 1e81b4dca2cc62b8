"""What more than one tier of tests needs: the lab, which all its tests share."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest

from tests.support import lab as support

if importlib.util.find_spec("torch"):
    # ansible-core puts an object in place of sys.intern when it is imported, which torch's compiler then refuses to
    # register. In one process with both, torch comes first; the product never has both in one.
    import torch._dynamo  # noqa: F401

START_NICE = os.nice(0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of the lab in one process, and those of any other file (`--dist loadgroup`)."""
    for item in items:
        uses_lab = item.nodeid.startswith(("tests/lab/", "tests/testinfra/"))
        item.add_marker(pytest.mark.xdist_group("lab" if uses_lab else item.path.stem))


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
    if not found or os.environ.get("RACKWEAVE_LAB_READY") != "1":
        support.play("playbooks/lab_up.yml")
        support.play("playbooks/provision.yml")
    yield support.Lab(support.addresses_of())
    if not found:
        support.play("playbooks/lab_down.yml")
