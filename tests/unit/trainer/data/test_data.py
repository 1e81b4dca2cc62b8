"""From text to samples."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.attempts import sizes, write_text
from trainer.config import CorpusConfig, SizesConfig, TokenizerConfig
from trainer.data.__main__ import main
from trainer.data.indexed import IndexedCorpus, IndexedWriter
from trainer.data.samples import Sampler, open_blend
from trainer.data.tokenizer import load_tokenizer
from trainer.errors import StopError


def prepare(where: Path, *arguments: str) -> int:
    return main(["--input", str(where / "text.txt"), "--output", str(where / "out"), *arguments])


def corpus(where: Path, documents: list[list[int]]) -> str:
    writer = IndexedWriter(where, np.uint16)
    for document in documents:
        writer.add(document)
    writer.finish()
    return str(where)


def sampler(prefixes: dict[str, float], length: int, chosen: dict[str, Any], dp_rank: int, vocab: int = 300) -> Sampler:
    blend = open_blend([CorpusConfig(prefix, weight) for prefix, weight in prefixes.items()], length, 3)
    return Sampler(blend, SizesConfig(**chosen), dp_rank, vocab)


def test_a_text_becomes_two_splits_that_hold_all_of_it(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt", words=20_000).read_bytes()
    assert prepare(tmp_path) == 0
    report = json.loads((tmp_path / "out/data.json").read_text())
    assert sum(split["bytes"] for split in report["splits"].values()) == len(text)
    held_out = IndexedCorpus(str(tmp_path / "out/validation"))
    content = bytearray()
    for number, length in enumerate(held_out.document_lengths):
        tokens = held_out.read(number, 0, int(length))
        assert tokens[-1] == 256
        content += bytes(tokens[:-1].tolist())
    counts = Counter(content)
    entropy = -sum(n / len(content) * math.log(n / len(content)) for n in counts.values())
    assert report["validation_byte_unigram_entropy_nats"] == pytest.approx(entropy)
    assert 0.02 < len(content) / len(text) < 0.08


def test_the_same_input_again_leaves_everything_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_text(tmp_path / "text.txt", words=20_000)
    prepare(tmp_path)
    before = (tmp_path / "out/train.bin").stat().st_mtime_ns
    capsys.readouterr()
    assert prepare(tmp_path) == 0
    assert json.loads(capsys.readouterr().out)["changed"] is False
    assert (tmp_path / "out/train.bin").stat().st_mtime_ns == before
    write_text(tmp_path / "text.txt", words=21_000)
    prepare(tmp_path)
    assert json.loads(capsys.readouterr().out)["changed"] is True


def test_a_text_too_small_for_its_split_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one line\n")
    assert prepare(tmp_path) == 64
    assert list((tmp_path / "out").iterdir()) == []


def test_an_output_that_cannot_be_written_is_said_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text(tmp_path / "text.txt", words=2000)
    (tmp_path / "out").write_text("a file")
    assert prepare(tmp_path) == 64
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_jsonl_without_the_text_key_names_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.jsonl").write_text('{"text": "a"}\n{"txt": "b"}\n')
    assert main(["--input", str(tmp_path / "text.jsonl"), "--output", str(tmp_path / "out")]) == 64
    assert "line 2 has no text under the key 'text'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("[" * 100_000, "line 3 is no JSON"),
        ('{"text": ' + "9" * 6000 + "}", "line 3 is no JSON"),
        ('{"text": 3}', "line 3 has no text under the key 'text'"),
    ],
)
def test_a_line_that_cannot_be_read_is_named_and_nothing_is_left(
    line: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.jsonl").write_text('{"text": "a"}\n' * 2 + line + "\n")
    assert main(["--input", str(tmp_path / "text.jsonl"), "--output", str(tmp_path / "out")]) == 64
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert sentence in said[0]
    assert list((tmp_path / "out").iterdir()) == []


def test_half_a_character_and_a_byte_order_mark_do_not_end_the_work(tmp_path: Path) -> None:
    lines = '\ufeff{"text": "half \\ud800 of one, \\ud83d\\ude00 whole"}\n' + '{"text": "more"}\n' * 60
    (tmp_path / "text.jsonl").write_text(lines, encoding="utf-8")
    assert main(["--input", str(tmp_path / "text.jsonl"), "--output", str(tmp_path / "out")]) == 0
    first = IndexedCorpus(str(tmp_path / "out/train"))
    content = bytes(first.read(0, 0, int(first.document_lengths[0]) - 1).tolist()).decode("utf-8")
    assert content == "half \ufffd of one, \U0001f600 whole"


def test_a_text_of_one_line_is_cut_into_documents_and_nothing_is_lost(tmp_path: Path) -> None:
    text = "".join(f"wört{number} " for number in range(40_000))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    assert prepare(tmp_path) == 0
    parts = []
    for split in ("train", "validation"):
        held = IndexedCorpus(str(tmp_path / "out" / split))
        for number, length in enumerate(held.document_lengths):
            parts.append(bytes(held.read(number, 0, int(length) - 1).tolist()).decode("utf-8"))
    assert sorted("".join(parts)) == sorted(text)
    assert len(parts) > 20


@pytest.mark.parametrize("content", [b"[1]", b"\xff", b"[" * 100_000])
def test_a_damaged_report_is_made_again(content: bytes, tmp_path: Path) -> None:
    write_text(tmp_path / "text.txt", words=20_000)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/data.json").write_bytes(content)
    assert prepare(tmp_path) == 0
    assert json.loads((tmp_path / "out/data.json").read_text())["vocab_size"] == 257


def word_level(where: Path, **changes: Any) -> TokenizerConfig:
    """Write a small Hugging Face tokenizer file."""
    vocabulary = {"a": 0, "b": 1, "</s>": 9}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"},
        **changes,
    }
    where.write_text(json.dumps(content))
    return TokenizerConfig("huggingface", str(where))


def test_a_tokenizer_file_that_cuts_and_pads_texts_does_not_do_so_here(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    pad = {"strategy": {"Fixed": 20}, "direction": "Right", "pad_to_multiple_of": None}
    pad |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
    tokenizer = load_tokenizer(word_level(tmp_path / "tokenizer.json", truncation=cut, padding=pad))
    assert tokenizer.encode("a b a b a b") == [0, 1, 0, 1, 0, 1]


def test_a_vocabulary_with_gaps_is_as_large_as_its_largest_id_asks(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    assert load_tokenizer(word_level(tmp_path / "tokenizer.json")).vocab_size == 10


def test_a_text_that_a_tokenizer_has_no_token_for_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    with pytest.raises(StopError, match=r"tokenizer\.json cannot encode 'c'"):
        load_tokenizer(word_level(tmp_path / "tokenizer.json")).encode("c")


@pytest.mark.parametrize("damage", ["magic", "short", "bin", "missing"])
def test_a_damaged_corpus_is_refused_by_name(damage: str, tmp_path: Path) -> None:
    prefix = corpus(tmp_path / "c", [[1, 2, 3], [4, 5]])
    index = tmp_path / "c.idx"
    if damage == "magic":
        index.write_bytes(b"X" + index.read_bytes()[1:])
    elif damage == "short":
        index.write_bytes(index.read_bytes()[:-8])
    elif damage == "bin":
        (tmp_path / "c.bin").write_bytes(b"\0\0")
    else:
        index.unlink()
    with pytest.raises(StopError, match=r"c\.(idx|bin)"):
        IndexedCorpus(prefix)


def test_a_corpus_shorter_than_one_sequence_is_refused(tmp_path: Path) -> None:
    prefix = corpus(tmp_path / "c", [[1, 2, 3]])
    with pytest.raises(StopError, match="has 3 tokens in 1 documents, too few for one sequence of sequence_length=8"):
        open_blend([CorpusConfig(prefix, 1.0)], 8, 0)


def test_an_epoch_shows_every_token_once(tmp_path: Path) -> None:
    prefix = corpus(tmp_path / "c", [list(range(10 * n, 10 * n + 10)) for n in range(20)])
    shown = sampler({prefix: 1.0}, 7, sizes(global_batch_size=4, micro_batch_size=4), 0)
    samples = (200 - 1) // 7
    tokens = np.concatenate([shown.micro_batch(step, 0).tokens.ravel() for step in range(samples // 4)])
    assert len(set(tokens.tolist())) == len(tokens)


def test_labels_are_the_tokens_shifted_by_one(tmp_path: Path) -> None:
    prefix = corpus(tmp_path / "c", [list(range(100))])
    batch = sampler({prefix: 1.0}, 9, sizes(), 0).micro_batch(0, 0)
    assert np.array_equal(batch.labels, batch.tokens + 1)


def test_a_step_is_the_same_samples_in_every_layout(tmp_path: Path) -> None:
    prefix = corpus(tmp_path / "c", [list(range(n, n + 30)) for n in range(100)])
    whole = {}
    for dp, micro in ((1, 2), (2, 2), (4, 1), (8, 2)):
        chosen = sizes(dp=dp, micro_batch_size=micro, global_batch_size=16)
        rows = [
            tuple(row)
            for rank in range(dp)
            for index in range(chosen["num_microbatches"])
            for row in sampler({prefix: 1.0}, 16, chosen, rank).micro_batch(3, index).tokens.tolist()
        ]
        whole[dp] = sorted(rows)
    assert whole[1] == whole[2] == whole[4] == whole[8]


def test_a_blend_follows_its_weights_from_the_first_samples_on(tmp_path: Path) -> None:
    first = corpus(tmp_path / "a", [[1] * 4000])
    second = corpus(tmp_path / "b", [[2] * 4000])
    shown = sampler({first: 3.0, second: 1.0}, 8, sizes(), 0)
    values = [int(shown.micro_batch(step, index).tokens[0, 0]) for step in range(50) for index in range(4)]
    assert values.count(2) / len(values) == pytest.approx(0.25, abs=0.02)
    assert 2 in values[:8]


def test_a_token_outside_the_vocabulary_stops_with_its_number(tmp_path: Path) -> None:
    prefix = corpus(tmp_path / "c", [[500] * 100])
    with pytest.raises(StopError, match="holds the token 500, the model has vocab_size=300"):
        sampler({prefix: 1.0}, 8, sizes(), 0).micro_batch(0, 0)


def test_tokens_of_a_large_corpus_are_looked_at_in_pieces_over_all_of_it(tmp_path: Path) -> None:
    opened = IndexedCorpus(corpus(tmp_path / "c", [[7] * 5000, [9] * 4999 + [400]]))
    assert opened.token_range() == (7, 400)
    assert opened.token_range(most=640) == (7, 400)  # its last piece ends with the corpus
    assert IndexedCorpus(corpus(tmp_path / "d", [[7] * 4999 + [400], [9] * 5000])).token_range(most=640) == (7, 9)


def test_an_index_whose_sequences_do_not_follow_one_another_is_refused(tmp_path: Path) -> None:
    prefix = corpus(tmp_path / "c", [[1, 2, 3], [4, 5]])
    index = tmp_path / "c.idx"
    content = bytearray(index.read_bytes())
    content[34 + 2 * 4 + 8] ^= 2  # the second pointer
    index.write_bytes(content)
    with pytest.raises(StopError, match="sequences do not follow one another"):
        IndexedCorpus(prefix)


def test_a_hugging_face_tokenizer_file_is_used(tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    made = Tokenizer(WordLevel({"[UNK]": 0, "</s>": 1, "hello": 2, "world": 3}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    file = tmp_path / "tokenizer.json"
    made.save(str(file))
    loaded = load_tokenizer(TokenizerConfig("huggingface", str(file)))
    assert (loaded.vocab_size, loaded.end_of_document) == (4, 1)
    assert loaded.encode("hello world") == [2, 3]


def test_a_sentencepiece_model_is_used(tmp_path: Path) -> None:
    import sentencepiece

    text = write_text(tmp_path / "text.txt", words=2000)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(tmp_path / "sp"), vocab_size=120, minloglevel=2
    )
    loaded = load_tokenizer(TokenizerConfig("sentencepiece", str(tmp_path / "sp.model")))
    assert loaded.vocab_size == 120
    assert max(loaded.encode("The end.")) < 120


@pytest.mark.parametrize("kind", ["huggingface", "sentencepiece"])
def test_a_damaged_tokenizer_file_is_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("{nothing")
    with pytest.raises(StopError, match=r"t\.json"):
        load_tokenizer(TokenizerConfig(kind, str(tmp_path / "t.json")))
    with pytest.raises(StopError, match="does not exist"):
        load_tokenizer(TokenizerConfig(kind, str(tmp_path / "none")))
