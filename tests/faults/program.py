"""The real trainer in one rank of a fault run, with an ear for faults that only the program itself can have.

It is copied beside the runs and started by `training_job_command`. A thread waits for `<ear>/<rank>.json`; what stands
there is then done by the training thread at its next micro-batch, as a fault of the program would be. Without such a
file it is `python -m trainer`, but for a short wait in each micro-batch.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

MIB = 1 << 20
WAITING: list[dict[str, Any]] = []
SLOW_S = [0.0]
PACE_S = 0.25  # waited in each micro-batch: the machine that trains is also the one that watches and times


def listen(ear: Path) -> None:
    """Take each order once; the file goes away, which tells the injector that the rank has it."""
    path = ear / f"{os.environ['RANK']}.json"
    while True:
        if path.exists():
            order = json.loads(path.read_text())
            path.unlink()
            WAITING.append(order)
        time.sleep(0.2)


def obey() -> None:
    """Carry out what waits; called by the training thread between micro-batches."""
    time.sleep(PACE_S + SLOW_S[0])
    while WAITING:
        order = WAITING.pop()
        ACTIONS[order["action"]](order)


def raise_error(order: dict[str, Any]) -> None:
    raise ValueError(f"sample {order['number']} has no label")


def be_slow(order: dict[str, Any]) -> None:
    SLOW_S[0] = order["seconds"]


def poison(order: dict[str, Any]) -> None:
    """Write NaN over the first column of one weight: one value alone, of a word that no sample holds, would sleep."""
    import torch

    weights = [item for item in gc.get_objects() if isinstance(item, torch.nn.Parameter) and item.dim() == 2]
    weights[order["number"] % len(weights)].data[:, 0] = float("nan")


def allocate(order: dict[str, Any]) -> None:
    """Ask for far more memory than a limit allows; without memory cgroups the limit is that of the process."""
    import torch

    used = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmData" in line)
    limit = used * 1024 + 256 * MIB
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    torch.ones(order["mib"] * MIB // 4)


def share(order: dict[str, Any]) -> None:
    """Put a batch into shared memory, as a worker of a data loader does."""
    import torch

    torch.ones(order["mib"] * MIB // 4).share_memory_()


ACTIONS = {"raise": raise_error, "slow": be_slow, "nan": poison, "allocate": allocate, "share": share}


def main() -> int:
    """Run the trainer with the ear beside it."""
    ear, arguments = Path(sys.argv[1]), sys.argv[2:]
    from trainer import telemetry
    from trainer.__main__ import main as train

    original = telemetry.PhaseMarker.set

    def set_and_obey(self: Any, phase: str, *args: Any, **kwargs: Any) -> None:
        original(self, phase, *args, **kwargs)
        if phase == "forward":
            obey()

    telemetry.PhaseMarker.set = set_and_obey  # type: ignore[method-assign]
    threading.Thread(target=listen, args=(ear,), daemon=True).start()
    return train(arguments)


if __name__ == "__main__":
    sys.exit(main())
