"""ZeRO 0 to 3 on flat buffers, behind trainer.engine.Engine: no hook a parameter, one fused AdamW, one clip.

On CUDA the layers are compiled, weight gradients are added to the fp32 buffer inside the backward pass, and a small
micro-batch without pipeline stages is one CUDA graph. The mathematics are DeepSpeed's (a test compares both).
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .config import JobConfig
from .engine import Fragment, StageList, StepReport, decays
from .flat_adamw import AdamWConstants
from .flat_graph import GraphedMicroBatch
from .flat_loss import LossHead, softmax_gradient_
from .flat_modules import Accumulation, route_gradients, use_fast_gelu
from .flat_offload import Home
from .flat_optimizer import FlatGroups, FlatOptimizer, FlatOptions, FlatParameter
from .flat_state import Streaming
from .flops import model_flops_per_token
from .loss_scale import LossScale
from .mesh import Mesh
from .model.init import LocalTensor, is_tied_copy
from .model.partition import ParameterInfo
from .model.stage import Stage

_LAYER_MATRIX = re.compile(r"decoder\.layers\.(\d+)\.(?:self_attention|mlp)\.linear_\w+\.weight")
"""Weights that trainer.flat_modules gives a fused gradient, so that a backward pass can replace it."""
GRAPH_BELOW_FLOPS = 8e11
"""Model FLOPs of a layer per micro-batch under which a GPU may wait for the host (about 1.5 ms at 550 TFLOP/s).

Above it a graph gains nothing (1041.4 ms a step without, 1041.6 ms with one) and would hold the activations' memory.
"""
KEPT_SHARE = 0.95
"""Share of what a layer's backward pass needs that may be kept instead of computed again.

Any share below 1 lets the compiler drop what elementwise kernels make (outputs of norms and of the activation function,
6 of about 18 values a token and hidden element of a GPT layer); much less would run matrix products again.
"""
LOSS_CHUNK = 4096
"""Tokens whose logits are made at once; large enough to fill a GPU, small enough to bound fp32 temporaries."""


@dataclass(frozen=True)
class Acceleration:
    """What is switched on beside the flat optimizer; every combination computes the same.

    `fused`: gradients go to the flat buffer inside the backward pass, and the loss is fused with the output projection;
    without it leaf hooks add them. `compiled`: layers and loss. `graphed`: a micro-batch is one CUDA graph.
    """

    fused: bool
    compiled: bool
    graphed: bool

    @classmethod
    def for_job(cls, job: JobConfig, device: torch.device) -> Acceleration:
        """Return what pays and works: compilers and graphs on CUDA, graphs only where nothing draws or waits."""
        sizes, dropout = job.plan.sizes, job.train.dropout
        cuda = device.type == "cuda"
        # Collectives inside of a micro-batch stay outside of graphs.
        streams = sizes.zero_stage >= 2 and sizes.data_parallel_size > 1
        alone = sizes.pipeline_parallel_size == 1 and sizes.tensor_parallel_size == 1 and not streams
        random = dropout.hidden > 0 or dropout.attention > 0
        return cls(True, cuda, cuda and alone and not random and _launch_bound(job))


class FlatEngine:
    """See trainer.engine.Engine."""

    name = "flat"

    def __init__(
        self,
        job: JobConfig,
        mesh: Mesh,
        stages: Sequence[Stage],
        infos: Sequence[ParameterInfo],
        acceleration: Acceleration | None = None,
        weights: LocalTensor | None = None,
    ) -> None:
        """Take the parameters over; with `weights` they are hollow, and get their values in the flat buffer."""
        self._mesh, self._stages, self._module = mesh, stages, StageList(stages)
        self._num_microbatches = job.plan.sizes.num_microbatches
        self._infos = {info.name: info for info in infos}
        self.optimizer = _build_optimizer(job, mesh, infos, weights)
        self._scale = LossScale() if job.train.dtype == "float16" else None
        tied = job.plan.model.tied_embeddings and job.plan.sizes.pipeline_parallel_size > 1
        self._tied_grads = self._copies_of_tied_weight() if tied else []
        self._staged: Tensor | None = None
        self._graph: GraphedMicroBatch | None = None
        self._accumulations = [Accumulation() for _ in stages]
        self._replaces = False
        self._forwards = [0] * len(stages)
        self._recomputes = job.plan.sizes.recompute != "none"
        self.acceleration = acceleration or Acceleration.for_job(job, mesh.device)
        self._accelerate(mesh)

    def _accelerate(self, mesh: Mesh) -> None:
        if self.acceleration.fused:
            whole = torch.compile(softmax_gradient_) if self.acceleration.compiled else softmax_gradient_
            split = mesh.tensor if mesh.sizes.tensor_parallel_size > 1 else None
            room = self.optimizer.state.idle_gradients() if self._num_microbatches == 1 else None
            head = LossHead(split, LOSS_CHUNK, whole, room)
            for stage, accumulation in zip(self._stages, self._accumulations):
                route_gradients(stage, self.optimizer.main_grads, head, accumulation)
            self._replace_first()
        else:
            self.optimizer.accumulate_by_hooks()
        if self.optimizer.stream is not None:
            layers = [layer for stage in self._stages for layer in stage.decoder.layers]
            names = [str(stage.span.first_layer + i) for stage in self._stages for i in range(stage.span.num_layers)]
            self.optimizer.stream.attach(layers, names)
        if self.acceleration.compiled:
            for stage in self._stages:
                if self.optimizer.state.dtype != torch.float32:
                    use_fast_gelu(stage)
                compile_layers(stage)

    def _copies_of_tied_weight(self) -> list[Tensor]:
        weights = [stage.shared_embedding_weight() for stage in self._stages]
        return [self.optimizer.main_grads[weight] for weight in weights if isinstance(weight, nn.Parameter)]

    @property
    def micro_batch(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """Forward and backward of a whole model in one call, or None where Megatron's schedule must run them."""
        return self._graphed if self.acceleration.graphed else None

    def _replace_first(self) -> None:
        """Let the first backward pass of a step replace the gradients of layer matrices: no zeroing, no reading.

        Not where layers are run again in the backward pass, since they would then read a later pass's setting, and not
        where it would take a second graph with memory of its own.
        """
        two_graphs = self.acceleration.graphed and self._num_microbatches > 1
        if self.optimizer.stream is not None and self.optimizer.stream.gradients:
            self.optimizer.stream.replaces = True
            for accumulation in self._accumulations:
                accumulation.keep = False
        elif not self._recomputes and not two_graphs:
            self.optimizer.replaces = self._replaces = True

    def _count_forward(self, chunk: int) -> None:
        if self._replaces and torch.is_grad_enabled():
            self._accumulations[chunk].keep = self._forwards[chunk] > 0
            self._forwards[chunk] += 1

    def _graphed(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the micro-batch's mean loss; its gradients are accumulated, divided by the number of micro-batches."""
        self._count_forward(0)
        if self._graph is None:
            # Before the first gradients of a run exist, so what warm-up leaves behind may simply be cleared.
            self._graph = GraphedMicroBatch(self._forward_backward, tokens, labels)
            self.optimizer.clear()
        return self._graph(tokens, labels).clone()

    def _forward_backward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        if self.optimizer.stream is not None:
            self.optimizer.stream.begin()
        loss = self._module(0, tokens, labels)
        (loss / self._num_microbatches).backward()
        if self.optimizer.stream is not None:
            self.optimizer.stream.settle()
        detached: Tensor = loss.detach()
        return detached

    def forward(self, chunk: int, tokens: Tensor, labels: Tensor | None) -> Tensor:
        self._count_forward(chunk)
        output: Tensor = self._module(chunk, tokens, labels)
        return output

    def backward(self, scalar: Tensor) -> None:
        (scalar if self._scale is None else scalar * self._scale.value).backward()  # type: ignore[no-untyped-call]

    def step(self, learning_rate: float) -> StepReport:
        self._staged = None
        self._forwards = [0] * len(self._stages)
        self._sum_tied()
        divisor = 1.0 if self._scale is None else self._scale.value
        # The only wait of a step comes after everything is launched.
        norm = float(self.optimizer.step(learning_rate, divisor))
        finite = math.isfinite(norm)
        if not finite:
            self.optimizer.retract()
        if self._scale is not None:
            self._scale.update(finite)
        return StepReport(norm, not finite)

    def _sum_tied(self) -> None:
        if not self._tied_grads:
            return
        from megatron.core import parallel_state

        for grad in self._tied_grads:
            dist.all_reduce(grad, group=parallel_state.get_embedding_group())

    def train(self, training: bool) -> None:
        self._module.train(training)

    def skip(self) -> None:
        self._forwards = [0] * len(self._stages)
        self.optimizer.clear()

    def fragments(self) -> Iterator[Fragment]:
        """Yield views of this rank's state; those of `master` count once `refresh` is called (see Engine)."""
        if not self.optimizer.groups.sharded and self._mesh.where.dp_rank:
            return
        state = self.optimizer.state
        # Halves have no fp32 view: the whole weights are made once, and taken back by `refresh`.
        master = self._staged = state.master()
        for piece in self.optimizer.layout.fragments(state.shard):
            own = slice(piece.shard_start, piece.shard_start + piece.numel)
            states = {"master": master[own], "exp_avg": state.exp_avg[own], "exp_avg_sq": state.exp_avg_sq[own]}
            yield Fragment(self._infos[piece.name], piece.parameter_start, states)

    def counters(self) -> dict[str, float]:
        scale = {} if self._scale is None else {"loss_scale": self._scale.value}
        return {"optimizer_steps": float(self.optimizer.steps), **scale}

    def refresh(self, counters: Mapping[str, float]) -> None:
        self.optimizer.steps = int(counters["optimizer_steps"])
        if self._scale is not None and "loss_scale" in counters:
            self._scale.value = counters["loss_scale"]
        state, groups = self.optimizer.state, self.optimizer.groups
        master = state.master() if self._staged is None else self._staged
        if groups.data is not None and not groups.sharded:
            for tensor in (master, state.exp_avg, state.exp_avg_sq):
                dist.broadcast(tensor, dist.get_global_rank(groups.data, 0), group=groups.data)
        state.set_master(master)
        self._staged = None
        self.optimizer.publish()


def _launch_bound(job: JobConfig) -> bool:
    model, tokens = job.plan.model, job.plan.sizes.micro_batch_size * job.plan.model.sequence_length
    return model_flops_per_token(model) * tokens / model.num_layers < GRAPH_BELOW_FLOPS


def compile_layers(stage: Stage) -> None:
    """Compile each transformer layer by itself: equal layers share their kernels, so it costs one compilation.

    Functions are compiled, not modules: hooks of trainer.flat_stream stay outside.
    """
    _launch_without_interpreter_lock()
    # Layers differ in nothing that the compiler guards, but modes do (evaluation, recomputation).
    torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
    layers: list[Any] = list(stage.decoder.layers)
    for layer in layers:
        if layer._options.recompute_mlp:
            # A checkpoint cannot be compiled into, so its two sides are.
            layer.self_attention.forward = _compiled(layer.self_attention.forward)
            layer._feed_forward = _compiled(layer._feed_forward)
        else:
            layer.forward = _compiled(layer.forward)


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function whose backward pass computes cheap elementwise results again; see KEPT_SHARE."""
    return torch.compile(function, backend=_thrifty_inductor, dynamic=False)


def _thrifty_inductor(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
    from torch._functorch import config
    from torch._inductor.compile_fx import compile_fx

    # What is kept for the backward pass is chosen in here, though that pass may be compiled later.
    with config.patch(activation_memory_budget=KEPT_SHARE):
        return compile_fx(graph, inputs)


def _launch_without_interpreter_lock() -> None:
    """Let a launch that waits for a full queue give up Python's lock, as Triton's own launcher does.

    Inductor's static launcher keeps it. When a peer hangs, the queue stays full, and then neither NCCL's watchdog can
    record the collective (it wants the Python stack) nor a signal end the process: measured with torch 2.11.
    """
    from torch._inductor import config

    if hasattr(config, "use_static_cuda_launcher"):
        config.use_static_cuda_launcher = False


def _build_optimizer(
    job: JobConfig, mesh: Mesh, infos: Sequence[ParameterInfo], weights: LocalTensor | None
) -> FlatOptimizer:
    sizes, config = job.plan.sizes, job.train.optimizer

    def counts(info: ParameterInfo) -> bool:
        twice = sizes.pipeline_parallel_size > 1 and is_tied_copy(info.name, job.plan.model)
        return not twice and (info.split_dim is not None or mesh.where.tp_rank == 0)

    groups = FlatGroups(
        mesh.data if sizes.data_parallel_size > 1 else None,
        mesh.model if sizes.parallel.model_parallel_size > 1 else None,
        sizes.zero_stage > 0,
    )
    constants = AdamWConstants(config.beta1, config.beta2, config.epsilon, config.weight_decay)
    parameters = [FlatParameter(info.name, info.parameter, decays(info), counts(info), _unit(info)) for info in infos]
    # Adapters alone have no units: they are small, and stay.
    streams = any(parameter.unit for parameter in parameters)
    streaming = Streaming(gradients=streams and sizes.zero_stage >= 2, weights=streams and sizes.zero_stage == 3)
    by_name = {info.name: info for info in infos}
    values = None if weights is None else (lambda name: weights(by_name[name]))
    options = FlatOptions(constants, config.clip_grad, home=_home(job, mesh))
    return FlatOptimizer(parameters, groups, options, streaming, values)


def _home(job: JobConfig, mesh: Mesh) -> Home:
    directory = job.train.offload_directory
    place = None if directory is None else Path(directory)
    return Home(job.plan.sizes.offload, place, f"{job.plan.run}.rank{mesh.rank}.{os.getpid()}")


def _unit(info: ParameterInfo) -> str:
    """Return the layer that a matrix belongs to; norms, biases, adapters, embeddings and the head stay resident."""
    match = _LAYER_MATRIX.fullmatch(info.name)
    return "" if match is None else match.group(1)
