"""Low-rank adapters (Hu et al. 2021): y = W x + (alpha / rank) B A x, with W frozen.

Under tensor parallelism A or B is split as W is, the other is replicated; gradients of the replicated one are summed
inside autograd, so every engine sees them right.
"""

from __future__ import annotations

from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from torch import Tensor, nn

from ..config import LoraConfig
from .layers import RowLinear, shared_over_sequence
from .stage import Stage


class LoraColumn(ColumnParallelLinear):
    """Column-parallel linear with an adapter: A (rank, in) replicated, B (out // tp, rank) split."""

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        output, bias = super().forward(hidden)
        if self.sequence_parallel:
            whole = gather_from_sequence_parallel_region(hidden, group=self.tp_group)
        else:
            whole = copy_to_tensor_model_parallel_region(hidden, group=self.tp_group)
        first = copy_to_tensor_model_parallel_region(self.lora_a, group=self.tp_group)
        return output + (whole @ first.t()) @ self.lora_b.t() * self.lora_scale, bias


class LoraRow(RowLinear):
    """Row-parallel linear with an adapter: A (rank, in // tp) split, B (out, rank) replicated."""

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        output, bias = super().forward(hidden)
        narrow = hidden @ self.lora_a.t()
        if self.sequence_parallel:
            narrow = reduce_scatter_to_sequence_parallel_region(narrow, group=self.tp_group)
        else:
            narrow = reduce_from_tensor_model_parallel_region(narrow, group=self.tp_group)
        second = shared_over_sequence(self.lora_b, self.sequence_parallel, self.tp_group)
        return output + narrow @ second.t() * self.lora_scale, bias


def add_adapters(stage: Stage, lora: LoraConfig) -> None:
    """Freeze a stage and give the named linears adapters, still without values."""
    for parameter in stage.parameters():
        parameter.requires_grad_(False)
    if stage.embedding is not None:
        # Recomputation passes gradients only to inputs that want them, and a frozen embedding's output would not.
        stage.embedding.output_requires_grad = True
    for name, module in list(stage.decoder.named_modules()):
        if name.rpartition(".")[2] in lora.targets:
            _adapt(module, lora)


def _adapt(module: nn.Module, lora: LoraConfig) -> None:
    weight = module.weight
    assert isinstance(weight, Tensor), "a linear has a weight"
    rows, columns = weight.shape
    module.__class__ = LoraRow if isinstance(module, RowLinear) else LoraColumn
    module.register_parameter("lora_a", nn.Parameter(weight.new_empty(lora.rank, columns)))
    module.register_parameter("lora_b", nn.Parameter(weight.new_empty(rows, lora.rank)))
    module.lora_scale = lora.alpha / lora.rank  # type: ignore[assignment]
