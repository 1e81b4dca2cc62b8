"""Run files made from a plan."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from rackweave.errors import DocumentError
from rackweave.run.batch import BatchSettings, check_run_name, render_batch, slurm_duration
from rackweave.run.ds_config import render_ds_config
from rackweave.run.files import NODE_SCRIPTS, SCRIPT_BODY, compose_run_files, plan_table
from rackweave.run.megatron_args import megatron_args
from rackweave.run.plan_file import parse_plan

CONTRACTS = Path(__file__).parents[3] / "fixtures" / "contracts"
PLAN = parse_plan((CONTRACTS / "plan.json").read_text())
TRAIN = json.loads((CONTRACTS / "train.json").read_text())
SETTINGS = BatchSettings(
    run="demo",
    run_dir="/mnt/shared/runs/demo",
    venv="/mnt/shared/venv",
    command=("python", "-m", "trainer", "--attempt", "{attempt}"),
    time_limit_s=3600,
    save_signal_s=120,
    stall_s=300,
    requeue_ok=False,
    max_restarts=2,
    gpus_per_node=2,
)


def directives(settings=SETTINGS, plan=PLAN):
    text = render_batch(settings, plan, "true\n")
    return [line.split(" ", 1)[1] for line in text.splitlines() if line.startswith("#SBATCH")]


def test_one_task_per_node_on_exactly_the_planned_hosts():
    options = directives()
    assert "--ntasks-per-node=1" in options
    assert "--nodelist=node-b,node-a" in options
    assert "--nodes=2" in options
    assert "--gres=gpu:2" in options


def test_evidence_of_earlier_starts_is_kept_and_the_save_signal_reaches_the_shell():
    options = directives()
    assert "--open-mode=append" in options
    assert "--signal=B:USR1@120" in options


@pytest.mark.parametrize(("switch", "option"), [(True, "--requeue"), (False, "--no-requeue")])
def test_slurms_own_requeue_follows_the_switch(switch, option):
    assert option in directives(replace(SETTINGS, requeue_ok=switch))


def test_values_reach_the_shell_unchanged(tmp_path):
    tricky = "a b'c\"d$HOME`id`\\"
    settings = replace(SETTINGS, command=("python", tricky), environment={"TRICKY": tricky})
    script = tmp_path / "job"
    script.write_text(render_batch(settings, PLAN, 'eval "set -- $RACKWEAVE_COMMAND"\nprintf "%s\\n" "$2" "$TRICKY"\n'))
    out = subprocess.run(["bash", str(script)], check=True, capture_output=True, text=True).stdout
    assert out.splitlines() == [tricky, tricky]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"gpus_per_node": 8}, "2 ranks on node-b, but 8 GPUs"),
        ({"save_signal_s": 3600}, "3600 s before a time limit of 3600 s"),
        ({"time_limit_s": 10**99}, "that Slurm can count"),
        ({"run_dir": "runs/demo"}, "must be absolute"),
        ({"run_dir": "/mnt/%u"}, "percent"),
        ({"environment": {"A-B": "1"}}, "'A-B'"),
        ({"environment": {"A": "1\nrm"}}, "line break"),
        ({"partition": "x\n#SBATCH --uid=0"}, "line break"),
        ({"sbatch_options": ("rm -rf",)}, "must read --name"),
        ({"command": ()}, "no command"),
        ({"command": (" ",)}, "no command"),
        ({"command": ("python train.py --x 1",)}, r"is one word.*\[python, train.py, --x, 1\]"),
        ({"run": "../other"}, "cannot be used"),
    ],
)
def test_settings_that_cannot_work_are_refused(values, message):
    with pytest.raises(DocumentError, match=message):
        render_batch(replace(SETTINGS, **values), PLAN, "")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "-x", "x" * 65, "a\n"])
def test_a_run_name_that_is_no_directory_name_is_refused(name):
    with pytest.raises(DocumentError, match="run name"):
        check_run_name(name)


@pytest.mark.parametrize(("seconds", "text"), [(1, "0-00:01:00"), (3600, "0-01:00:00"), (90061, "1-01:02:00")])
def test_time_limits_round_up_to_minutes(seconds, text):
    assert slurm_duration(seconds) == text


def test_deepspeeds_batch_arithmetic_is_the_plans():
    config = render_ds_config(PLAN, TRAIN)
    assert config["train_batch_size"] == 8
    assert config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] == 8
    assert config["zero_optimization"] == {"stage": 1}


def test_megatrons_flags_follow_plan_and_training_settings():
    words = megatron_args(PLAN, TRAIN)
    flags = dict(zip(words, words[1:]))
    assert flags["--tensor-model-parallel-size"] == "2"
    assert flags["--pipeline-model-parallel-size"] == "2"
    assert flags["--position-embedding-type"] == "rope"
    assert flags["--distributed-timeout-minutes"] == "2"
    assert "--sequence-parallel" in words
    assert "--bf16" not in words


def scripts():
    return {name: f"# {name}\n" for name in (SCRIPT_BODY, *NODE_SCRIPTS)}


def test_equal_inputs_give_equal_files():
    first = compose_run_files(PLAN.document, TRAIN, SETTINGS, scripts())
    assert first == compose_run_files(
        json.loads(first["plan.json"]), json.loads(first["train.json"]), SETTINGS, scripts()
    )


def test_files_of_different_runs_are_not_mixed():
    with pytest.raises(DocumentError, match="'demo', the training settings of 'other'"):
        compose_run_files(PLAN.document, {**TRAIN, "run": "other"}, SETTINGS, scripts())


def test_the_table_shows_sizes_and_which_stage_each_host_holds():
    text = "\n".join(plan_table(PLAN))
    assert "TP 2 x PP 2 x DP 1" in text
    rows = {line.split()[1]: line for line in plan_table(PLAN) if "node-" in line and "master" not in line}
    assert rows["node-b"].split()[:4] == ["0", "node-b", "0-1", "0"]
    assert rows["node-a"].split()[:4] == ["1", "node-a", "2-3", "1"]


def test_our_trainer_without_data_is_refused_and_another_program_is_not():
    train = {**TRAIN, "data": {**TRAIN["data"], "train": []}}
    with pytest.raises(DocumentError, match="nothing to train on: set training_job_corpus"):
        compose_run_files(PLAN.document, train, SETTINGS, scripts())
    foreign = replace(SETTINGS, command=("python", "pretrain_gpt.py", "{megatron_args}"))
    files = compose_run_files(PLAN.document, train, foreign, scripts())
    assert "--tensor-model-parallel-size\n2\n" in files["megatron.args"]
    assert "megatron.args" not in compose_run_files(PLAN.document, TRAIN, SETTINGS, scripts())


def test_a_model_that_megatrons_flags_cannot_describe_is_refused():
    model = {**PLAN.document["model"], "position_embedding": "alibi"}
    plan = parse_plan(json.dumps({**PLAN.document, "model": model}))
    with pytest.raises(DocumentError, match="position embedding alibi"):
        megatron_args(plan, TRAIN)


def test_the_table_shows_what_is_predicted_or_says_that_nothing_is():
    assert "nothing is predicted for this hardware" in plan_table(PLAN)
    memory = {"allocated_gib": 71.06, "reserved_gib": 76.27, "nvidia_smi_gib": 77.81, "limit_gib": 79.65}
    prediction = {"step_time_s": 150.6, "step_time_band_s": [135, 176], "tokens_per_second": 27845.2,
                  "mfu": {"a": None, "b": 0.423}}  # fmt: skip
    reliability = {"failures_per_day": 0.026, "checkpoint_interval_s": 2067.3}
    rejected = [{"layout": "x", "reason": "VP 8 is slower"}]
    more = {"memory": memory, "prediction": prediction, "reliability": reliability, "rejected": rejected}
    text = "\n".join(plan_table(parse_plan(json.dumps({**PLAN.document, **more}))))
    assert "predicted: 151 s a step (135 s to 176 s), 27,845 tokens/s, MFU 42.3% (b)" in text
    assert "71.1 allocated, 76.3 reserved, 77.8 in nvidia-smi, limit 79.7" in text
    assert "a checkpoint every 34 min 27 s" in text
    assert "not taken: VP 8 is slower" in text


def test_a_memory_limit_reaches_train_json_and_none_at_all_is_refused():
    files = compose_run_files(PLAN.document, {**TRAIN, "memory_limit_gib": 2.5}, SETTINGS, scripts())
    assert json.loads(files["train.json"])["memory_limit_gib"] == 2.5
    with pytest.raises(DocumentError, match="memory_limit_gib=0 leaves a rank no memory"):
        compose_run_files(PLAN.document, {**TRAIN, "memory_limit_gib": 0}, SETTINGS, scripts())
