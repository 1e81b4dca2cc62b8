"""ZeRO 1 to 3 by one DeepSpeed engine; Megatron's schedule drives it.

Reads private state of DeepSpeed's optimizers (checked with 0.19.8). Numeric tests: tests/unit/trainer/test_layouts.py
and test_checkpoint_layouts.py.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .config import JobConfig
from .deepspeed_config import deepspeed_settings
from .engine import Filling, Fragment, StageList, StepReport, decays, sum_tied_gradients
from .mesh import DeepSpeedMpu, Mesh
from .model.init import fill
from .model.partition import ParameterInfo
from .model.stage import Stage


class DeepSpeedZero:
    """See trainer.engine.Engine."""

    name = "deepspeed"
    micro_batch = None

    def __init__(
        self,
        job: JobConfig,
        mesh: Mesh,
        stages: Sequence[Stage],
        infos: Sequence[ParameterInfo],
        filling: Filling | None = None,
    ) -> None:
        """Take the parameters over; with `filling` they are hollow, and ZeRO 3 partitions each once it is filled."""
        import deepspeed

        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        self._stages, self._mesh, self._stage = stages, mesh, job.plan.sizes.zero_stage
        self._infos = {id(info.parameter): info for info in infos}
        self._boundary_after = job.plan.sizes.num_microbatches * len(stages)
        self._backwards = 0
        self._tied = job.plan.model.tied_embeddings and job.plan.sizes.pipeline_parallel_size > 1
        self._mark_tied_copy(job)
        optimizer = _adam(job, infos, mesh.device)
        settings = deepspeed_settings(job, not self._tied, sum(info.parameter.numel() for info in infos))
        deepspeed.init_distributed(
            dist_backend=job.train.backend, auto_mpi_discovery=False, verbose=False, dist_init_required=False
        )
        mpu = DeepSpeedMpu(mesh)
        if filling is not None:
            _partition(filling, mesh, mpu, settings)
        self._engine, self._optimizer, _, _ = deepspeed.initialize(
            model=StageList(stages),
            optimizer=optimizer,
            mpu=mpu,
            config=settings,
            dist_init_required=False,
        )
        self._client = optimizer

    def forward(self, chunk: int, tokens: Tensor, labels: Tensor | None) -> Tensor:
        output: Tensor = self._engine(chunk, tokens, labels)
        return output

    def backward(self, scalar: Tensor) -> None:
        self._backwards += 1
        if not self._tied:
            self._engine.set_gradient_accumulation_boundary(self._backwards == self._boundary_after)
        self._engine.backward(scalar, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> StepReport:
        if self._tied:
            sum_tied_gradients(self._stages, self._mesh.sizes.pipeline_parallel_size)
        for group in self._client.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        self._backwards = 0
        norm = self._engine.get_global_grad_norm()
        return StepReport(
            float("nan") if norm is None else float(norm), bool(getattr(self._optimizer, "overflow", False))
        )

    def train(self, training: bool) -> None:
        self._engine.train(training)

    def skip(self) -> None:
        self._optimizer.zero_grad()
        self._backwards = 0

    def fragments(self) -> Iterator[Fragment]:
        if self._stage == 3:
            yield from self._stage3_fragments()
            return
        low = getattr(self._optimizer, "bit16_groups", None) or self._optimizer.bf16_groups
        for flat, parameters in zip(self._flat_masters(), low):
            states = self._states(flat)
            for parameter in parameters:
                mapping = getattr(parameter, "_hp_mapping", None)
                if mapping is None:
                    continue
                own, whole = mapping.hp_fragment_address, mapping.lp_fragment_address
                views = {kind: tensor.view(-1).narrow(0, own.start, own.numel) for kind, tensor in states.items()}
                yield Fragment(self._infos[id(parameter)], whole.start, views)

    def _stage3_fragments(self) -> Iterator[Fragment]:
        rank = self._mesh.where.dp_rank
        for flat, parameters in zip(self._optimizer.fp32_partitioned_groups_flat, self._optimizer.fp16_groups):
            states, offset = self._states(flat), 0
            for parameter in parameters:
                info = self._infos[id(parameter)]
                length = parameter.ds_tensor.ds_numel
                start = rank * length
                used = max(0, min(length, parameter.ds_numel - start))
                if used:
                    views = {kind: tensor.view(-1).narrow(0, offset, used) for kind, tensor in states.items()}
                    yield Fragment(info, start, views)
                offset += length

    def _flat_masters(self) -> Sequence[Tensor]:
        masters = getattr(self._optimizer, "single_partition_of_fp32_groups", None)
        chosen: Sequence[Tensor] = masters if masters else self._optimizer.fp32_groups_flat_partition
        return chosen

    def _states(self, flat: Tensor) -> dict[str, Tensor]:
        """Return a flat partition with its moments, made as zeros where no step was taken yet."""
        state: dict[str, Any] = self._client.state[flat]
        if "exp_avg" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=flat.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(flat), torch.zeros_like(flat)
        return {"master": flat.data, "exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"]}

    def counters(self) -> dict[str, float]:
        steps = [float(state["step"]) for state in self._client.state.values() if "step" in state]
        scaler = getattr(self._optimizer, "loss_scaler", None)
        scale = {} if scaler is None else {"loss_scale": float(scaler.loss_scale)}
        return {"optimizer_steps": steps[0] if steps else 0.0, **scale}

    def refresh(self, counters: Mapping[str, float]) -> None:
        for state in self._client.state.values():
            state["step"].fill_(counters["optimizer_steps"])
        scaler = getattr(self._optimizer, "loss_scaler", None)
        if scaler is not None and "loss_scale" in counters:
            scaler.cur_scale = counters["loss_scale"]
        if self._stage == 3:
            self._refresh_stage3()
        else:
            self._optimizer.update_lp_params()

    def _refresh_stage3(self) -> None:
        for flat, parameters in zip(self._optimizer.fp32_partitioned_groups_flat, self._optimizer.fp16_groups):
            offset = 0
            for parameter in parameters:
                length = parameter.ds_tensor.ds_numel
                parameter.ds_tensor.data.view(-1).copy_(flat.data.view(-1).narrow(0, offset, length))
                offset += length

    def _mark_tied_copy(self, job: JobConfig) -> None:
        """Let DeepSpeed's norm count the last stage's copy of a tied embedding not at all."""
        if not self._tied:
            return
        for stage in self._stages:
            if stage.output_layer is not None:
                stage.output_layer.weight.ds_pipe_replicated = True


def _partition(filling: Filling, mesh: Mesh, mpu: DeepSpeedMpu, settings: dict[str, Any]) -> None:
    """Fill hollow parameters one by one, each partitioned over the data-parallel ranks before the next is filled.

    It does what a model built inside `deepspeed.zero.Init` would get, without a broadcast: all ranks draw alike.
    """
    import deepspeed

    first = filling.infos[0].parameter
    for info in filling.infos:
        fill([info], filling.weights)
        if info.parameter is not first:
            first.convert_to_zero_parameters(param_list=[info.parameter])  # type: ignore[attr-defined]
            continue
        holder = nn.ParameterList([first])
        deepspeed.zero.Init(
            module=holder, data_parallel_group=mesh.data, dtype=first.dtype, config_dict_or_path=settings, mpu=mpu
        )


class _EagerAdamW(torch.optim.AdamW):
    """AdamW whose step is not wrapped for compilers: the wrapper would load one, a second of every process."""

    _plain_step = staticmethod(inspect.unwrap(torch.optim.AdamW.step))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take a step; nothing here is compiled, and gradients through a step are not wanted."""
        return self._plain_step(self, closure)


def _adam(job: JobConfig, infos: Sequence[ParameterInfo], device: torch.device) -> torch.optim.AdamW:
    config = job.train.optimizer
    decayed = [info.parameter for info in infos if decays(info)]
    others = [info.parameter for info in infos if not decays(info)]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return _EagerAdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=device.type == "cuda",
    )
