"""Shards as files and in folders: their bytes, what is refused, which belong together, lengths drawn from them."""

import dataclasses
import hashlib
import itertools
import json
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from support.pretraining_shards import write_shard
from support.refusals import refused
from test_loader import PREDICTIONS, SEQ_LEN, instances, make_folder, spec

from bert.data.batch import Batch
from bert.data.synthetic import is_synthetic, lengths_folder
from bert.data.vocabulary import SPECIAL_PIECES, Vocabulary
from bert.tasks.pretrain import hdf5
from bert.tasks.pretrain import shards as module
from bert.tasks.pretrain.batches import Hdf5Batches, SyntheticBatches
from bert.tasks.pretrain.hdf5 import tokenize, write_blocks
from bert.tasks.pretrain.instances import Instances
from bert.tasks.pretrain.shards import ShardHeader, check_shard, folder_info, folder_lengths, read_shard
from bert.tasks.pretrain.task import PretrainTask
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


def overwrite(path: Path) -> None:
    """Overwrite bytes of the first chunk of ids."""
    with h5py.File(path) as file:
        chunk = file["input_ids"].id.get_chunk_info(0)
    with path.open("r+b") as plain:
        plain.seek(chunk.byte_offset + 20)
        plain.write(b"\x55" * (chunk.size // 2))


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


NAME = "hdf5_lower_case_1_seq_len_{}_max_pred_3_masked_lm_prob_0.15_random_seed_1_dupe_factor_1"


def test_shards_are_found_at_any_depth_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    inner = make_folder(tmp_path / NAME.format(SEQ_LEN) / "d", [2] * 11)
    write_shard(inner / "d_test_0.hdf5", instances(5))
    (inner / ".d_training_3.hdf5.x.tmp").write_bytes(b"half")
    for folder in (tmp_path, inner.parent, inner):
        info = folder_info(folder)
        assert [path.name for path in info.paths] == [f"d_training_{number}.hdf5" for number in range(11)]
        assert (info.path, info.samples, info.seq_len, info.max_predictions) == (inner, 22, SEQ_LEN, PREDICTIONS)
        assert info.vocab_size is None
    assert [path.name for path in folder_info(tmp_path, "test").paths] == ["d_test_0.hdf5"]


def test_several_lengths_need_a_choice(tmp_path: Path) -> None:
    short = make_folder(tmp_path / NAME.format(SEQ_LEN) / "d", [4])
    long = make_folder(tmp_path / NAME.format(20) / "d", [4], seq_len=20)
    with refused("data-ambiguous", tmp_path, "2 preparations", short.parent, long.parent, "seq_len 20"):
        folder_info(tmp_path)
    assert folder_info(tmp_path, seq_len=20).path == long
    assert Hdf5Batches(spec(tmp_path)).info.path == short
    with refused("data-mismatch", tmp_path, "seq_len 64", "seq_len 20"):
        folder_info(tmp_path, seq_len=64)


def test_shards_that_do_not_fit_each_other_or_the_model_are_refused(tmp_path: Path) -> None:
    make_folder(tmp_path / "a", [4])
    with refused("data-mismatch", "12 tokens", "--seq-len 12"):
        Hdf5Batches(spec(tmp_path, seq_len=128))
    with refused("vocabulary-mismatch", "d_training_0.hdf5", "word piece", "50:"):
        next(iter(Hdf5Batches(spec(tmp_path, vocab_size=50))))
    make_folder(tmp_path / "b", [4], seq_len=20)
    with refused("data-mismatch", "seq_len", f"12 in {tmp_path / 'a'}", f"20 in {tmp_path / 'b'}"):
        folder_info(tmp_path)


def test_metadata_gives_the_vocabulary_and_tells_unfinished_preparations(tmp_path: Path) -> None:
    make_folder(tmp_path, [4, 4])
    names = [path.name for path in folder_info(tmp_path).paths]
    metadata = {"schema_version": 1, "vocab_size": 777, "vocab": "v", "shards": [*names, "d_test_0.hdf5"]}
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    info = folder_info(tmp_path)
    assert (info.vocab_size, info.vocabulary) == (777, "v")
    (tmp_path / "metadata.json").write_text(json.dumps({**metadata, "shards": [*names, "d_training_2.hdf5"]}))
    with refused("data-unprepared", "d_training_2.hdf5", "bertbench data pretrain"):
        folder_info(tmp_path)
    (tmp_path / "metadata.json").write_text('{"vocab_size": 777}')
    with refused("record-foreign", tmp_path / "metadata.json"):
        folder_info(tmp_path)


def test_folders_without_shards_say_what_to_do(tmp_path: Path) -> None:
    for folder, code in ((tmp_path / "none", "path-missing"), (tmp_path, "data-missing")):
        with refused(code, folder):
            folder_info(folder)


def made_up(folder: Path, count: int, **changes: object) -> list[Batch]:
    stream = PretrainTask().batches(spec(folder, **{"data": f"synthetic:{folder}", **changes}))
    return [*itertools.islice(stream, count)]


def test_names_of_distributions_and_folders_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lengths_folder("synthetic") is None and lengths_folder("synthetic:full") is None
    assert lengths_folder(str(tmp_path)) is None and not is_synthetic(str(tmp_path))
    assert lengths_folder(f"synthetic:{tmp_path}") == tmp_path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    assert lengths_folder("synthetic:full") is None
    with refused("option-choice", "banana"):
        SyntheticBatches(spec(tmp_path, data="synthetic:banana"))
    with refused("path-missing", tmp_path / "none"):
        SyntheticBatches(spec(tmp_path, data=f"synthetic:{tmp_path}/none"))


def test_made_up_lengths_follow_the_folder_over_all_ranks(tmp_path: Path) -> None:
    info = folder_info(make_folder(tmp_path, [500]))
    real = np.sort(read_shard(info.paths[0]).input_mask.sum(axis=1, dtype=int))
    drawn = [
        int(length)
        for rank in range(2)
        for batch in made_up(tmp_path, 256, micro_batch_size=4, rank=rank, world_size=2)
        for length in batch.tensors["attention_mask"].sum(dim=1)
    ]
    quantiles = real[((np.arange(len(drawn)) + 0.5) / len(drawn) * len(real)).astype(int)]
    assert sorted(drawn) == quantiles.tolist()


def test_the_same_folder_gives_the_same_batches_wherever_it_lies(tmp_path: Path) -> None:
    first, second = (make_folder(tmp_path / name, [20, 9]) for name in "ab")
    task = PretrainTask()
    fingerprints = [task.inspect(f"synthetic:{folder}").fingerprint for folder in (first, second)]
    assert fingerprints[0] == fingerprints[1]
    for a, b in zip(made_up(first, 20), made_up(second, 20), strict=True):
        assert a.counts == b.counts and all(a.tensors[name].equal(b.tensors[name]) for name in a.tensors)
    other = task.inspect(f"synthetic:{make_folder(tmp_path / 'c', [20])}")
    assert other.fingerprint != fingerprints[0]


def test_of_a_large_folder_shards_spread_over_it_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = folder_info(make_folder(tmp_path, [10] * 8))
    monkeypatch.setattr(module, "_MOST_SAMPLES", 20)
    assert int(folder_lengths(info).sum()) == 20
