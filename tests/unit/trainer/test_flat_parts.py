"""The pieces of the flat engine, each against the plain form of its mathematics."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from trainer.flat_activation import fast_gelu
from trainer.flat_adamw import AdamWConstants, merge_halves, split_halves
from trainer.flat_layout import ALIGNMENT, ParameterSpec, plan_flat_layout
from trainer.flat_linear import add_bias, flat_linear, sink
from trainer.flat_loss import LossHead, flat_cross_entropy
from trainer.flat_optimizer import FlatGroups, FlatOptimizer, FlatOptions, FlatParameter

ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-10}
SPECS = st.lists(
    st.tuples(
        st.lists(st.integers(1, 40), min_size=1, max_size=2),
        st.booleans(),
        st.booleans(),
        st.sampled_from(["", "0", "1"]),
    ),
    min_size=1,
    max_size=12,
)


def specs_of(drawn: list[tuple[list[int], bool, bool, str]]) -> list[ParameterSpec]:
    ordered = sorted(drawn, key=lambda item: item[3])
    return [ParameterSpec(str(i), tuple(shape), d, c, unit) for i, (shape, d, c, unit) in enumerate(ordered)]


@given(SPECS, st.integers(1, 8), st.integers(1, 500))
def test_fragments_of_all_shards_cover_every_parameter_once(
    drawn: list[tuple[list[int], bool, bool, str]], shards: int, bucket_numel: int
) -> None:
    specs = specs_of(drawn)
    layout = plan_flat_layout(specs, shards, bucket_numel)
    seen = {spec.name: torch.zeros(spec.numel, dtype=torch.int32) for spec in specs}
    for shard in range(shards):
        used = torch.zeros(layout.shard_numel, dtype=torch.int32)
        for piece in layout.fragments(shard):
            seen[piece.name][piece.parameter_start : piece.parameter_start + piece.numel] += 1
            used[piece.shard_start : piece.shard_start + piece.numel] += 1
        assert used.max() <= 1
    assert all((count == 1).all() for count in seen.values())


@given(SPECS, st.integers(1, 8), st.integers(1, 500))
def test_kinds_partition_the_buffer_and_start_aligned(
    drawn: list[tuple[list[int], bool, bool, str]], shards: int, bucket_numel: int
) -> None:
    layout = plan_flat_layout(specs_of(drawn), shards, bucket_numel)
    position = 0
    for kind in layout.kinds:
        assert kind.start == position
        assert kind.numel % (shards * ALIGNMENT) == 0
        position += kind.numel
    assert position == layout.numel
    for bucket in layout.buckets:
        assert len({(s.spec.decayed, s.spec.counted, s.spec.unit) for s in bucket.slots}) == 1


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
def test_halves_hold_every_bit_and_the_upper_one_is_rounded_to_nearest(values: list[float]) -> None:
    master = torch.tensor(values, dtype=torch.float32).clamp(-3e38, 3e38)
    upper, rest = split_halves(master)
    assert torch.equal(merge_halves(upper, rest).view(torch.int32), master.view(torch.int32))
    nearest = (master - master.bfloat16().float()).abs()
    assert torch.equal((master - upper.float()).abs(), nearest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_steps_equal_those_of_torch_with_clipping(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(33, 17), torch.nn.LayerNorm(17), torch.nn.Linear(17, 5)).to(dtype)
    masters = [p.detach().float().requires_grad_() for p in net.parameters()]
    decayed = [p for p in masters if p.ndim > 1]
    others = [p for p in masters if p.ndim == 1]
    theirs = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-2, betas=(0.9, 0.95)
    )
    parameters = [FlatParameter(name, p, p.ndim > 1, True) for name, p in net.named_parameters()]
    ours = FlatOptimizer(parameters, FlatGroups(None, None), FlatOptions(AdamWConstants(), 1.0))
    for _ in range(5):
        for parameter, master in zip(net.parameters(), masters):
            master.grad = torch.randn_like(master)
            ours.main_grads[parameter].copy_(master.grad)
        norm = torch.nn.utils.clip_grad_norm_(masters, 1.0)
        theirs.step()
        assert float(ours.step(1e-2)) == pytest.approx(float(norm), rel=1e-5)
        for parameter, master in zip(net.parameters(), masters):
            # One unit in the last place of the short type, where masters that differ in rounding fall on either side.
            torch.testing.assert_close(parameter.float(), master.detach(), rtol=ROUNDING[dtype], atol=1e-6)
    views = {piece.name: ours.state.master()[piece.shard_start :][: piece.numel] for piece in ours.layout.fragments(0)}
    for (name, _), master in zip(net.named_parameters(), masters):
        torch.testing.assert_close(views[name].view_as(master), master.detach(), rtol=1e-5, atol=1e-6)


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    net = torch.nn.Linear(4, 4).bfloat16()
    parameters = [FlatParameter(name, p, True, True) for name, p in net.named_parameters()]
    ours = FlatOptimizer(parameters, FlatGroups(None, None), FlatOptions(AdamWConstants(), 1.0))
    before = ours.state.master().clone()
    ours.main_grads[net.weight].fill_(1.0)[0, 0] = float("inf")
    assert not torch.isfinite(ours.step(1e-2))
    ours.retract()
    assert ours.steps == 0
    assert torch.equal(ours.state.master(), before)
    assert not ours.state.exp_avg.any()
    assert not ours.state.shard_grads.any()


def test_gelu_is_exact_to_the_rounding_of_bfloat16() -> None:
    x = torch.linspace(-10, 10, 20001).bfloat16().requires_grad_()
    y = fast_gelu(x)
    exact = x.detach().double().requires_grad_()
    expected = F.gelu(exact)
    torch.testing.assert_close(y.double(), expected, rtol=2**-8, atol=1e-6)
    y.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("keep", [True, False])
def test_gradients_land_in_the_buffer_or_replace_it(keep: bool) -> None:
    torch.manual_seed(1)
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    weight, bias, scale = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((6, 8), (6,), (8,)))
    expected = torch.autograd.grad(torch.tanh((x * scale) @ weight.t() + bias).sum(), (x, weight, bias, scale))
    sinks = [torch.ones_like(p) for p in (weight, bias, scale)]
    out = add_bias(flat_linear(x * sink(scale, sinks[2]), weight, sinks[0], keep), bias, sinks[1])
    torch.tanh(out).sum().backward()
    torch.testing.assert_close(x.grad, expected[0])
    torch.testing.assert_close(sinks[0], expected[1] + (1.0 if keep else 0.0))
    torch.testing.assert_close(sinks[1], expected[2] + 1.0)
    torch.testing.assert_close(sinks[2], expected[3] + 1.0)
    assert weight.grad is None


@pytest.mark.parametrize("room", [None, 199, 200, 300])
@pytest.mark.parametrize("chunk", [3, 100])
def test_fused_loss_equals_cross_entropy_and_its_gradients(chunk: int, room: int | None) -> None:
    torch.manual_seed(2)
    hidden, weight = torch.randn(10, 8, requires_grad=True), torch.randn(20, 8, requires_grad=True)
    labels, factors = torch.randint(0, 20, (10,)), torch.rand(10)
    expected = F.cross_entropy(hidden @ weight.t(), labels, reduction="none")
    grads = torch.autograd.grad((expected * factors).sum(), (hidden, weight))
    target = torch.zeros_like(weight)
    memory = None if room is None else torch.zeros(room)
    losses = flat_cross_entropy(hidden, weight, target, labels, LossHead(None, chunk, room=memory))
    # 10 x 20 logits: they lie in the room where they fit, and the room is given back empty.
    assert memory is None or bool(memory.any()) == (memory.numel() >= 200)
    (losses * factors).sum().backward()
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(hidden.grad, grads[0])
    torch.testing.assert_close(target, grads[1])
    assert memory is None or not memory.any()
