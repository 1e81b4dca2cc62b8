"""One model chunk of one pipeline stage: what a rank holds of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel import (
    ColumnParallelLinear,
    VocabParallelEmbedding,
    scatter_to_sequence_parallel_region,
    vocab_parallel_cross_entropy,
)
from megatron.core.transformer.enums import ModelType
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from .layers import (
    LayerOptions,
    ParallelNorm,
    Rotary,
    TransformerLayer,
    _no_init,
    drop,
    run_again_in_backward,
)


@dataclass(frozen=True)
class StageSpan:
    """Which part of the model a chunk is: layers [first_layer, first_layer + num_layers), counted from zero."""

    first_layer: int
    num_layers: int
    has_embedding: bool
    has_output: bool
    virtual_index: int | None


class Embedding(nn.Module):
    """Word embeddings split over the vocabulary, and learned positions where the model has them."""

    def __init__(self, options: LayerOptions, config: TransformerConfig, group: torch.distributed.ProcessGroup) -> None:
        super().__init__()
        model = options.model
        self._options, self._group = options, group
        self.output_requires_grad = False
        self.word_embeddings = VocabParallelEmbedding(
            model.vocab_size, model.hidden_size, init_method=_no_init, config=config, tp_group=group
        )
        self.position_embeddings: nn.Embedding | None = None
        if model.position_embedding == "learned":
            # Its own first values would be drawn in vain (and would load the compiler, seconds per process).
            values = torch.empty(model.position_rows, model.hidden_size, dtype=config.params_dtype)
            self.position_embeddings = nn.Embedding(model.position_rows, model.hidden_size, _weight=values)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return (sequence, batch, hidden) for tokens (batch, sequence)."""
        hidden: Tensor = self.word_embeddings(tokens)
        if self.position_embeddings is not None:
            hidden = hidden + self.position_embeddings.weight[: tokens.shape[1]]
        hidden = hidden.transpose(0, 1).contiguous()
        if self._options.sequence_parallel:
            hidden = scatter_to_sequence_parallel_region(hidden, group=self._group)
        if self.output_requires_grad and torch.is_grad_enabled():
            hidden = hidden.detach().requires_grad_()
        return drop(hidden, self._options.hidden_dropout, self.training, self._options.sequence_parallel)


class Decoder(nn.Module):
    """The layers of a chunk, and the final norm on the last one."""

    def __init__(
        self,
        options: LayerOptions,
        config: TransformerConfig,
        group: torch.distributed.ProcessGroup,
        span: StageSpan,
        recompute_layers: bool,
    ) -> None:
        super().__init__()
        self._options, self._recompute_layers = options, recompute_layers
        self.layers = nn.ModuleList(TransformerLayer(options, config, group) for _ in range(span.num_layers))
        self.final_layernorm = ParallelNorm(options, config, group) if span.has_output else None

    def forward(self, hidden: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        for layer in self.layers:
            if self._recompute_layers and self.training:
                # A checkpoint takes tensors only, so the pair is handed over as two arguments.
                hidden = run_again_in_backward(self._options, _with_rotary(layer), hidden, *(rotary or ()))
            else:
                hidden = layer(hidden, rotary)
        return hidden if self.final_layernorm is None else self.final_layernorm(hidden)


def _with_rotary(layer: nn.Module) -> Callable[..., Tensor]:
    def run(hidden: Tensor, *rotary: Tensor) -> Tensor:
        output: Tensor = layer(hidden, rotary or None)
        return output

    return run


class Stage(nn.Module):
    """A model chunk as Megatron's schedules want it: it has `config`, `model_type` and `set_input_tensor`."""

    def __init__(
        self,
        options: LayerOptions,
        config: TransformerConfig,
        group: torch.distributed.ProcessGroup,
        span: StageSpan,
        recompute_layers: bool,
    ) -> None:
        super().__init__()
        self.config, self.span, self.vp_stage = config, span, span.virtual_index
        self.model_type = ModelType.encoder_or_decoder
        self.pre_process, self.post_process = span.has_embedding, span.has_output
        self.share_embeddings_and_output_weights = options.model.tied_embeddings
        self._input: Tensor | None = None
        self.embedding = Embedding(options, config, group) if span.has_embedding else None
        self.decoder = Decoder(options, config, group, span, recompute_layers)
        self.rotary = None
        if options.model.position_embedding == "rotary":
            self.rotary = Rotary(options.model, options.device)
        self.output_layer = None
        if span.has_output:
            self.output_layer = ColumnParallelLinear(
                options.model.hidden_size,
                options.model.vocab_size,
                config=config,
                init_method=_no_init,
                bias=False,
                gather_output=False,
                skip_weight_param_allocation=options.model.tied_embeddings and span.has_embedding,
                tp_group=group,
            )

    def set_input_tensor(self, input_tensor: Any) -> None:
        """Take the activations of the previous stage; Megatron passes a list of one."""
        self._input = input_tensor[0] if isinstance(input_tensor, list) else input_tensor

    def shared_embedding_weight(self) -> Tensor | None:
        """Return this chunk's copy of a tied embedding, or None."""
        if not self.share_embeddings_and_output_weights:
            return None
        if self.embedding is not None:
            weight: Tensor = self.embedding.word_embeddings.weight
            return weight
        return None if self.output_layer is None else self.output_layer.weight

    def forward(self, tokens: Tensor, labels: Tensor | None) -> Tensor:
        """Return activations for the next stage; on the last, the mean loss (nats), or logits if labels is None.

        Logits are (sequence, batch, vocabulary // tp).
        """
        hidden = self._input if self.embedding is None else self.embedding(tokens)
        assert hidden is not None, "the schedule sets the input of a middle stage"
        rotary = None if self.rotary is None else self.rotary(tokens.shape[1])
        output: Tensor = self.decoder(hidden, rotary)
        if self.output_layer is None:
            return output
        return self._head(output, labels)

    def _head(self, hidden: Tensor, labels: Tensor | None) -> Tensor:
        assert self.output_layer is not None, "only the last stage has a head"
        weight = self.shared_embedding_weight() if self.output_layer.weight is None else None
        logits, _ = self.output_layer(hidden, weight=weight)
        output: Tensor = logits if labels is None else self._loss(logits, labels)
        return output

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        by_position = labels.transpose(0, 1).contiguous()
        if self.config.tensor_model_parallel_size == 1:
            return F.cross_entropy(logits.flatten(0, 1).float(), by_position.flatten())
        losses: Tensor = vocab_parallel_cross_entropy(logits.float(), by_position)
        return losses.mean()
