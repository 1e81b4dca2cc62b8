"""Memory: closed forms that were published, and what can never grow."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rackweave.plan.constants import Constants
from rackweave.plan.machine import Software
from rackweave.plan.memory import peak_memory, state_bytes
from rackweave.plan.presets import preset
from rackweave.plan.ranks import ParallelSizes
from rackweave.plan.rules import Layout
from rackweave.plan.shapes import StageParameters, micro_batches_in_flight, stage_layer_counts
from rackweave.plan.software import planned_software

MODEL = preset("llama2-70b")
CONSTANTS = Constants.shipped()


def layout(tensor=1, pipeline=1, data=1, stage=1, **changes):
    base = Layout(ParallelSizes(tensor, pipeline, data), 1, 64, stage, tensor > 1, "full")
    return replace(base, **changes)


def states(chosen, software=None):
    memory = peak_memory(MODEL, chosen, software or planned_software("megatron", "pretrain", MODEL), CONSTANTS)
    return memory.weights + memory.gradients + memory.optimizer


@pytest.mark.parametrize(("stage", "expected"), [(0, 16.0), (1, 4 + 12 / 8), (2, 2 + 14 / 8), (3, 16 / 8)])
def test_16_bit_states_follow_the_zero_paper(stage, expected):
    software = Software(gradient_bytes=2)
    found = state_bytes(layout(data=8, stage=stage), software, StageParameters(1.0, 0.0))
    assert sum(found) == pytest.approx(expected)


@pytest.mark.parametrize(("stage", "expected"), [(0, 18.0), (1, 6 + 12 / 8)])
def test_fp32_gradients_follow_megatrons_table(stage, expected):
    found = state_bytes(layout(data=8, stage=stage), Software(gradient_bytes=4), StageParameters(1.0, 0.0))
    assert sum(found) == pytest.approx(expected)


@settings(max_examples=60)
@given(
    tensor=st.sampled_from([1, 2, 4, 8]),
    pipeline=st.sampled_from([1, 2, 4, 8]),
    data=st.sampled_from([1, 2, 4, 8]),
    stage=st.integers(0, 3),
)
def test_states_never_grow_with_tensor_pipeline_data_or_zero(tensor, pipeline, data, stage):
    here = states(layout(tensor, pipeline, data, stage))
    assert states(layout(min(8, 2 * tensor), pipeline, data, stage)) <= here * (1 + 1e-9)
    assert states(layout(tensor, 2 * pipeline, data, stage)) <= here * (1 + 1e-9)
    assert states(layout(tensor, pipeline, 2 * data, stage)) <= here * (1 + 1e-9)
    assert states(layout(tensor, pipeline, data, min(3, stage + 1))) <= here * (1 + 1e-9)


def test_the_first_stage_holds_most_micro_batches():
    chosen = layout(pipeline=4, data=1)
    assert [micro_batches_in_flight(chosen, stage) for stage in range(4)] == [4, 3, 2, 1]


def test_interleaving_holds_more_by_the_published_factor():
    sizes = ParallelSizes(1, 4, 1, virtual_pipeline_size=5)
    found = micro_batches_in_flight(replace(layout(), sizes=sizes), 0)
    assert found == pytest.approx(4 * (1 + 3 / (4 * 5)))


def test_uneven_layers_follow_llama_3():
    chosen = replace(layout(), sizes=ParallelSizes(8, 16, 1))
    counts = stage_layer_counts(preset("llama3-405b"), chosen)
    assert counts == (7, *(8,) * 14, 7)


def test_three_totals_are_ordered():
    memory = peak_memory(MODEL, layout(8, 2, 2), Software(), CONSTANTS)
    assert memory.allocated < memory.reserved < memory.nvidia_smi
    assert memory.allocated < memory.needed < memory.nvidia_smi


def test_recomputation_saves_activations():
    chosen = layout(8, 2, 2)
    plain = peak_memory(MODEL, replace(chosen, recompute="none"), Software(), CONSTANTS)
    full = peak_memory(MODEL, chosen, Software(), CONSTANTS)
    assert full.activations < plain.activations / 5


def test_offloaded_states_leave_the_gpu():
    chosen = layout(8, 1, 4, 2)
    moved = peak_memory(MODEL, replace(chosen, offload="cpu"), Software(), CONSTANTS)
    kept = peak_memory(MODEL, chosen, Software(), CONSTANTS)
    assert moved.optimizer == 0
    assert moved.offloaded == pytest.approx(kept.optimizer)
