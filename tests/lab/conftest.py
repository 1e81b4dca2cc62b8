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
