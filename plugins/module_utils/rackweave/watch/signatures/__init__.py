"""The signature tables, one file per family; a new signature is one entry with one example."""

from __future__ import annotations

from ..signature import Signature
from .app import TABLE as APP
from .ckpt import TABLE as CKPT
from .config import TABLE as CONFIG
from .container import TABLE as CONTAINER
from .gpu import TABLE as GPU
from .hang import TABLE as HANG
from .health import TABLE as HEALTH
from .launch import TABLE as LAUNCH
from .mem import TABLE as MEM
from .nccl import TABLE as NCCL
from .net import TABLE as NET
from .node import TABLE as NODE
from .num import TABLE as NUM
from .perf import TABLE as PERF
from .slurm import TABLE as SLURM
from .storage import TABLE as STORAGE

SIGNATURES: tuple[Signature, ...] = (
    *NET,
    *NCCL,
    *HANG,
    *MEM,
    *GPU,
    *NODE,
    *NUM,
    *PERF,
    *CKPT,
    *STORAGE,
    *LAUNCH,
    *SLURM,
    *CONTAINER,
    *CONFIG,
    *HEALTH,
    *APP,
)
