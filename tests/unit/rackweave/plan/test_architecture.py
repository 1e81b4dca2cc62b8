"""Parameter counts against published ones, and models read from files."""

import pytest
from rackweave.errors import PlanError
from rackweave.plan.model_file import read_architecture, resolve_model
from rackweave.plan.presets import PRESETS, preset

# Counts of the published checkpoints (sum of safetensors elements on their model pages); GPT-3 from its Table 2.1.
PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "bloom-176b": 176_247_271_424,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt-oss-120b": 116_829_156_672,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v3": 671_026_419_200,
}
ROUNDED = {
    "gpt3-1.3b": 1.3,
    "gpt3-2.7b": 2.7,
    "gpt3-6.7b": 6.7,
    "gpt3-13b": 13.0,
    "gpt3-175b": 175.0,
    "gpt-400b": 400.0,
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_parameter_count_equals_the_published_one(name, count):
    assert preset(name).parameters == count


@pytest.mark.parametrize(("name", "billions"), ROUNDED.items())
def test_parameter_count_rounds_to_the_name(name, billions):
    assert preset(name).parameters / 1e9 == pytest.approx(billions, rel=0.025)


def test_mixture_counts_only_the_chosen_experts_as_active():
    assert preset("mixtral-8x7b").active_parameters == pytest.approx(12.9e9, rel=0.01)
    assert preset("deepseek-v3").active_parameters == pytest.approx(37.5e9, rel=0.01)


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(PlanError, match=r"unknown model 'llama9'.*llama3-70b"):
        resolve_model("llama9")


LLAMA_CONFIG = {
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}


def test_hugging_face_llama_equals_the_preset():
    assert read_architecture(LLAMA_CONFIG).parameters == preset("llama3-70b").parameters


def test_hugging_face_gpt2_has_its_published_count():
    config = {
        "model_type": "gpt2",
        "n_layer": 12,
        "n_embd": 768,
        "n_head": 12,
        "vocab_size": 50257,
        "n_positions": 1024,
    }
    assert read_architecture(config).parameters == 124_439_808


def test_hugging_face_qwen2_counts_its_query_bias():
    config = {
        **LLAMA_CONFIG,
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "vocab_size": 152064,
    }
    assert read_architecture(config).parameters == 7_615_616_512


def test_hugging_face_deepseek_equals_the_preset():
    config = {
        "model_type": "deepseek_v3",
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "vocab_size": 129280,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "topk_group": 4,
    }
    assert read_architecture(config).parameters == preset("deepseek-v3").parameters


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_survives_the_plan_file(name):
    assert read_architecture(preset(name).as_dict()) == preset(name)


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"num_layers": 2, "hidden_size": 100, "num_attention_heads": 7, "vocab_size": 10}, "hidden_size=100.*heads=7"),
        ({"num_layers": -2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 10}, "num_layers=-2"),
        ({"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 10}, "num_layers is missing"),
        (
            {"num_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 9, "wings": 2},
            "unknown keys wings",
        ),
        ({"model_type": "rwkv"}, "model_type='rwkv' is not one of"),
        ({"model_type": "llama", "hidden_size": "big"}, "hidden_size='big'"),
        (
            {"num_layers": 2, "hidden_size": 10**21 + 1, "num_attention_heads": 4, "vocab_size": 10},
            "hidden_size=1000000000000000000001 is more than 2147483647",
        ),
        (
            {
                "num_layers": 2,
                "hidden_size": 64,
                "num_attention_heads": 4,
                "vocab_size": 10,
                "ffn_hidden_size": 64,
                "experts": {"num_experts": 8, "experts_per_token": 9, "ffn_hidden_size": 64},
            },
            "experts_per_token=9 must be 1 to num_experts=8",
        ),
        (type("TaggedList", (list,), {})(["llama3-8b"]), "a name or a mapping, not list"),
    ],
)
def test_a_bad_model_is_one_sentence(mapping, words):
    with pytest.raises(PlanError, match=words):
        resolve_model(mapping)
