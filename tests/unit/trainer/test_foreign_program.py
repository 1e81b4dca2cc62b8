"""A program that is not ours runs from a plan's flags and DeepSpeed configuration, and is watched by its log alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rackweave.run.ds_config import render_ds_config
from rackweave.run.megatron_args import megatron_args
from rackweave.run.plan_file import parse_plan
from rackweave.watch.scanner import Scan, Source
from rackweave.watch.verdict import diagnose

from tests.support import pretrain_gpt
from tests.support.attempts import LLAMA, MODEL, TRAIN, plan, sizes
from tests.support.launch import ROOT, free_port

RUN = {**TRAIN, "steps": 8, "checkpoint": {"directory": "/mnt/checkpoints", "interval": 4, "keep": 2, "mode": "sync"}}


def planned(model: dict[str, object], chosen: dict[str, object]) -> object:
    document = plan(dict(model), dict(chosen), "test", ["node-a"], int(str(chosen["world_size"])))
    document["cluster"] |= {"origin": "simulated", "source": "a test"}
    return parse_plan(json.dumps(document))


@pytest.mark.parametrize(
    ("model", "chosen"),
    [
        (LLAMA, sizes(tp=2, pp=2, dp=2, virtual_pipeline_size=2, recompute="full")),
        ({**MODEL, "tied_embeddings": True}, sizes(dp=2, recompute="selective")),
    ],
)
def test_megatrons_parser_takes_every_flag_of_a_plan(model: dict[str, object], chosen: dict[str, object]) -> None:
    given = pretrain_gpt.parser().parse_args(megatron_args(planned(model, chosen), {**RUN, "dtype": "bfloat16"}))
    assert given.tensor_model_parallel_size == chosen["tensor_parallel_size"]
    assert given.pipeline_model_parallel_size == chosen["pipeline_parallel_size"]
    assert given.num_layers_per_virtual_pipeline_stage == (1 if chosen["virtual_pipeline_size"] == 2 else None)
    assert (given.global_batch_size, given.micro_batch_size) == (8, 2)
    assert given.swiglu is (model["activation"] == "swiglu")
    assert given.untie_embeddings_and_output_weights is not model["tied_embeddings"]
    assert given.bf16
    assert given.train_iters == 8


@pytest.mark.multiprocess
def test_a_foreign_program_trains_from_the_run_files_and_is_watched_by_its_log(tmp_path: Path) -> None:
    made = planned(MODEL, sizes(dp=2))
    (tmp_path / "ds_config.json").write_text(json.dumps(render_ds_config(made, RUN)))
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += [f"--master-port={free_port()}", str(ROOT / "tests/support/pretrain_gpt.py"), *megatron_args(made, RUN)]
    command += ["--deepspeed", "--deepspeed_config", str(tmp_path / "ds_config.json"), "--break-at", "7"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    iterations = [line for line in done.stdout.splitlines() if "elapsed time per iteration" in line]
    assert len(iterations) == 6, done.stderr[-3000:]

    scan = Scan()
    scan.feed(Source("stdout.log", iter([done.stdout.encode()])))
    assert [sample.step for sample in scan.series.samples] == list(range(1, 7))
    assert all(sample.loss and sample.seconds for sample in scan.series.samples)
    healthy = diagnose([Source("stdout.log", iter(["\n".join(iterations).encode()]))])
    assert not healthy.alarm
    sources = [Source("stdout.log", iter([done.stdout.encode()])), Source("stderr.log", iter([done.stderr.encode()]))]
    verdict = diagnose(sources).as_dict()
    assert verdict["alarm"]
    assert verdict["culprit"].split(",")[0] == "rank:1"
    assert any("/nowhere/shard-7.bin" in line for line in verdict["evidence"])
