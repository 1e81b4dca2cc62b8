"""Seconds of one layer's and of the loss head's passes for one micro-batch on one rank."""

from __future__ import annotations

from dataclasses import dataclass

from .activations import tokens_per_rank
from .architecture import Architecture
from .constants import Constants
from .kernels import Kernels, Links
from .machine import Software
from .rules import Layout
from .shapes import padded_vocabulary

_SMOOTH = 4.0  # exponent of smooth minima and maxima
# Bytes per logit that the loss reads and writes forward and backward: fused, compiled, Megatron's steps, torch's steps.
_LOSS_TRAFFIC = {2: (8, 8), 4: (8, 8), 6: (38, 14), 14: (30, 20)}
# A head dimension that 8 does not divide leaves the tensor cores: 312 against 78 TFLOP/s (NVIDIA A100 data sheet).
_OFF_TENSOR_CORES = 4.0
_BACKWARD_STREAM = 1.5  # elementwise kernels read the output's gradient beside their input


@dataclass(frozen=True)
class PassTimes:
    """Seconds of a forward and a backward pass: arithmetic and kernels, attention core, and exposed collectives."""

    forward: float
    backward: float
    attention_forward: float
    attention_backward: float
    traffic_forward: float
    traffic_backward: float
    stream_forward: float

    @property
    def forward_total(self) -> float:
        """Seconds of the forward pass."""
        return self.forward + self.attention_forward + self.traffic_forward

    @property
    def backward_total(self) -> float:
        """Seconds of the backward pass, without recomputation."""
        return self.backward + self.attention_backward + self.traffic_backward


def smooth_max(first: float, second: float) -> float:
    """Return a maximum without a kink."""
    if first <= 0 or second <= 0:
        return max(first, second)
    return float((first**_SMOOTH + second**_SMOOTH) ** (1 / _SMOOTH))


def hidden_seconds(traffic: float, compute: float, overlap: float) -> float:
    """Return the seconds of traffic that compute hides: at most both, smoothly, times how well software overlaps."""
    if traffic <= 0 or compute <= 0 or overlap <= 0:
        return 0.0
    return float(overlap * (traffic**-_SMOOTH + compute**-_SMOOTH) ** (-1 / _SMOOTH))


@dataclass(frozen=True)
class PassModel:
    """Everything that the passes of one job have in common."""

    model: Architecture
    software: Software
    kernels: Kernels
    links: Links
    constants: Constants

    def layer(self, layout: Layout, moe: bool = False) -> PassTimes:
        """Return the times of one layer."""
        tokens = tokens_per_rank(self.model, layout)
        attention, weights = self._attention_products(layout, tokens)
        inner, inner_weights = self._inner_products(layout, tokens, moe)
        products = attention + inner
        backward_products = products if self.software.trains == "adapters" else 2 * products
        if self.software.trains == "all":
            # Read and write the accumulated gradient; DeepSpeed's pipeline adds a separate one to it.
            accumulate = 4 if self.software.gradient_bytes == 2 else 8
            accumulate += 4 if layout.engine == "deepspeed-pipeline" else 0
            backward_products += accumulate * (weights + inner_weights) * self.kernels.seconds_per_byte
        stream = self.kernels.stream(self._stream_bytes(layout, tokens, moe))
        core_forward, core_backward = self._attention_core(layout, tokens)
        traffic = self._tensor_traffic(layout, tokens, moe)
        overlap = self.constants.tensor_overlap if self.software.tensor_overlap else 0.0
        ahead = traffic - hidden_seconds(traffic, products, overlap)
        back = traffic - hidden_seconds(traffic, backward_products, overlap)
        exchange = self._expert_exchange(layout, tokens) if moe else 0.0
        ring = self._context_traffic(layout, tokens)
        shield = self.constants.data_overlap if self.software.overlap else 0.0
        ahead += ring - hidden_seconds(ring, core_forward, shield)
        back += 2 * ring - hidden_seconds(2 * ring, core_backward, shield)
        # Recipes run one micro-batch's exchange beside another's products, where tensor traffic is overlapped too.
        ahead += exchange - hidden_seconds(exchange, products + core_forward, overlap)
        back += exchange - hidden_seconds(exchange, backward_products + core_backward, overlap)
        forward = products + stream
        backward = backward_products + _BACKWARD_STREAM * stream
        host = self.kernels.host_seconds * (1.0 if layout.sizes.tensor_parallel_size == 1 else 1.3)
        # The host launches kernels ahead of the device; where it is slower, it sets the pace.
        waits = smooth_max(forward + core_forward + ahead, host) - (forward + core_forward + ahead)
        waits_back = smooth_max(backward + core_backward + back, 1.5 * host) - (backward + core_backward + back)
        return PassTimes(forward + waits, backward + waits_back, core_forward, core_backward, ahead, back, stream)

    def head(self, layout: Layout) -> PassTimes:
        """Return the times of the output layer and the loss."""
        tensor = layout.sizes.tensor_parallel_size
        tokens = tokens_per_rank(self.model, layout)
        columns = padded_vocabulary(self.model.vocab_size, tensor) / tensor
        # The head stays in 16 bit whatever the layers compute in.
        product = 2 * tokens * columns * self.model.hidden_size * self.kernels.wide_seconds_per_flop
        ahead, back = _LOSS_TRAFFIC[self.software.loss_bytes]
        loss = self.kernels.stream(ahead * tokens * columns)
        backward = product if self.software.trains == "adapters" else 2 * product
        backward += self.kernels.stream(back * tokens * columns)
        return PassTimes(product + loss, backward, 0.0, 0.0, 0.0, 0.0, loss)

    def _attention_products(self, layout: Layout, tokens: float) -> tuple[float, float]:
        """Return (seconds, parameters) of the projections around attention."""
        model, tensor, product = self.model, layout.sizes.tensor_parallel_size, self.kernels.product
        hidden = model.hidden_size
        parameters = model.attention_parameters / tensor
        mla = model.latent_attention
        if mla is not None:
            heads = model.num_attention_heads
            query = heads * (mla.qk_nope_head_dim + mla.qk_rope_head_dim) / tensor
            seconds = product(tokens, mla.q_lora_rank + mla.kv_lora_rank + mla.qk_rope_head_dim, hidden)
            seconds += product(tokens, query, mla.q_lora_rank or hidden)
            seconds += product(tokens, heads * (mla.qk_nope_head_dim + mla.v_head_dim) / tensor, mla.kv_lora_rank)
            return seconds + product(tokens, hidden, heads * mla.v_head_dim / tensor), parameters
        seconds = product(tokens, (model.query_width + 2 * model.kv_width) / tensor, hidden)
        return seconds + product(tokens, hidden, model.query_width / tensor), parameters

    def _inner_products(self, layout: Layout, tokens: float, moe: bool) -> tuple[float, float]:
        """Return (seconds, parameters) of the feed-forward block."""
        model, tensor, product = self.model, layout.sizes.tensor_parallel_size, self.kernels.product
        hidden, gate = model.hidden_size, 2 if model.gated else 1
        experts = model.experts
        if not moe or experts is None:
            width = model.ffn_hidden_size / tensor
            seconds = product(tokens, gate * width, hidden) + product(tokens, hidden, width)
            return seconds, model.mlp_parameters / tensor
        local = experts.num_experts / layout.sizes.expert_parallel_size
        width, rows = experts.ffn_hidden_size, tokens * experts.experts_per_token / tensor
        grouped = product(rows, gate * width, hidden) + product(rows, hidden, width)
        grouped += 2 * local * model.expert_parameters * self.kernels.seconds_per_byte
        seconds = grouped / self.constants.expert_product
        shared = experts.shared_ffn_hidden_size / tensor
        if shared:
            seconds += product(tokens, gate * shared, hidden) + product(tokens, hidden, shared)
        return seconds, local * model.expert_parameters + model.router_parameters / tensor

    def _stream_bytes(self, layout: Layout, tokens: float, moe: bool) -> float:
        """Return the necessary bytes of elementwise kernels: two norms, two residuals, activation, rotation."""
        model, tensor = self.model, layout.sizes.tensor_parallel_size
        between = 20 * tokens * model.hidden_size / (tensor if layout.sequence_parallel else 1)
        rotary = 4 * (model.query_width + model.kv_width) if model.position_embedding == "rotary" else 0
        per_element = 6 if model.gated else 4
        experts = model.experts
        if moe and experts is not None:
            inner = experts.experts_per_token * (per_element * experts.ffn_hidden_size + 8 * model.hidden_size)
            inner += per_element * experts.shared_ffn_hidden_size
        else:
            inner = per_element * model.ffn_hidden_size
        return between + tokens * (inner + rotary) / tensor

    def _attention_core(self, layout: Layout, tokens: float) -> tuple[float, float]:
        """Return seconds of the attention core, forward and backward."""
        model, tensor = self.model, layout.sizes.tensor_parallel_size
        keys = model.sequence_length
        mla = model.latent_attention
        widths = 2 * model.query_width
        if mla is not None:
            widths = model.num_attention_heads * (model.head_dim + mla.v_head_dim)
        if self.software.flash_attention:
            # Blocks on the diagonal and the fill of the kernel's pipeline cost as much as some more keys.
            seen = (keys + self.constants.attention_extra_keys) / 2
            if model.attention_window:
                # Every other layer looks back over a window only (GPT-OSS).
                seen = (seen + min(seen, model.attention_window)) / 2
            forward = 2 * tokens * seen * widths / tensor * self.kernels.attention_seconds_per_flop
            return forward, 2.5 * forward
        flops = 2 * tokens * keys * widths / tensor * self.kernels.score_seconds_per_flop
        if model.head_dim % 8:
            flops *= _OFF_TENSOR_CORES
        scores = tokens * keys * model.num_attention_heads / tensor
        # Forward writes and reads scores, softmax, mask and dropout (13 B), backward their gradients too (19 B).
        byte_seconds = self.kernels.seconds_per_byte
        return flops + 13 * scores * byte_seconds, 2 * flops + 19 * scores * byte_seconds

    def _tensor_traffic(self, layout: Layout, tokens: float, moe: bool) -> float:
        """Return seconds of tensor-parallel collectives of one pass: two all-reduces, or their two halves each."""
        tensor = layout.sizes.tensor_parallel_size
        rounds = 2 if moe and self.model.experts is not None else 4
        return self.links.ring(2 * tokens * self.model.hidden_size, tensor, 1, rounds)

    def _expert_exchange(self, layout: Layout, tokens: float) -> float:
        """Return seconds of dispatch and combination of tokens for one pass."""
        size, experts = layout.sizes.expert_parallel_size, self.model.experts
        if size == 1 or experts is None:
            return 0.0
        copies = tokens / layout.sizes.tensor_parallel_size * experts.experts_per_token
        seconds = self.links.exchange(
            2 * copies * self.model.hidden_size, size, experts.experts_per_token, experts.domain_limit
        )
        return 2 * seconds / self.constants.expert_exchange

    def _context_traffic(self, layout: Layout, tokens: float) -> float:
        """Return seconds of passing keys and values around the context ring, forward."""
        size = layout.sizes.context_parallel_size
        if size == 1:
            return 0.0
        tensor = layout.sizes.tensor_parallel_size
        byte_count = 4 * tokens * self.model.kv_width / tensor * size
        return self.links.ring(byte_count, size, tensor)
