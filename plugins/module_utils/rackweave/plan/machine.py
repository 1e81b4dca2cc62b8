"""What predictions need to know beside the model and the layout: the machine, and the software that runs on it."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import PlanError
from ..hardware.catalog import Gpu
from .cluster import Cluster


@dataclass(frozen=True)
class Machine:
    """GPUs and network as one rank meets them; rates in bytes per second, one direction."""

    gpu: Gpu
    gpus_per_host: int
    domain_size: int
    nic_bytes_per_second: float
    memory_bytes: int
    host_memory_bytes: int

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> Machine:
        """Return the machine of a cluster.

        Raises:
            PlanError: if the GPU is not in the catalog, so that nothing can be predicted.
        """
        if cluster.gpu is None:
            product = cluster.hosts[0].gpu_product or "unknown"
            raise PlanError(f"GPU {product!r} is not in the catalog, so memory and time cannot be predicted")
        return cls(
            gpu=cluster.gpu,
            gpus_per_host=cluster.gpus_per_host,
            domain_size=cluster.domain_size,
            nic_bytes_per_second=(cluster.nic_gbps_per_gpu or cluster.gpu.nic_gbps) * 1e9 / 8,
            memory_bytes=cluster.gpu_memory_bytes or cluster.gpu.memory_bytes,
            host_memory_bytes=cluster.host_memory_bytes or cluster.gpu.host_memory_bytes,
        )


@dataclass(frozen=True)
class Software:
    """Traits of the training software that change memory or time.

    Attributes:
        flash_attention: attention without the score matrix in memory; False means BMM, softmax, BMM (before 2023).
        overlap: gradient reduction and parameter gathers run beside the backward and forward passes.
        tensor_overlap: tensor-parallel collectives are split and run beside matrix products.
        native_attention: attention kernels are written for the GPU generation (Transformer Engine), not portable.
        gradient_bytes: per parameter: 2 (16 bit), 4 (fp32 accumulation) or 6 (both, DeepSpeed's BF16_Optimizer).
        loss_bytes: per logit at the peak: 2 (fused loss), 4 (compiled), 6 (fp32 copy) or 14 (torch).
        reduce_bytes: per parameter that gradient reduction moves.
        fp32_weights: the weights themselves are fp32 shards (torch FSDP mixed precision).
        bucket_bytes: communication buckets of the ZeRO optimizer.
        trains: "all" parameters or "adapters" only (LoRA).
        adapter_share: parameters of the adapters as a share of the model's.
        weight_bytes: per parameter of the frozen or trained 16-bit weights, less where they are quantised.
        flat: states lie in flat buffers: the fp32 master is the 16-bit weight and a 16-bit rest, weight gradients are
            added to fp32 inside their products, and only layers' matrices are streamed by ZeRO 2 and 3.
        thrifty: the compiler keeps no outputs of norms and activation functions for the backward pass.
        product_factor: time of matrix products, of what the fitted constants say.
        stream_factor: bytes of elementwise kernels, of what the fitted constants say (less where layers are compiled).
        saved_factor: bytes that a layer keeps for its backward pass, of what the closed form says.
        overhead_factor: seconds of a step outside the model, of what the fitted constants say.
    """

    flash_attention: bool = True
    overlap: bool = True
    tensor_overlap: bool = False
    native_attention: bool = True
    gradient_bytes: int = 4
    reduce_bytes: int = 4
    loss_bytes: int = 6
    fp32_weights: bool = False
    bucket_bytes: float = 0.0
    trains: str = "all"
    adapter_share: float = 0.0
    weight_bytes: float = 2.0
    flat: bool = False
    thrifty: bool = False
    product_factor: float = 1.0
    stream_factor: float = 1.0
    saved_factor: float = 1.0
    overhead_factor: float = 1.0
