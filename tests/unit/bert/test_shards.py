"""Shards as files: their bytes, the reader and what it refuses, the tokens of sentence text."""

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
from support.pretraining_shards import overwrite, write_shard
from support.refusals import refused
from test_loader import PREDICTIONS, SEQ_LEN, instances

from bert.data.vocabulary import SPECIAL_PIECES, Vocabulary
from bert.tasks.pretrain import hdf5
from bert.tasks.pretrain.hdf5 import tokenize, write_blocks
from bert.tasks.pretrain.instances import Instances
from bert.tasks.pretrain.shards import ShardHeader, check_shard, read_shard
from common.errors import Code

COLUMNS = [field.name for field in dataclasses.fields(Instances)]
VOCABULARY = Vocabulary((*SPECIAL_PIECES, "the", "un", "##able", ",", "a"), lower_case=True)
TEXT = "the a\nUnable, zz\n\n\n\u200b\n\na\nthe\n\n"


def same(first: Instances, second: Instances) -> bool:
    return all((getattr(first, name) == getattr(second, name)).all() for name in COLUMNS)


def blocks_of(made: Instances, size: int) -> Iterator[Instances]:
    for begin in range(0, len(made), size):
        yield Instances(*(getattr(made, name)[begin : begin + size] for name in COLUMNS))


@pytest.mark.parametrize("samples", [1, 1024, 5000])
def test_what_is_written_in_blocks_is_read_again(tmp_path: Path, samples: int) -> None:
    made, path = instances(samples, first_id=80_000), tmp_path / "a.hdf5"
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


def damage(path: Path, how: str) -> None:
    if how == "truncated":
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * 0.9)])
        return
    if how == "overwritten":
        overwrite(path)
        return
    column = {"values": "masked_lm_positions", "mask": "input_mask"}.get(how, "segment_ids")
    with h5py.File(path, "r+") as file:
        data = file[column][:]
        del file[column]
        if how == "values":
            data[0, 0] = SEQ_LEN
        elif how == "mask":
            data[3, :3] = 0
        if how != "missing":
            changes = {"type": data.astype("f4"), "width": data[:, :-1]}
            file[column] = changes.get(how, data)


@pytest.mark.parametrize(
    ("how", "code", "facts"),
    [
        ("truncated", "file-truncated", ()),
        ("overwritten", "file-damaged", ()),
        ("missing", "columns-missing", ("segment_ids",)),
        ("type", "file-damaged", ("segment_ids", "float32")),
        ("width", "file-damaged", ("segment_ids", "[3000, 11]")),
        ("values", "rows-invalid", ("masked_lm_positions", "0 to 12", "0 to 11")),
        ("mask", "rows-invalid", ("input_mask",)),
    ],
)
def test_a_damaged_shard_is_named_with_its_fault(tmp_path: Path, how: str, code: Code, facts: tuple[str, ...]) -> None:
    path = tmp_path / "a.hdf5"
    write_shard(path, instances(3000))
    damage(path, how)
    with refused(code, path, *facts):
        read_shard(path)


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


def test_tokens_do_not_depend_on_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.txt", TEXT * 40 + "a")
    shard = tokenize(path, VOCABULARY)
    monkeypatch.setattr(hdf5, "_BLOCK", 5)
    other = tokenize(path, VOCABULARY)
    for name in ("ids", "sentence_ends", "document_ends"):
        assert np.array_equal(getattr(other, name), getattr(shard, name))
