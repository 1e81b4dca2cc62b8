"""Whatever is wrong with the input is said once, by rank 0, before any model is built; the job ends with 64."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.attempts import MODEL, make_attempt, sizes
from tests.support.launch import ForkServer

pytestmark = pytest.mark.multiprocess
HUGE = {**MODEL, "hidden_size": 1 << 20, "ffn_hidden_size": 1 << 22, "head_dim": 1 << 18}
TOKENIZER = {"kind": "huggingface", "file": "/nowhere/tokenizer.json"}


def truncated(corpus: Path, where: Path) -> Path:
    """Return a copy of the corpus whose index is cut short."""
    shutil.copytree(corpus, where)
    index = where / "train.idx"
    index.write_bytes(index.read_bytes()[:-5])
    return where


def foreign(corpus: Path, where: Path) -> Path:
    """Return a copy of the corpus with a token that the model does not have, far behind the first samples."""
    shutil.copytree(corpus, where)
    tokens = np.fromfile(where / "train.bin", dtype=np.uint16)
    tokens[len(tokens) // 2] = 60000
    tokens.tofile(where / "train.bin")
    return where


def saved_by_another(corpus: Path, where: Path, launcher: ForkServer) -> str:
    """Return a checkpoint directory of a model with other sizes."""
    attempt = make_attempt(where / "attempt", corpus, {**MODEL, "ffn_hidden_size": 128}, sizes(dp=2), steps=1)
    launcher.run(attempt, 2).assert_done()
    return str(where / "checkpoints")


def attempt_of(kind: str, launcher: ForkServer, corpus: Path, where: Path) -> tuple[Path, str]:
    """Return an attempt with one fault, and a part of the sentence that names it."""
    place, made = where / "attempt", sizes(dp=2)
    if kind == "world size":
        return make_attempt(place, corpus, MODEL, sizes(2, 2, 2)), "the plan is for world_size=8, but the job was"
    if kind == "tokenizer":
        attempt = make_attempt(place, corpus, MODEL, made, data={"tokenizer": TOKENIZER})
        return attempt, "the tokenizer file /nowhere/tokenizer.json does not exist"
    if kind == "vocabulary":
        attempt = make_attempt(place, corpus, {**MODEL, "vocab_size": 257}, sizes(tp=2, zero_stage=1))
        return attempt, "vocab_size=257 is not a multiple of tensor_parallel_size=2"
    if kind == "index":
        return make_attempt(place, truncated(corpus, where / "cut"), MODEL, made), "train.idx"
    if kind == "tokens":
        return make_attempt(place, foreign(corpus, where / "foreign"), MODEL, made), "train holds the token 60000"
    if kind == "attempt":
        attempt = make_attempt(place, corpus, MODEL, made)
        (attempt / "phase").write_text("no directory")
        return attempt, "cannot be written: [Errno 17] File exists"
    if kind == "model":
        directory = saved_by_another(corpus, where / "other", launcher)
        attempt = make_attempt(place, corpus, MODEL, made, checkpoint={"directory": directory})
        return attempt, "is a checkpoint of another model: ffn_hidden_size=128 there, 256 in the plan"
    return make_attempt(place, corpus, HUGE, made), "GiB free: make room, or choose another checkpoint.directory"


@pytest.mark.parametrize(
    "kind", ["world size", "tokenizer", "vocabulary", "index", "tokens", "attempt", "model", "no space"]
)
def test_a_fault_of_the_input_stops_the_job_before_the_model(
    kind: str, launcher: ForkServer, corpus: Path, tmp_path: Path
) -> None:
    attempt, sentence = attempt_of(kind, launcher, corpus, tmp_path)
    ended = launcher.run(attempt, 2)
    assert ended.codes == [64, 64]
    said = [line for log in ended.logs for line in log.splitlines() if sentence in line]
    assert len(said) == 1
    assert said[0] in ended.logs[0]
    results: list[dict[str, Any]] = [json.loads((attempt / f"result/{rank}.json").read_text()) for rank in (0, 1)]
    assert all((result["exit"], result["code"]) == ("stop", 64) for result in results)
    assert sentence in results[0]["reason"]
    assert "Traceback" not in ended.logs[0] + ended.logs[1]
    log = attempt / "events.jsonl"
    assert not log.exists() or "model_build" not in log.read_text()
