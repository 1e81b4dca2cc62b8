"""Seconds of single operations on one GPU and of collectives between GPUs.

A kernel takes its arithmetic at the sustained rate plus its memory traffic at the sustained bandwidth (additive
roofline): large products approach the first, small or thin ones the second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..hardware.catalog import REFERENCE
from .constants import Constants
from .machine import Machine, Software

_LOW_PRECISIONS = ("fp8", "mxfp8", "nvfp4")


@dataclass(frozen=True)
class Kernels:
    """Rates of one GPU under given constants.

    Attributes:
        seconds_per_flop: of aligned matrix products in the training precision.
        seconds_per_byte: of streaming kernels that read and write device memory.
        attention_seconds_per_flop: of the fused attention core (always 16 bit).
        score_seconds_per_flop: of the score products of unfused attention.
        wide_seconds_per_flop: of products that stay in 16 bit.
        bytes_per_operand: of a matrix element as it enters the product.
        misaligned: factor of time where a dimension is not a multiple of 64 elements.
    """

    seconds_per_flop: float
    attention_seconds_per_flop: float
    score_seconds_per_flop: float
    wide_seconds_per_flop: float
    seconds_per_byte: float
    traffic: float
    bytes_per_operand: float
    cast_bytes: float
    elementwise: float
    misaligned: float
    host_seconds: float

    @classmethod
    def of(cls, machine: Machine, software: Software, precision: str, constants: Constants) -> Kernels:
        """Return the rates of a machine for a precision."""
        gpu, generation = machine.gpu, machine.gpu.generation
        low = precision in _LOW_PRECISIONS
        gpu.peak_flops_per_second(precision)  # refuses a precision that the part lacks
        reference = REFERENCE[generation]
        clock = (gpu.board_power_w / reference.board_power_w) ** constants.power_exponent
        clock *= gpu.multiprocessors / reference.multiprocessors
        share = constants.product_share(generation, precision)
        share *= 1.0 if software.flash_attention else constants.library_2021
        native = software.native_attention or generation == "ampere"
        attention = constants.attention_share(generation, low) if native else constants.attention_portable
        peak, wide = reference.peak_flops_per_second(precision), reference.peak_flops_per_second("bf16")
        products = peak * share * clock / software.product_factor
        if precision == "nvfp4":
            # Blackwell Ultra has half again as many 4-bit units per multiprocessor; its own peak says so.
            products = gpu.peak_flops_per_second(precision) * share
        elementwise = constants.elementwise_traffic if software.flash_attention else constants.elementwise_old
        return cls(
            seconds_per_flop=1 / products,
            attention_seconds_per_flop=1 / (wide * attention * clock),
            score_seconds_per_flop=1 / (wide * constants.score_product * clock),
            wide_seconds_per_flop=software.product_factor
            / (wide * constants.product_share(generation, "bf16") * clock),
            seconds_per_byte=1 / gpu.hbm_bytes_per_second,
            traffic=constants.operand_traffic,
            bytes_per_operand=1.0 if low else 2.0,
            cast_bytes=4.0 if low else 0.0,
            elementwise=elementwise * software.stream_factor,
            misaligned=constants.misaligned_factor,
            host_seconds=constants.host_seconds_per_layer if software.flash_attention else constants.host_seconds_old,
        )

    def product(self, rows: float, columns: float, inner: float) -> float:
        """Return the seconds of a (rows x inner) by (inner x columns) product, its operands' casts included."""
        flops = 2.0 * rows * columns * inner * self.seconds_per_flop
        if columns % 64 or inner % 64:
            flops *= self.misaligned
        operands = self.bytes_per_operand * (rows + columns) * inner + 2.0 * rows * columns
        casts = self.elementwise * self.cast_bytes * rows * inner
        return flops + (self.traffic * operands + casts) * self.seconds_per_byte

    def stream(self, byte_count: float) -> float:
        """Return the seconds of elementwise kernels over so many bytes, read and written."""
        return byte_count * self.elementwise * self.seconds_per_byte


@dataclass(frozen=True)
class Links:
    """Rates between GPUs, bytes per second and one direction, as collectives reach them."""

    nvlink: float
    network: float
    nvlink_latency: float
    network_latency: float
    gpus_per_domain: int
    one_nic: bool = False

    @classmethod
    def of(cls, machine: Machine, constants: Constants) -> Links:
        """Return the rates of a machine."""
        return cls(
            nvlink=machine.gpu.nvlink_bytes_per_second * constants.nvlink_share,
            network=machine.nic_bytes_per_second * constants.network_share,
            nvlink_latency=constants.nvlink_latency_s,
            network_latency=constants.network_latency_s,
            gpus_per_domain=machine.domain_size,
        )

    def bus(self, size: int, stride: int) -> tuple[float, float]:
        """Return (bytes per second, seconds of latency per ring step) of a group.

        A ring enters each domain through as many NICs as the group has members there, and is as fast as the slower
        of NVLink and those NICs.

        Args:
            size: members of the group.
            stride: distance of neighbours in rank order (1 for tensor groups).
        """
        span = size * stride
        if span <= self.gpus_per_domain:
            return self.nvlink, self.nvlink_latency
        members = 1 if self.one_nic else max(1, self.gpus_per_domain // stride)
        return min(self.nvlink, self.network * members), self.network_latency

    def ring(self, byte_count: float, size: int, stride: int, rounds: int = 1) -> float:
        """Return the seconds of a ring over so many bytes: 1 round for gather or scatter, 2 for an all-reduce."""
        if size == 1:
            return 0.0
        rate, latency = self.bus(size, stride)
        return rounds * ((size - 1) / size * byte_count / rate + latency * _steps(size))

    def one_nic_per_group(self) -> Links:
        """Return links whose groups enter a domain through one NIC only (collectives before NCCL 2.12)."""
        return replace(self, one_nic=True)

    def exchange(self, byte_count: float, size: int, copies: int, limit: int) -> float:
        """Return the seconds of an all-to-all over neighbouring ranks, each sending so many bytes in all.

        Args:
            byte_count: bytes that a rank sends, all copies of its tokens together.
            size: members of the group.
            copies: destinations of each token.
            limit: most domains that they lie in, 0 without a limit.
        """
        if size == 1:
            return 0.0
        if size <= self.gpus_per_domain:
            return (size - 1) / size * byte_count / self.nvlink + self.nvlink_latency * _steps(size)
        # A token's copies for one domain cross the network once and fan out over NVLink there.
        domains = size / self.gpus_per_domain
        reached = domains * (1 - (1 - 1 / domains) ** copies)
        reached = (min(reached, limit) if limit else reached) * (domains - 1) / domains / copies
        inside = byte_count / self.nvlink
        return max(reached * byte_count / self.network, inside) + self.network_latency * _steps(size)

    def point_to_point(self, byte_count: float, stride: int) -> float:
        """Return the seconds of one message between ranks a stride apart."""
        if stride < self.gpus_per_domain:
            return byte_count / self.nvlink + self.nvlink_latency
        return byte_count / self.network + self.network_latency


def _steps(size: int) -> float:
    """Return how often latency counts: rings pipeline inside a domain, trees beyond."""
    return float(size - 1) if size <= 8 else 7.0 + (size - 8) / 8.0
