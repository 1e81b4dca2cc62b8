"""Filters for the role `monitoring`: names of pure functions of ``rackweave.provision``, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..module_utils.rackweave.provision import scrape

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "scrape_targets": scrape.scrape_targets,
    "scrape_out_of_reach": scrape.out_of_reach,
}


class FilterModule:
    """The filters, by the name they have in templates."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name to function."""
        return dict(FUNCTIONS)
