"""Start a bench in this process or under torchrun: device, process groups, one place for both."""

from __future__ import annotations

import os
import socket

import torch

from ..mesh import Mesh, build_mesh, seed_mesh
from ..platform import prepare_platform
from .case import TIMEOUT_S, BenchCase, job_of


def start(case: BenchCase) -> Mesh:
    """Prepare the platform and build the mesh of a case; without torchrun, a world of one rank."""
    cuda = torch.cuda.is_available()
    prepare_platform(cuda)
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_free_port()))
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    backend = "nccl" if cuda else "gloo"
    mesh = build_mesh(job_of(case, backend).plan.sizes, int(os.environ["RANK"]), device, backend, TIMEOUT_S)
    seed_mesh(mesh, case.seed)
    return mesh


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
