"""Each rule refuses what its source forbids, names its numbers, and lets the nearest layout pass."""

from dataclasses import replace

import pytest
from rackweave.plan.presets import preset
from rackweave.plan.ranks import ParallelSizes
from rackweave.plan.rules import RULES, Layout, Place, refusals

MODEL = preset("llama3-70b")
PLACE = Place(num_gpus=32, gpus_per_host=8, domain_size=8)
GOOD = Layout(ParallelSizes(8, 2, 2), 1, 64, 1, True, "none")


def sizes(tensor=8, pipeline=2, data=2, virtual=1, context=1, expert=1):
    return ParallelSizes(tensor, pipeline, data, virtual, context, expert)


CASES = {
    "world": (replace(GOOD, sizes=sizes(data=4)), {}, r"64 ranks .* 32 GPUs"),
    "heads": (
        replace(GOOD, sizes=sizes(tensor=3, pipeline=1, data=1)),
        {},
        r"num_attention_heads=64 .*=3; nearest: 2 or 4",
    ),
    "query-groups": (replace(GOOD, sizes=sizes(tensor=3)), {}, r"num_query_groups=8"),
    "ffn": (replace(GOOD, sizes=sizes(tensor=3)), {}, r"ffn_hidden_size=28672"),
    "tensor-in-domain": (replace(GOOD, sizes=sizes(tensor=16, data=1)), {}, r"tensor_parallel_size=16 .* 8 GPUs"),
    "layers": (replace(GOOD, sizes=sizes(pipeline=3, data=1)), {}, r"num_layers=80 .*=3; nearest: 2 or 4"),
    "interleaving": (
        replace(GOOD, sizes=sizes(virtual=4), engine="deepspeed-pipeline"),
        {},
        r"virtual_pipeline_size=4",
    ),
    "batch": (replace(GOOD, global_batch_size=63), {}, r"global_batch_size=63 .* = 2; nearest: 62 or 64"),
    "zero-pipeline": (replace(GOOD, zero_stage=3), {}, r"zero_stage=3 with pipeline_parallel_size=2"),
    "offload": (replace(GOOD, offload="cpu"), {}, r"offload=cpu needs zero_stage=2"),
    "sequence-parallel": (
        replace(GOOD, sequence_parallel=False),
        {},
        r"tensor_parallel_size=8 runs with sequence_parallel",
    ),
    "sequence-divides": (GOOD, {"sequence_length": 8190}, r"sequence_length=8190"),
    "head-dim": (GOOD, {"head_dim": 108}, r"head_dim=108 .* nearest: 104 or 112"),
    "experts": (replace(GOOD, sizes=sizes(expert=2)), {}, r"expert_parallel_size=2, but llama3-70b has no experts"),
    "expert-ranks": (
        replace(GOOD, sizes=sizes(expert=3)),
        {"experts": replace(preset("mixtral-8x7b").experts, num_experts=24)},
        r"expert_parallel_size=3 does not divide the 16 ranks of one pipeline stage",
    ),
    "recompute-boundaries": (
        replace(GOOD, sizes=sizes(pipeline=1, data=4), zero_stage=3, recompute="selective"),
        {},
        r"recompute=selective cuts inside a layer",
    ),
}


def test_a_good_layout_breaks_no_rule():
    assert refusals(MODEL, GOOD, PLACE) == []


def test_every_rule_has_a_case_and_a_source():
    assert {rule.name for rule in RULES} == set(CASES)
    assert all(rule.source for rule in RULES)


@pytest.mark.parametrize("name", CASES)
def test_the_rule_refuses_and_names_its_numbers(name):
    layout, changes, words = CASES[name]
    found = {refusal.rule: refusal for refusal in refusals(replace(MODEL, **changes), layout, PLACE)}
    assert name in found
    import re

    assert re.search(words, found[name].sentence)


@pytest.mark.parametrize(("engine", "most"), [("deepspeed-pipeline", 1), ("megatron", 2), ("fsdp", 3)])
def test_each_engine_has_its_own_limit_of_zero_with_a_pipeline(engine, most):
    for stage in range(4):
        layout = replace(GOOD, engine=engine, zero_stage=stage)
        broken = [refusal for refusal in refusals(MODEL, layout, PLACE) if refusal.rule == "zero-pipeline"]
        assert bool(broken) == (stage > most)


def test_deepspeeds_pipeline_engine_refuses_zero_2_even_with_one_stage():
    layout = replace(GOOD, sizes=sizes(pipeline=1, data=4), engine="deepspeed-pipeline", zero_stage=2)
    assert [refusal.rule for refusal in refusals(MODEL, layout, PLACE)] == ["zero-pipeline"]


def test_tensor_groups_may_leave_the_domain_when_asked():
    layout = replace(GOOD, sizes=sizes(tensor=16, data=1))
    assert refusals(MODEL, layout, replace(PLACE, cross_domain_tensor_parallel=True)) == []


def test_named_uneven_stages_are_allowed_and_must_add_up():
    layout = replace(GOOD, sizes=sizes(pipeline=3, data=1), stage_layers=(26, 27, 27))
    place = replace(PLACE, num_gpus=24)
    assert refusals(MODEL, layout, place) == []
    wrong = refusals(MODEL, replace(layout, stage_layers=(26, 27, 26)), place)
    assert "79 layers" in wrong[0].sentence
