"""Plans as a user asks for them: asked sizes, refusals with a way out, odd clusters, and what is said of idle hosts."""

import json
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rackweave.errors import PlanError
from rackweave.plan.cluster import Cluster, natural_key
from rackweave.plan.layout import place_of, plan_layout
from rackweave.plan.request import LayoutRequest
from rackweave.plan.rules import refusals
from rackweave.run.plan_file import parse_plan, serialise_plan


def plan(cluster, model="llama3-70b", **wish):
    return plan_layout(Cluster.from_shorthand(cluster), model, LayoutRequest(**wish))


@lru_cache
def planned(hosts, gpus, model, batch):
    return plan(f"{hosts}x{gpus}xH100", model, global_batch_size=batch)


def test_tensor_8_pipeline_2_on_32_gpus_gives_data_2():
    result = plan("4x8xH100", tensor_parallel_size=8, pipeline_parallel_size=2)
    assert result.fits
    assert result.as_dict()["sizes"]["data_parallel_size"] == 2


def test_pipeline_3_is_refused_with_numbers_and_what_works():
    with pytest.raises(PlanError, match=r"= 24 does not divide the 32 GPUs.*pipeline_parallel_size=2"):
        plan("4x8xH100", tensor_parallel_size=8, pipeline_parallel_size=3)


@pytest.mark.parametrize("hosts", [3, 5])
def test_24_and_40_gpus_are_all_used(hosts):
    result = plan(f"{hosts}x8xH100")
    assert result.fits
    assert result.layout.sizes.world_size == 8 * hosts


def test_36_heads_take_a_tensor_size_that_divides_them():
    model = {
        "name": "thirty-six",
        "num_layers": 32,
        "hidden_size": 4608,
        "num_attention_heads": 36,
        "vocab_size": 51200,
    }
    result = plan("4x8xH100", model, global_batch_size=64)
    assert 36 % result.layout.sizes.tensor_parallel_size == 0
    with pytest.raises(PlanError, match=r"num_attention_heads=36 .*tensor_parallel_size=8; nearest: 2 or 4|4"):
        plan("4x8xH100", model, tensor_parallel_size=8)


def test_175b_does_not_fit_on_32_gpus_and_the_way_out_is_named():
    result = plan("4x8xH100", "gpt3-175b")
    assert not result.fits
    assert "does not fit on 32 GPUs" in result.reason
    assert "it fits as" in result.reason


def test_a_plan_follows_its_schema():
    document = plan("2x8xH100", "llama3-8b").as_dict()
    assert parse_plan(serialise_plan(document)) == parse_plan(json.dumps(document))


def test_hosts_keep_the_order_in_which_they_are_given():
    cluster = Cluster.declared(["b2", "a1"], {"gpu": "H100", "gpus_per_host": 8})
    result = plan_layout(cluster, "llama3-8b").as_dict()
    assert [row["host"] for row in result["ranks"]][::8] == ["b2", "a1"]


def test_without_an_order_names_sort_naturally():
    assert sorted(["node10", "node2", "node1"], key=natural_key) == ["node1", "node2", "node10"]


def test_leaf_switches_keep_their_hosts_together():
    leafs = {"a": "leaf1", "b": "leaf2", "c": "leaf1", "d": "leaf2"}
    cluster = Cluster.declared(["a", "b", "c", "d"], {"gpu": "H100", "gpus_per_host": 8, "leafs": leafs})
    result = plan_layout(cluster, "llama3-70b", LayoutRequest(tensor_parallel_size=8, pipeline_parallel_size=2))
    assert [row["host"] for row in result.as_dict()["ranks"]][::8] == ["a", "c", "b", "d"]


def test_an_unknown_gpu_is_planned_by_rules_and_nothing_is_predicted():
    declared = {"gpu": "Simulated", "gpus_per_host": 4, "unlisted_gpu_ok": True}
    cluster = Cluster.declared(["n1", "n2"], declared)
    model = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 256, "sequence_length": 64}
    wish = LayoutRequest(tensor_parallel_size=2, pipeline_parallel_size=2, global_batch_size=16)
    result = plan_layout(cluster, model, wish).as_dict()
    assert result["memory"] is None
    assert result["prediction"] is None
    assert result["sizes"]["data_parallel_size"] == 2
    serialise_plan(result)


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size=0"),
        ({"micro_batch_size": -4}, "micro_batch_size=-4"),
        ({"zero_stage": 7}, "zero_stage=7"),
        ({"tensor_parallel_size": 16}, "tensor_parallel_size=16"),
        ({"data_parallel_size": 3, "global_batch_size": 64}, "global_batch_size=64 is not a multiple"),
        ({"zero_stage": 3, "pipeline_parallel_size": 2}, "zero_stage=3 with pipeline_parallel_size=2"),
        ({"tensor_parallel_size": 8, "pipeline_parallel_size": 8}, "= 64 does not divide the 32 GPUs"),
    ],
)
def test_bad_wishes_are_one_sentence_with_their_numbers(wish, words):
    with pytest.raises(PlanError, match=words):
        plan("4x8xH100", **wish)


@pytest.mark.parametrize("text", ["0x8xH100", "4x0xH100", "4x8xPotato", "4x8", "x", "4x-8xH100", "9999999x8xH100"])
def test_bad_shorthand_is_refused(text):
    with pytest.raises(PlanError):
        Cluster.from_shorthand(text)


@settings(max_examples=25)
@given(hosts=st.integers(1, 6), gpus=st.sampled_from([4, 8]), model=st.sampled_from(["llama3-8b", "gpt3-6.7b"]))
def test_every_rank_appears_once_and_tensor_groups_stay_in_a_host(hosts, gpus, model):
    result = planned(hosts, gpus, model, 48)
    rows = result.as_dict()["ranks"]
    sizes = result.layout.sizes
    assert [row["rank"] for row in rows] == list(range(sizes.world_size))
    assert len({(row["host"], row["local_rank"]) for row in rows}) == len(rows)
    for groups in (sizes.tensor_groups(), sizes.data_groups(), sizes.pipeline_groups()):
        assert sorted(rank for group in groups for rank in group) == list(range(sizes.world_size))
    for group in sizes.tensor_groups():
        assert len({rows[rank]["host"] for rank in group}) == 1


@settings(max_examples=20)
@given(hosts=st.integers(2, 6), batch=st.sampled_from([24, 40, 48, 64, 96]))
def test_more_hosts_never_make_the_plan_worse(hosts, batch):
    for model in ("llama3-8b", "gpt3-13b"):
        whole, part = planned(hosts, 8, model, batch), planned(hosts - 1, 8, model, batch)
        if part.fits:
            assert whole.fits
            assert whole.prediction["step_time_s"] <= part.prediction["step_time_s"] + 1e-9
        if whole.fits and whole.layout.sizes.world_size < 8 * hosts:
            assert "stay idle" in whole.reason


def plan_or_none(place, model, wish):
    try:
        return plan_layout(place, model, wish)
    except PlanError:
        return None


# Each broke a rule by what the search chose beside what was asked.
@pytest.mark.parametrize(
    ("cluster", "model", "asked"),
    [
        ("4x8xH100", "mixtral-8x7b", {"expert_parallel_size": 3}),
        ("4x4xGB200", "llama3-8b", {"expert_parallel_size": 4}),
        ("3x5xH100", "deepseek-v2", {"expert_parallel_size": 16, "recompute": "none"}),
        ("3x5xH100", "mixtral-8x7b", {"virtual_pipeline_size": 2, "sequence_length": 1024, "task": "lora"}),
        ("8x8xH200", "deepseek-v2", {"virtual_pipeline_size": 4, "data_parallel_size": 2}),
        ("8x8xH200", "qwen3-30b-a3b", {"expert_parallel_size": 8, "global_batch_size": 32, "zero_stage": 3}),
        ("3x5xH100", "qwen3-30b-a3b", {"data_parallel_size": 3, "sequence_length": 512, "task": "lora"}),
        ("1x8xH100", "deepseek-v2", {"offload": "nvme", "task": "full-finetune"}),
        ("1x8xH100", "deepseek-v2", {"global_batch_size": 100, "recompute": "selective"}),
        ("3x5xH100", "gpt3-1.3b", {"virtual_pipeline_size": 3, "data_parallel_size": 1, "recompute": "full"}),
    ],
)
def test_what_is_asked_and_what_is_chosen_break_no_rule_together(cluster, model, asked):
    wish = LayoutRequest(**asked)
    place = Cluster.from_shorthand(cluster)
    found = plan_or_none(place, model, wish)
    if found is None:
        return
    assert refusals(found.model, found.layout, place_of(place, wish)) == []
    sizes = found.as_dict()["sizes"]
    assert {name: sizes[name] for name in asked if name in sizes} == {
        name: value for name, value in asked.items() if name in sizes
    }


@pytest.mark.parametrize("size", [3, 16])
def test_experts_that_cannot_be_shared_so_are_refused_though_the_data_size_is_open(size):
    with pytest.raises(PlanError, match=f"num_experts=8 is not a multiple of expert_parallel_size={size}"):
        plan("4x8xH100", "mixtral-8x7b", expert_parallel_size=size)
    with pytest.raises(PlanError, match=f"expert_parallel_size={size}, but llama3-8b has no experts"):
        plan("4x8xH100", "llama3-8b", expert_parallel_size=size)


def test_a_size_beyond_what_can_be_counted_is_refused_at_once():
    with pytest.raises(PlanError, match="global_batch_size=1000000000000000000000000 is more than 2147483647"):
        plan("4x8xH100", "llama3-8b", global_batch_size=10**24)
