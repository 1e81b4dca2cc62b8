"""The flat engine is taken for what was measured with it, and the other choice says why."""

import copy
import json

import pytest
from rackweave.plan.cluster import Cluster
from rackweave.plan.layout import plan_layout
from rackweave.plan.request import LayoutRequest
from rackweave.run.engine import choose_engine, with_peak
from rackweave.run.plan_file import parse_plan

CLUSTER = Cluster.from_shorthand("1x8xH100")
PLAN = plan_layout(CLUSTER, "llama3-8b", LayoutRequest(tensor_parallel_size=1, pipeline_parallel_size=1)).as_dict()
TRAIN = {"backend": "nccl", "dtype": "bfloat16"}


def planned(**sizes):
    document = copy.deepcopy(PLAN)
    document["sizes"].update(sizes)
    return type("Planned", (), {"document": document})


def test_a_measured_kind_of_layout_takes_the_flat_engine():
    assert parse_plan(json.dumps(PLAN)).document["sizes"]["data_parallel_size"] == 8
    assert choose_engine(parse_plan(json.dumps(PLAN)), TRAIN).engine == "flat"


@pytest.mark.parametrize(
    ("sizes", "train", "words"),
    [
        ({}, {"backend": "gloo"}, "over gloo"),
        ({}, {"dtype": "float16"}, "in float16"),
        ({}, {"lora": {"rank": 8}}, "low-rank adapters"),
        ({"offload": "cpu"}, {}, "offload=cpu"),
        ({"tensor_parallel_size": 2, "data_parallel_size": 1, "sequence_parallel": True}, {}, "sequence parallelism"),
        ({"pipeline_parallel_size": 2, "data_parallel_size": 4}, {}, "pipeline and data parallelism together"),
    ],
)
def test_what_was_never_run_with_it_on_gpus_stays_with_deepspeed(sizes, train, words):
    choice = choose_engine(planned(**sizes), {**TRAIN, **train})
    assert choice.engine == "deepspeed"
    assert words in choice.reason


def test_a_named_engine_is_kept_and_nvme_needs_the_flat_one():
    assert choose_engine(planned(), {**TRAIN, "engine": "deepspeed"}).engine == "deepspeed"
    assert choose_engine(planned(offload="nvme"), {**TRAIN, "backend": "gloo"}).engine == "flat"


def with_gpu(name):
    return type("Planned", (), {"document": {"cluster": {"hosts": [{"gpu": name}]}}})


def test_the_peak_of_the_planned_gpu_stands_in_where_none_is_named():
    train = {**TRAIN, "telemetry": {"tensorboard": False, "peak_flops_per_second": None}}
    assert with_peak(with_gpu("NVIDIA H100 80GB HBM3"), train)["telemetry"]["peak_flops_per_second"] == 989.4e12
    assert with_peak(with_gpu("simulated"), train) == train
    named = {**train, "telemetry": {"peak_flops_per_second": 1e12}}
    assert with_peak(with_gpu("NVIDIA H100 80GB HBM3"), named) == named


def test_without_zero_the_flat_engine_is_the_only_one_whatever_is_asked():
    assert choose_engine(planned(zero_stage=0), {**TRAIN, "engine": "deepspeed"}).engine == "flat"
