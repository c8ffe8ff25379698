"""Tokens of sentence text, and the shards that are made of it."""

import sys
from pathlib import Path

import numpy as np
import pytest
from support.refusals import refused

from bert.data.finished import Finished, Stage
from bert.data.pool import Workers
from bert.data.vocabulary import SPECIAL_PIECES, Vocabulary
from bert.tasks.pretrain import hdf5 as tokens
from bert.tasks.pretrain.config import InstanceConfig
from bert.tasks.pretrain.hdf5 import Length, make_shards, tokenize, tokenizer_of
from bert.tasks.pretrain.shards import check_shard, read_shard

VOCABULARY = Vocabulary((*SPECIAL_PIECES, "the", "un", "##able", ",", "a"), lower_case=True)
TEXT = "the a\nUnable, zz\n\n\n\u200b\n\na\nthe\n\n"
NAMES = ["d_training_0.hdf5", "d_training_1.hdf5", "d_training_10.hdf5", "d_test_0.hdf5"]


def written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_a_shard_becomes_ids_with_the_ends_of_sentences_and_documents(tmp_path: Path) -> None:
    shard = tokenize(written(tmp_path / "a.txt", TEXT), VOCABULARY)
    assert shard.ids.tolist() == [5, 9, 6, 7, 8, 1, 9, 5] and shard.ids.dtype == np.uint16
    assert shard.sentence_ends.tolist() == [2, 6, 7, 8] and shard.sentence_ends.dtype == np.int64
    assert shard.document_ends.tolist() == [2, 4] and shard.document_ends.dtype == np.int64


@pytest.mark.parametrize(
    ("text", "sentences", "documents"),
    [("", [], []), ("\n\n\n", [], []), ("\u200b\n\n", [], []), ("a", [1], [1]), ("a\nthe\n", [1, 2], [2])],
)
def test_text_without_documents_and_text_without_a_last_line_end_are_taken(
    tmp_path: Path, text: str, sentences: list[int], documents: list[int]
) -> None:
    shard = tokenize(written(tmp_path / "a.txt", text), VOCABULARY)
    assert (shard.sentence_ends.tolist(), shard.document_ends.tolist()) == (sentences, documents)


def test_tokens_do_not_depend_on_blocks_or_on_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.txt", TEXT * 40 + "a")
    shard = tokenize(path, VOCABULARY)
    monkeypatch.setattr(tokens, "_BLOCK", 5)
    found = [tokenize(path, VOCABULARY)]
    monkeypatch.setitem(sys.modules, "nanotoken", None)
    plain = Vocabulary(VOCABULARY.pieces, lower_case=True)
    assert plain.tokenizer.package == "tokenizers"
    tokenizer_of.cache_clear()
    found.append(tokenize(path, plain))
    tokenizer_of.cache_clear()
    for other in found:
        for name in ("ids", "sentence_ends", "document_ends"):
            assert np.array_equal(getattr(other, name), getattr(shard, name))


def test_text_that_is_gone_or_not_utf_8_is_named(tmp_path: Path) -> None:
    with refused("path-missing", tmp_path / "a.txt"):
        tokenize(tmp_path / "a.txt", VOCABULARY)
    (tmp_path / "a.txt").write_bytes(b"a \xff\n")
    with refused("file-encoding", tmp_path / "a.txt", "UTF-8"):
        tokenize(tmp_path / "a.txt", VOCABULARY)


def test_large_vocabularies_take_32_bits(tmp_path: Path) -> None:
    vocabulary = Vocabulary((*SPECIAL_PIECES, *(f"w{number}" for number in range(70_000))), True)
    ids = tokenize(written(tmp_path / "a.txt", "w69999 w0\n"), vocabulary).ids
    assert ids.dtype == np.int32 and ids.tolist() == [70_004, 5]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("text")
    found = []
    for seed, name in enumerate(NAMES):
        rng = np.random.default_rng(seed)
        words = ["the", "a", "unable", ",", "zz"]
        documents = ("\n".join(" ".join(rng.choice(words, rng.integers(1, 15))) for _ in range(20)) for _ in range(12))
        found.append(written(folder / f"{Path(name).stem}.txt", "\n\n".join(documents) + "\n\n"))
    return found


def make(texts: list[Path], path: Path, workers: int = 1) -> Finished:
    lengths = []
    for seq_len in (32, 64):
        config = InstanceConfig(seq_len=seq_len, max_predictions=5, dupe_factor=2, seed=7)
        lengths.append(Length(Stage(path / str(seq_len), "hdf5", 1, {}, ""), config))
    with Workers(workers) as pool:
        return make_shards(texts, VOCABULARY, lengths, pool, lambda *_: None)[0]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}


def test_a_stage_is_complete_and_counts_what_it_made(texts: list[Path], tmp_path: Path) -> None:
    finished = make(texts, tmp_path)
    assert [path.name for path in finished.files] == NAMES
    shards = [read_shard(path) for path in finished.files]
    assert {check_shard(path).settings for path in finished.files} == {finished.fingerprint}
    assert len({shard.input_ids.tobytes() for shard in shards}) == 4
    tokens_in_all = sum(len(tokenize(path, VOCABULARY).ids) for path in texts)
    unknown = sum(int((tokenize(path, VOCABULARY).ids == 1).sum()) for path in texts)
    assert finished.counts.numbers == {
        "training instances": sum(map(len, shards[:3])),
        "test instances": len(shards[3]),
        "pairs with a random second segment": sum(int(shard.next_sentence_labels.sum()) for shard in shards),
        "tokens in instances": sum(int(shard.input_mask.sum()) for shard in shards),
        "tokens in instances, padding included": sum(len(shard) * 32 for shard in shards),
        "masked tokens": sum(int((shard.masked_lm_positions > 0).sum()) for shard in shards),
        "tokens": tokens_in_all,
        "unknown tokens": unknown,
        "shards tokenized with nanotoken": 4,
    }


def test_two_processes_write_the_same_bytes_and_missing_shards_are_made_again(
    texts: list[Path], tmp_path: Path
) -> None:
    make(texts, tmp_path / "one", 1)
    make(texts, tmp_path / "two", 2)
    before = contents(tmp_path / "one")
    assert before == contents(tmp_path / "two") and len(before) == 2 * (2 * len(NAMES) + 1)
    (tmp_path / "one/64" / NAMES[1]).unlink()
    kept = (tmp_path / "one/32" / NAMES[1]).stat().st_mtime_ns
    make(texts, tmp_path / "one")
    assert contents(tmp_path / "one") == before and (tmp_path / "one/32" / NAMES[1]).stat().st_mtime_ns == kept


def test_one_bad_shard_leaves_the_finished_ones(texts: list[Path], tmp_path: Path) -> None:
    with refused("data-too-small", "d_training_2.hdf5"):
        make([*texts[:2], written(tmp_path / "d_training_2.txt", "\n\n")], tmp_path / "a")
    assert {path.name for path in (tmp_path / "a/32").glob("*.hdf5")} == {*NAMES[:2]}
