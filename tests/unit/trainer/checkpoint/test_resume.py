"""Many ranks that resume read a checkpoint together: each file once, and what one finds all know."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.launch import ForkServer
from tests.support.saver import save_as_if_by

pytestmark = pytest.mark.multiprocess
READERS, WRITERS = 4, 48


@pytest.fixture(scope="module")
def examined(launcher: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What each of four ranks found in, and opened of, a good checkpoint and of several damaged ones."""
    where = tmp_path_factory.mktemp("examined")
    damages = {
        "good": lambda path: None,
        "unsealed": lambda path: (path / "seal.json").unlink(),
        "shard": lambda path: (path / "__13_1.distcp").write_bytes(b"x" * 1000),
        "missing": lambda path: (path / "__14_1.distcp").unlink(),
        "manifest": lambda path: (path / "manifest/15.json").write_text("{}"),
        "swapped": swap_manifests,
        "fewer": lambda path: (path / "seal.json").write_text(without_the_last(path)),
        "metadata": lambda path: (path / ".metadata").write_bytes(b"x"),
    }
    paths = []
    for name, damage in damages.items():
        paths.append(save_as_if_by(WRITERS, where / name))
        damage(paths[-1])
    attempt = where / "attempt"
    attempt.mkdir()
    call = "tests.support.ranks:examine_checkpoints"
    launcher.call(call, attempt, READERS, attempt=str(attempt), checkpoints=[str(path) for path in paths]).assert_done()
    return {
        name: [json.loads((attempt / f"{name}-{rank}.json").read_text()) for rank in range(READERS)] for name in damages
    }


def swap_manifests(path: Path) -> None:
    """Let two manifests change places, with nothing that vouches for them."""
    (path / "seal.json").unlink()
    one, other = (path / f"manifest/{rank}.json" for rank in (3, 4))
    content = one.read_text()
    one.write_text(other.read_text())
    other.write_text(content)


def without_the_last(path: Path) -> str:
    """Return a seal that does not know of the last manifest."""
    content = json.loads((path / "seal.json").read_text())
    del content["files"][f"manifest/{WRITERS - 1}.json"]
    return json.dumps(content)


def test_each_file_is_opened_by_one_rank_only(examined: dict[str, list[dict[str, Any]]]) -> None:
    opened = [Counter(Path(name).name for name in rank["opened"]) for rank in examined["good"]]
    together: Counter[str] = sum(opened, Counter())
    # The state is read by the coordinator, and its bytes are compared by whom they are dealt to.
    assert {name for name, times in together.items() if times > 1} == {"state.json"}
    assert sum(1 for name in together if name.endswith(".distcp")) == WRITERS + 1
    assert {name for rank in opened[1:] for name in rank if not name.endswith((".json", ".distcp"))} == set()
    most = -(-WRITERS // READERS) + -(-(WRITERS + 2) // READERS)
    assert all(rank.total() <= most for rank in opened[1:])


def test_all_ranks_know_a_good_checkpoint_as_the_same_one(examined: dict[str, list[dict[str, Any]]]) -> None:
    for name in ("good", "unsealed"):
        found = {rank["found"] for rank in examined[name]}
        assert len(found) == 1
        assert f"whole, {WRITERS} manifests" in found.pop()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("shard", "__13_1.distcp has other bytes than were written (sha256 differs)"),
        ("missing", "__14_1.distcp is missing"),
        ("manifest", "manifest/15.json has 2 bytes, its manifest says"),
        ("swapped", "is the manifest of rank"),
        ("fewer", f"the checkpoint has {WRITERS - 1} of them"),
        ("metadata", ".metadata has 1 bytes, its manifest says"),
    ],
)
def test_what_one_rank_finds_wrong_all_ranks_say_alike(
    damage: str, sentence: str, examined: dict[str, list[dict[str, Any]]]
) -> None:
    found = {rank["found"] for rank in examined[damage]}
    assert len(found) == 1
    assert sentence in found.pop()
