"""Shards as files: the stage that makes them of sentence text, their bytes, the reader and what it refuses."""

import dataclasses
import hashlib
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from support.pretraining_shards import overwrite
from support.refusals import refused
from support.shard_files import write_shard

from bert.data.finished import Finished, Stage
from bert.data.pool import Workers
from bert.data.vocabulary import SPECIAL_PIECES, Vocabulary
from bert.tasks.pretrain import hdf5
from bert.tasks.pretrain.config import InstanceConfig
from bert.tasks.pretrain.hdf5 import Length, make_shards, tokenize, tokenizer_of, write_blocks
from bert.tasks.pretrain.instances import Instances
from bert.tasks.pretrain.shards import ShardHeader, check_shard, read_shard
from common.errors import Code

SEQ_LEN, PREDICTIONS = 12, 3
COLUMNS = [field.name for field in dataclasses.fields(Instances)]
VOCABULARY = Vocabulary((*SPECIAL_PIECES, "the", "un", "##able", ",", "a"), lower_case=True)
TEXT = "the a\nUnable, zz\n\n\n\u200b\n\na\nthe\n\n"
NAMES = ["d_training_0.hdf5", "d_training_1.hdf5", "d_training_10.hdf5", "d_test_0.hdf5"]


def instances(samples: int, seed: int = 1) -> Instances:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(6, SEQ_LEN + 1, samples)
    mask = (np.arange(SEQ_LEN) < lengths[:, None]).astype(np.int8)
    columns = np.sort(1 + np.argsort(rng.random((samples, 4)), axis=1)[:, :PREDICTIONS], axis=1)
    used = np.arange(PREDICTIONS) < (np.arange(samples) % (PREDICTIONS + 1))[:, None]
    return Instances(
        input_ids=(rng.integers(5, 90_000, (samples, SEQ_LEN)) * mask).astype(np.int32),
        input_mask=mask,
        segment_ids=(mask * (np.arange(SEQ_LEN) > 3)).astype(np.int8),
        masked_lm_positions=(columns * used).astype(np.int32),
        masked_lm_ids=(rng.integers(1, 900, columns.shape) * used).astype(np.int32),
        next_sentence_labels=rng.integers(0, 2, samples).astype(np.int8),
    )


def same(first: Instances, second: Instances) -> bool:
    return all((getattr(first, name) == getattr(second, name)).all() for name in COLUMNS)


def blocks_of(made: Instances, size: int) -> Iterator[Instances]:
    for begin in range(0, len(made), size):
        yield Instances(*(getattr(made, name)[begin : begin + size] for name in COLUMNS))


@pytest.mark.parametrize("samples", [1, 1024, 5000])
def test_what_is_written_in_blocks_is_read_again(tmp_path: Path, samples: int) -> None:
    made, path = instances(samples), tmp_path / "a.hdf5"
    write_blocks(path, ShardHeader(samples, SEQ_LEN, PREDICTIONS), blocks_of(made, 2048), "s")
    assert same(read_shard(path), made)
    with h5py.File(path) as file:
        found = {name: (file[name].dtype.str, file[name].shape, file[name].compression) for name in file}
        assert file.attrs["bertbench_settings"] == "s"
    assert found == {
        "input_ids": ("<i4", (samples, 12), "gzip"),
        "input_mask": ("|i1", (samples, 12), "gzip"),
        "segment_ids": ("|i1", (samples, 12), "gzip"),
        "masked_lm_positions": ("<i4", (samples, 3), "gzip"),
        "masked_lm_ids": ("<i4", (samples, 3), "gzip"),
        "next_sentence_labels": ("|i1", (samples,), "gzip"),
    }
    assert check_shard(path) == ShardHeader(samples, 12, 3)


def test_the_same_instances_give_the_same_bytes_at_any_time_in_any_blocks_and_without_zlib_ng(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, path, digests = instances(3000), tmp_path / "a.hdf5", set()
    for size in (1024, 2048, 4096):
        write_blocks(path, ShardHeader(3000, SEQ_LEN, PREDICTIONS), blocks_of(made, size))
        digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
    time.sleep(1.0)  # times in a file have a resolution of a second
    hdf5._compressobj.cache_clear()
    monkeypatch.setitem(sys.modules, "zlib_ng", None)
    write_shard(path, made)
    assert hdf5._compressobj() is zlib.compressobj
    hdf5._compressobj.cache_clear()
    assert digests == {hashlib.sha256(path.read_bytes()).hexdigest()}


@pytest.mark.parametrize("types", [("i8", "i8"), (">i4", "i1")])
@pytest.mark.parametrize("options", [{"compression": "gzip", "shuffle": True}, {}])
def test_shards_from_elsewhere_are_read(tmp_path: Path, types: tuple[str, str], options: dict[str, Any]) -> None:
    made = instances(300)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name in COLUMNS:
            values = getattr(made, name)
            file.create_dataset(name, data=values.astype(types[values.dtype.itemsize == 1]), **options)
    assert same(read_shard(tmp_path / "a.hdf5"), made)


@pytest.mark.parametrize("keep", [0.0, 0.9])
def test_a_truncated_shard_is_named(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "a.hdf5"
    write_shard(path, instances(50))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    for reader in (check_shard, read_shard):
        with refused("file-truncated" if keep else "file-damaged", path):
            reader(path)


def test_overwritten_bytes_are_named_when_the_data_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.hdf5"
    write_shard(path, instances(3000))
    overwrite(path)
    with refused("file-damaged", path):
        read_shard(path)


def edited(path: Path, edit: str) -> None:
    with h5py.File(path, "r+") as file:
        if edit == "missing":
            del file["segment_ids"]
            return
        names = {"values": ["masked_lm_positions"], "mask": ["input_mask"], "empty": COLUMNS}.get(edit, ["segment_ids"])
        for name in names:
            data = file[name][:]
            del file[name]
            if edit == "values":
                data[0, 0] = SEQ_LEN
            elif edit == "mask":
                data[3, :3] = 0
            changes = {"type": data.astype("f4"), "rows": data[:-1], "empty": data[:0]}
            changes |= {"axes": data[:, 0], "width": data[:, :-1]} if data.ndim > 1 else {}
            file[name] = changes.get(edit, data)


@pytest.mark.parametrize(
    ("edit", "code", "facts"),
    [
        ("missing", "columns-missing", ("segment_ids",)),
        ("type", "file-damaged", ("segment_ids", "float32")),
        ("axes", "file-damaged", ("segment_ids", "[20]")),
        ("rows", "file-damaged", ("segment_ids", "[19, 12]")),
        ("width", "file-damaged", ("segment_ids", "[20, 11]")),
        ("empty", "file-damaged", ("[0, 12]",)),
        ("values", "rows-invalid", ("masked_lm_positions", "0 to 12", "0 to 11")),
        ("mask", "rows-invalid", ("input_mask",)),
    ],
)
def test_a_malformed_shard_is_named_with_its_fault(
    tmp_path: Path, edit: str, code: Code, facts: tuple[object, ...]
) -> None:
    path = tmp_path / "a.hdf5"
    write_shard(path, instances(20))
    edited(path, edit)
    with refused(code, path, *facts):
        read_shard(path)


# from sentence text


def written(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "ids", "sentences", "documents"),
    [
        (TEXT, [5, 9, 6, 7, 8, 1, 9, 5], [2, 6, 7, 8], [2, 4]),
        ("", [], [], []),
        ("\n\u200b\n\n", [], [], []),
        ("a\nthe", [9, 5], [1, 2], [2]),
    ],
)
def test_sentence_text_becomes_ids_with_the_ends_of_sentences_and_documents(
    tmp_path: Path, text: str, ids: list[int], sentences: list[int], documents: list[int]
) -> None:
    shard = tokenize(written(tmp_path / "a.txt", text), VOCABULARY)
    found = (shard.ids, shard.sentence_ends, shard.document_ends)
    assert [part.tolist() for part in found] == [ids, sentences, documents]
    assert [part.dtype for part in found] == [np.uint16, np.int64, np.int64]


def test_tokens_do_not_depend_on_blocks_or_on_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.txt", TEXT * 40 + "a")
    shard = tokenize(path, VOCABULARY)
    monkeypatch.setattr(hdf5, "_BLOCK", 5)
    monkeypatch.setitem(sys.modules, "nanotoken", None)
    plain = Vocabulary(VOCABULARY.pieces, lower_case=True)
    assert plain.tokenizer.package == "tokenizers"
    tokenizer_of.cache_clear()
    other = tokenize(path, plain)
    tokenizer_of.cache_clear()
    for name in ("ids", "sentence_ends", "document_ends"):
        assert np.array_equal(getattr(other, name), getattr(shard, name))


def test_text_that_is_gone_or_not_utf_8_is_named(tmp_path: Path) -> None:
    with refused("path-missing", tmp_path / "a.txt"):
        tokenize(tmp_path / "a.txt", VOCABULARY)
    (tmp_path / "a.txt").write_bytes(b"a \xff\n")
    with refused("file-encoding", tmp_path / "a.txt"):
        tokenize(tmp_path / "a.txt", VOCABULARY)


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


def test_a_stage_is_complete_and_counts_what_it_made(texts: list[Path], tmp_path: Path) -> None:
    finished = make(texts, tmp_path)
    assert [path.name for path in finished.files] == NAMES
    shards = [read_shard(path) for path in finished.files]
    assert len({shard.input_ids.tobytes() for shard in shards}) == 4
    tokens = [tokenize(path, VOCABULARY).ids for path in texts]
    assert finished.counts.numbers == {
        "training instances": sum(map(len, shards[:3])),
        "test instances": len(shards[3]),
        "tokens in instances": sum(int(shard.input_mask.sum()) for shard in shards),
        "tokens": sum(map(len, tokens)),
        "unknown tokens": sum(int((ids == 1).sum()) for ids in tokens),
        "shards tokenized with nanotoken": 4,
    }
