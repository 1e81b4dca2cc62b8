"""The run files of a plan as texts by name: what `plan` writes, `launch` copies and `job.sbatch` takes along."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import DocumentError
from ..provision.runtime import JobRuntime, runtime_conf
from .batch import BatchSettings, render_batch
from .ds_config import render_ds_config
from .engine import choose_engine, with_peak
from .megatron_args import megatron_args
from .plan_file import RunPlan, parse_plan, serialise_plan
from .progress import duration
from .schema import write_json
from .train_file import serialise_train

SCRIPT_BODY = "job_body.sh"
MEGATRON_ARGS = "{megatron_args}"  # the word of a command that stands for the flags
OWN_TRAINER = "trainer"  # `python -m trainer`: another program finds its data by itself
NODE_SCRIPTS = ("launch.sh", "launch.py", "supervise.py", "inside.py", "runtime.sh")
RUNTIME_CONF, WAIVERS = "runtime.conf", "waivers.json"


def compose_run_files(
    layout: Mapping[str, Any],
    train: Mapping[str, Any],
    settings: BatchSettings,
    scripts: Mapping[str, str],
    runtime: str = "",
    waivers: Sequence[Mapping[str, Any]] = (),
) -> dict[str, str]:
    """Return the text of every run file except the environments, which the fabric writes beside them.

    Args:
        layout: the document of ``plan.json``.
        train: the document of ``train.json``.
        settings: how the job is submitted.
        scripts: texts of `SCRIPT_BODY` and `NODE_SCRIPTS`.
        runtime: text of ``runtime.conf``; without it the job runs in its virtual environment.
        waivers: findings that somebody answers for; the check inside the job honours them too.

    Raises:
        DocumentError: if a document breaks its schema, the three speak of different runs, or the command asks for
            Megatron's flags of a model that has none.
    """
    plan_text = serialise_plan(layout)
    plan = parse_plan(plan_text)
    if OWN_TRAINER in settings.command:
        train = with_peak(plan, {**train, "engine": choose_engine(plan, train).engine})
    train_text = serialise_train(train)
    if not plan.run == train["run"] == settings.run:
        raise DocumentError(
            f"the plan is of run {plan.run!r}, the training settings of {train['run']!r}, "
            f"the batch script of {settings.run!r}; they must be one run"
        )
    if OWN_TRAINER in settings.command and not train["data"]["train"]:
        raise DocumentError(
            f"run {plan.run!r} has nothing to train on: set training_job_corpus, or training_job_data_train "
            "for data that is there already"
        )
    files = {
        "plan.json": plan_text,
        "train.json": train_text,
        "ds_config.json": write_json(render_ds_config(plan, train)),
        "job.sbatch": render_batch(settings, plan, scripts[SCRIPT_BODY]),
        **{name: scripts[name] for name in NODE_SCRIPTS},
        RUNTIME_CONF: runtime or runtime_conf(JobRuntime("venv")),
        WAIVERS: json.dumps(list(waivers), indent=2, default=str) + "\n",  # YAML reads an unquoted date as one
    }
    if MEGATRON_ARGS in settings.command:
        files["megatron.args"] = "".join(f"{word}\n" for word in megatron_args(plan, train))
    return files


def engine_line(plan: RunPlan, train: Mapping[str, Any], command: Sequence[str]) -> list[str]:
    """Return a line that says which engine the own trainer takes and why; nothing for another program."""
    if OWN_TRAINER not in command:
        return []
    choice = choose_engine(plan, train)
    return [f"engine {choice.engine}: {choice.reason}"]


def plan_table(plan: RunPlan) -> list[str]:
    """Return lines for a terminal: the sizes, and which ranks, stages and groups each host holds."""
    sizes, model = plan.document["sizes"], plan.document["model"]
    parallel = plan.parallel
    lines = [
        f"run {plan.run}: {model['name']}, {_count(model.get('parameters'))} parameters, "
        f"sequence length {model['sequence_length']}",
        f"{plan.world_size} ranks on {len(plan.hosts)} hosts = TP {parallel.tensor_parallel_size} x "
        f"PP {parallel.pipeline_parallel_size} x DP {parallel.data_parallel_size}"
        + (f" x CP {parallel.context_parallel_size}" if parallel.context_parallel_size > 1 else "")
        + f", ZeRO stage {plan.zero_stage}, sequence parallel {'on' if sizes['sequence_parallel'] else 'off'}",
        f"global batch {plan.global_batch_size} = micro-batch {plan.micro_batch_size} x "
        f"{plan.num_microbatches} accumulated x {parallel.data_parallel_size} data-parallel",
        f"hardware {plan.origin}, from {plan.document['cluster']['source']}; master {plan.master_host}",
        *_expectations(plan.document),
        "",
    ]
    rows = [("node rank", "host", "ranks", "pipeline stages", "data-parallel", "GPUs")]
    for number, host in enumerate(plan.hosts):
        ranks = plan.ranks_on(host)
        rows.append(
            (
                str(number),
                host,
                f"{ranks[0].rank}-{ranks[-1].rank}",
                _span(place.pp_rank for place in ranks),
                _span(place.dp_rank for place in ranks),
                ", ".join(place.gpu_bdf or str(place.gpu_index) for place in ranks[:1])
                + (f" … ({len(ranks)})" if len(ranks) > 1 else ""),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return lines + ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def _expectations(document: Mapping[str, Any]) -> list[str]:
    """Say what the planner predicts; a plan without a prediction says so in one line."""
    memory, prediction, reliability = document["memory"], document["prediction"], document["reliability"]
    if not isinstance(memory, Mapping) or not isinstance(prediction, Mapping):
        return ["nothing is predicted for this hardware"]
    low, high = prediction["step_time_band_s"]
    mfu = next(((name, value) for name, value in prediction["mfu"].items() if value is not None), None)
    lines = [
        f"predicted: {_seconds(prediction['step_time_s'])} a step ({_seconds(low)} to {_seconds(high)}), "
        f"{prediction['tokens_per_second']:,.0f} tokens/s" + (f", MFU {mfu[1]:.1%} ({mfu[0]})" if mfu else ""),
        f"predicted memory of a GPU in GiB: {memory['allocated_gib']:.1f} allocated, {memory['reserved_gib']:.1f} "
        f"reserved, {memory['nvidia_smi_gib']:.1f} in nvidia-smi, limit {memory['limit_gib']:.1f}",
    ]
    if isinstance(reliability, Mapping):
        lines.append(
            f"predicted: {reliability['failures_per_day']:.2g} failures a day, "
            f"a checkpoint every {duration(reliability['checkpoint_interval_s'])} would fit them"
        )
    rejected = [row["reason"] for row in document["rejected"] or [] if row.get("reason")]
    return [*lines, *(f"not taken: {reason}" for reason in rejected[:3])]


def _seconds(value: float) -> str:
    return f"{value:.3g} s"


def _span(values: Any) -> str:
    found = sorted(set(values))
    whole = found == list(range(found[0], found[-1] + 1))
    return str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}" if whole else ",".join(map(str, found))


def _count(parameters: object) -> str:
    if not isinstance(parameters, (int, float)):
        return "an unknown number of"
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if parameters >= size:
            return f"{parameters / size:.3g} {unit}"
    return str(parameters)
