"""The oldest versions of Megatron core and DeepSpeed that the trainer's numeric tests pass with (`make test-lane`)."""

from __future__ import annotations

import importlib.metadata
import re

from .errors import StopError

OLDEST = {"megatron-core": (0, 15, 0), "deepspeed": (0, 14, 4)}


def check_versions(flat: bool) -> None:
    """Refuse libraries that are absent or older than any that was tried; a job on the flat engine needs no DeepSpeed.

    Raises:
        StopError: naming the package, its version and the oldest one.
    """
    for package, oldest in OLDEST.items():
        if package == "deepspeed" and flat:
            continue
        wanted = ".".join(map(str, oldest))
        try:
            found = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise StopError(
                f"the Python package {package} is not installed; the trainer needs {wanted} or later"
            ) from None
        if _numbers(found) < oldest:
            raise StopError(
                f"{package} {found} is older than {wanted}, the oldest that this trainer was tested with: "
                f"install {wanted} or later"
            )


def _numbers(version: str) -> tuple[int, ...]:
    """Return the release numbers of a version: (0, 16, 1) of 0.16.1+local, whatever follows them."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
