"""GPUs, their links and their usual hosts, as rows of a table with unit and source. Facts only; no model of speed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import PlanError

MIB = 2**20
GIB = 2**30


@dataclass(frozen=True)
class Gpu:
    """One GPU product.

    Attributes:
        name: short name used on the command line.
        products: what `nvidia-smi` prints as name, matched without regard to case.
        memory_bytes: as `nvidia-smi` totals it (after ECC).
        bf16_tflops: dense peak, as are the other precisions; 0 where the part has none.
        hbm_bytes_per_second: peak of the memory.
        nvlink_bytes_per_second: one direction, all links together.
        nvlink_domain: GPUs that reach each other by NVLink.
        gpus_per_host: of the usual host.
        nic_gbps: per GPU, of the usual host (assumed when no document says otherwise).
        host_link_bytes_per_second: GPU to host memory, one direction.
        host_memory_bytes: of the usual host, all its GPUs together.
        generation: the family whose kernels it runs.
        board_power_w: what the board may draw; sustained rates follow it.
        multiprocessors: streaming multiprocessors enabled.
        source: where the figures are from.
    """

    name: str
    products: tuple[str, ...]
    memory_bytes: int
    bf16_tflops: float
    fp8_tflops: float
    mxfp8_tflops: float
    nvfp4_tflops: float
    hbm_bytes_per_second: float
    nvlink_bytes_per_second: float
    nvlink_domain: int
    gpus_per_host: int
    nic_gbps: float
    host_link_bytes_per_second: float
    host_memory_bytes: int
    generation: str
    board_power_w: float
    multiprocessors: int
    source: str

    def peak_flops_per_second(self, precision: str) -> float:
        """Return the dense peak for a precision, in FLOP/s.

        Raises:
            PlanError: if the part has no tensor cores for that precision.
        """
        tflops = {
            "bf16": self.bf16_tflops,
            "fp16": self.bf16_tflops,
            "fp32": self.bf16_tflops / 2,  # TF32
            "fp8": self.fp8_tflops,
            "mxfp8": self.mxfp8_tflops,
            "nvfp4": self.nvfp4_tflops,
        }.get(precision)
        if not tflops:
            raise PlanError(f"precision {precision!r} is not something that {self.name} computes in")
        return tflops * 1e12


_A100 = "NVIDIA A100 data sheet (June 2021); host: DGX A100, 8x200 Gb/s"
_H100 = "NVIDIA H100 data sheet (dense = sparse/2); host: DGX H100, 8x400 Gb/s"
_BLACKWELL = "NVIDIA Blackwell data sheets (dense = sparse/2), torchtitan tools/utils.py"
_FIELDS = (
    # name, products, MiB, bf16, fp8, mxfp8, nvfp4, HBM GB/s, NVLink GB/s, domain, GPUs/host, NIC, link GB/s, host GB
    (
        "A100-40GB",
        ("A100-SXM4-40GB", "A100-40GB-SXM"),
        (40960, 312.0, 0, 0, 0, 1555, 300, 8, 8, 200, 32, 1000),
        ("ampere", 400, 108),
        _A100,
    ),
    (
        "A100-80GB",
        ("A100-SXM4-80GB", "A100-80GB-SXM", "A100", "A100-SXM", "A100-SXM(DGX)"),
        (81920, 312.0, 0, 0, 0, 2039, 300, 8, 8, 200, 32, 2000),
        ("ampere", 400, 108),
        _A100,
    ),
    (
        "H100",
        ("H100 80GB HBM3", "H100-SXM", "H100-80GB-SXM", "H100-80GB", "H100 SXM5"),
        (81559, 989.4, 1978.9, 0, 0, 3350, 450, 8, 8, 400, 64, 2000),
        ("hopper", 700, 132),
        _H100,
    ),
    (
        "H100-PCIe",
        ("H100 PCIe",),
        (81559, 756.0, 1513.0, 0, 0, 2000, 300, 2, 8, 200, 64, 1000),
        ("hopper", 350, 114),
        _H100,
    ),
    (
        "H100-NVL",
        ("H100 NVL",),
        (95830, 835.0, 1671.0, 0, 0, 3900, 300, 2, 8, 200, 64, 1000),
        ("hopper", 400, 132),
        _H100,
    ),
    (
        "H100-96GB-HBM2e",
        ("H100-96GB-HBM2e(500W)", "H100 96GB HBM2e"),
        (97280, 989.4, 1978.9, 0, 0, 2400, 450, 8, 8, 400, 64, 2000),
        ("hopper", 500, 132),
        "torchtitan benchmarks: H100 with HBM2e, 2.4 TB/s, 500 W cap, 400 Gb/s a GPU",
    ),
    (
        "H200",
        ("H200", "H200-141GB-SXM", "H200 SXM"),
        (143771, 989.4, 1978.9, 0, 0, 4800, 450, 8, 8, 400, 64, 2000),
        ("hopper", 700, 132),
        "NVIDIA H200 data sheet (dense = sparse/2); host: DGX H200",
    ),
    (
        "B200",
        ("B200", "B200-SXM"),
        (183359, 2250.0, 4500.0, 4500.0, 9000.0, 8000, 900, 8, 8, 400, 64, 2000),
        ("blackwell", 1000, 148),
        _BLACKWELL,
    ),
    (
        "GB200",
        ("GB200",),
        (189471, 2500.0, 5000.0, 5000.0, 10000.0, 8000, 900, 72, 4, 400, 450, 960),
        ("blackwell", 1200, 148),
        _BLACKWELL,
    ),
    (
        "GB300",
        ("GB300",),
        (284208, 2500.0, 5000.0, 5000.0, 15000.0, 8000, 900, 72, 4, 800, 450, 960),
        ("blackwell", 1400, 160),
        _BLACKWELL,
    ),
)


def _row(
    name: str, products: tuple[str, ...], figures: tuple[float, ...], kind: tuple[str, float, int], source: str
) -> Gpu:
    mib, bf16, fp8, mxfp8, nvfp4, hbm, nvlink, domain, per_host, nic, link, memory = figures
    return Gpu(
        name=name,
        products=products,
        memory_bytes=int(mib) * MIB,
        bf16_tflops=bf16,
        fp8_tflops=fp8,
        mxfp8_tflops=mxfp8,
        nvfp4_tflops=nvfp4,
        hbm_bytes_per_second=hbm * 1e9,
        nvlink_bytes_per_second=nvlink * 1e9,
        nvlink_domain=int(domain),
        gpus_per_host=int(per_host),
        nic_gbps=nic,
        host_link_bytes_per_second=link * 1e9,
        host_memory_bytes=int(memory * 1e9),
        generation=kind[0],
        board_power_w=kind[1],
        multiprocessors=kind[2],
        source=source,
    )


GPUS = {fields[0]: _row(*fields) for fields in _FIELDS}

# The part of each generation whose peak and power others are measured against: they share its die.
REFERENCE = {"ampere": GPUS["A100-80GB"], "hopper": GPUS["H100"], "blackwell": GPUS["B200"]}


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower().replace("nvidia", ""))


_BY_PRODUCT = {_plain(product): gpu for gpu in GPUS.values() for product in (gpu.name, *gpu.products)}


def find_gpu(product: str) -> Gpu | None:
    """Return the GPU that a product name means ("NVIDIA H100 80GB HBM3", "H100"), or None if it is not known."""
    return _BY_PRODUCT.get(_plain(product))


def gpu_named(product: str) -> Gpu:
    """Return the GPU that a product name means.

    Raises:
        PlanError: if the catalog does not know it; the message lists what it knows.
    """
    gpu = find_gpu(product)
    if gpu is None:
        raise PlanError(f"unknown GPU {product!r}; known are {', '.join(GPUS)}")
    return gpu
