"""What the planner and the data tool promise is what Megatron core does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rackweave.plan.layout import ParallelSizes

from tests.support.attempts import LLAMA, MODEL, make_attempt, sizes
from tests.support.launch import ForkServer

pytestmark = pytest.mark.multiprocess


def test_groups_of_the_plan_are_those_that_the_trainer_builds(
    launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    attempts = {}
    for shape in ((2, 2, 2), (2, 1, 4), (1, 4, 2), (2, 4, 1)):
        attempt = make_attempt(tmp_path / "-".join(map(str, shape)), corpus, MODEL, sizes(*shape))
        attempts[str(attempt)] = ParallelSizes(*shape)
    launcher.call("tests.support.ranks:write_groups", tmp_path, 8, attempts=list(attempts)).assert_done()
    for attempt, planned in attempts.items():
        for rank in range(8):
            found = json.loads((Path(attempt) / f"groups-{rank}.json").read_text())
            assert found["tensor"] == next(group for group in planned.tensor_groups() if rank in group)
            assert found["data"] == next(group for group in planned.data_groups() if rank in group)
            assert found["pipeline"] == next(group for group in planned.pipeline_groups() if rank in group)


@pytest.mark.parametrize("shape", [(8, 2, 2), (4, 3, 5), (1, 7, 3)])
def test_rank_order_equals_megatrons_rank_generator(
    shape: tuple[int, int, int], launcher: ForkServer, tmp_path: Path
) -> None:
    launcher.call("tests.contract.test_megatron:compare_rank_generator", tmp_path, 1, shape=shape).assert_done()


def compare_rank_generator(shape: list[int]) -> None:
    from megatron.core.parallel_state import RankGenerator

    tp, pp, dp = shape
    theirs = RankGenerator(tp=tp, ep=1, dp=dp, pp=pp, cp=1, order="tp-cp-ep-dp-pp")
    ours = ParallelSizes(tp, pp, dp)
    assert theirs.get_ranks("tp") == ours.tensor_groups()
    assert theirs.get_ranks("dp") == ours.data_groups()
    assert theirs.get_ranks("pp") == ours.pipeline_groups()


@pytest.mark.parametrize("model", [MODEL, LLAMA, {**MODEL, "tied_embeddings": True}], ids=["gpt", "llama", "tied"])
def test_our_layers_compute_what_megatrons_gpt_model_computes(
    model: dict[str, Any], launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    attempt = make_attempt(tmp_path / "attempt", corpus, model)
    launcher.call(
        "tests.support.ranks:compare_with_megatron", tmp_path, 1, attempt=str(attempt), out=str(tmp_path)
    ).assert_done()
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["missing"] == []
    assert facts["unexpected"] == []
    assert facts["logits"] < 1e-5
    assert facts["gradients"] < 1e-5


def test_megatron_reads_our_corpus(launcher: ForkServer, corpus: Path, tmp_path: Path) -> None:
    launcher.call(
        "tests.contract.test_megatron:read_with_megatron", tmp_path, 1, prefix=str(corpus / "train")
    ).assert_done()


def read_with_megatron(prefix: str) -> None:
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    from trainer.data.indexed import IndexedCorpus

    theirs, ours = IndexedDataset(prefix), IndexedCorpus(prefix)
    assert len(theirs) == len(ours.document_lengths)
    for document in (0, 1, len(theirs) - 1):
        assert np.array_equal(theirs[document], ours.read(document, 0, int(ours.document_lengths[document])))


def test_we_read_megatrons_corpus(launcher: ForkServer, tmp_path: Path) -> None:
    launcher.call(
        "tests.contract.test_megatron:write_with_megatron", tmp_path, 1, prefix=str(tmp_path / "c")
    ).assert_done()


def write_with_megatron(prefix: str) -> None:
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    from trainer.data.indexed import IndexedCorpus

    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.uint16)
    for document in ([1, 2, 3], [4], [5, 6]):
        builder.add_item(torch.tensor(document))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")
    ours = IndexedCorpus(prefix)
    assert list(ours.document_lengths) == [3, 1, 2]
    assert list(ours.read(2, 0, 2)) == [5, 6]
