"""The sizing figures of the reference text, each with the assumptions that make it true."""

import pytest
from rackweave.hardware.catalog import gpu_named
from rackweave.plan.presets import preset
from rackweave.plan.reliability import best_interval, effective_ratio
from rackweave.plan.sizing import Hardware, size_task

H100 = Hardware("H100", gpu_named("H100").memory_bytes, 8)


def sizing(model, task, **changes):
    return size_task(preset(model), task, H100, changes.get("sequence"), changes.get("micro_batch")).as_dict()


def test_400b_has_800_gb_of_weights():
    assert sizing("gpt-400b", "pretrain")["weights_gb"] == pytest.approx(800, rel=0.01)


def test_70b_has_140_gb_of_weights():
    assert sizing("llama3-70b", "pretrain")["weights_gb"] == pytest.approx(140, rel=0.01)


def test_full_fine_tuning_of_70b_takes_860_gb_to_1200_gb_and_11_to_16_h100():
    found = sizing("llama3-70b", "full-finetune")
    assert found["range_gb"] == pytest.approx([860, 1200], rel=0.01)
    assert found["gpus"] == [11, 16]
    assert "use 16 H100 (2 host(s) of 8)" in found["advice"]
    assert "no headroom" in found["advice"]


def test_qlora_of_70b_takes_52_gb_on_one_gpu():
    found = sizing("llama3-70b", "qlora")
    assert found["total_gb"] == pytest.approx(52, abs=1)
    assert found["gpus"] == [1, 1]


def test_assumed_sequence_and_batch_are_stated():
    assert any("(assumed)" in line for line in sizing("llama3-70b", "full-finetune")["assumptions"])
    assert not any("(assumed)" in line for line in sizing("llama3-70b", "full-finetune", sequence=2048)["assumptions"])


def test_components_add_up():
    for task in ("pretrain", "full-finetune", "lora", "qlora"):
        found = sizing("llama2-13b", task)
        parts = sum(found[name] for name in ("weights_gb", "gradients_gb", "optimizer_gb", "activations_gb"))
        assert parts == pytest.approx(found["total_gb"], abs=0.3)


def test_an_unknown_gpu_gives_bytes_and_no_count():
    found = size_task(preset("llama3-8b"), "pretrain", None, None, None).as_dict()
    assert found["gpus"] is None
    assert found["weights_gb"] == pytest.approx(16.1, abs=0.1)


@pytest.mark.parametrize(("restart_min", "write_s", "expected"), [(10, 1, 0.992), (60, 60, 0.947)])
def test_effective_ratio_reproduces_the_worked_examples(restart_min, write_s, expected):
    rate = 64 * 6.5e-3 / 86400
    assert effective_ratio(rate, restart_min * 60, 30 * 60, write_s) == pytest.approx(expected, abs=0.003)


def test_youngs_interval_balances_writing_against_losing():
    rate, write = 1e-5, 5.0
    best = best_interval(write, rate)
    kept = effective_ratio(rate, 0, best, write)
    assert kept >= effective_ratio(rate, 0, best / 2, write)
    assert kept >= effective_ratio(rate, 0, best * 2, write)
