"""One lab for all modules: what a failed test leaves behind must not fail the tests after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import lab as support


@pytest.fixture(scope="module", autouse=True)
def healed_after_a_failure(request: pytest.FixtureRequest) -> Iterator[None]:
    """Bring the lab back after a module with a failed test; those after it then fail for reasons of their own."""
    failed = request.session.testsfailed
    yield
    if request.session.testsfailed > failed and support.PODMAN.exists():
        support.heal()


@pytest.fixture(scope="module")
def met_again(request: pytest.FixtureRequest, lab: support.Lab) -> bool:
    """Say whether a later test or a user meets the lab as this module leaves it; else there is nothing to restore."""
    items = request.session.items
    last = max(index for index, item in enumerate(items) if item.path == request.path)
    return lab.stays or any(item.get_closest_marker("lab") for item in items[last + 1 :])
