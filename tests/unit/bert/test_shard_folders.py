"""Shards as files, and the folders they are found in: layout, faults, what belongs together."""

import itertools
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from support.pretraining_shards import overwrite
from support.refusals import refused
from support.shard_files import write_shard
from test_loader import PREDICTIONS, SEQ_LEN, instances, make_folder, spec

from bert.data.batch import Batch
from bert.data.lengths import is_synthetic, lengths_folder
from bert.data.synthetic import SyntheticBatches
from bert.tasks.pretrain import shards as sample_lengths
from bert.tasks.pretrain.batches import Hdf5Batches
from bert.tasks.pretrain.shards import check_shard, find_shards, folder_info, folder_lengths, read_shard
from bert.tasks.pretrain.task import PretrainTask
from common.errors import Code

NAME = "hdf5_lower_case_1_seq_len_{}_max_pred_3_masked_lm_prob_0.15_random_seed_1_dupe_factor_1"

# one shard


def test_overwritten_bytes_are_named_when_the_data_is_read(tmp_path: Path) -> None:
    path = make_folder(tmp_path, [3000]) / "d_training_0.hdf5"
    overwrite(path)
    with refused("file-damaged", path):
        read_shard(path)
    with refused("file-damaged", path):
        next(iter(Hdf5Batches(spec(tmp_path))))


def edited(path: Path, edit: str) -> None:
    with h5py.File(path, "r+") as file:
        if edit == "missing":
            del file["segment_ids"]
            return
        name = {"values": "masked_lm_positions", "mask": "input_mask"}.get(edit, "segment_ids")
        data = file[name][:]
        del file[name]
        if edit == "values":
            data[0, 0] = SEQ_LEN
        elif edit == "mask":
            data[3, :3] = 0
        changed = {
            "type": data.astype("f4"),
            "axes": data[:, 0],
            "rows": data[:-1],
            "width": data[:, :-1],
        }.get(edit, data)
        file[name] = changed


@pytest.mark.parametrize(
    ("edit", "code", "facts"),
    [
        ("missing", "columns-missing", ("segment_ids",)),
        ("type", "file-damaged", ("segment_ids", "float32")),
        ("axes", "file-damaged", ("segment_ids", "[20]")),
        ("rows", "file-damaged", ("segment_ids", "[19, 12]")),
        ("width", "file-damaged", ("segment_ids", "[20, 11]")),
        ("values", "rows-invalid", ("masked_lm_positions", "0 to 12", "0 to 11")),
        ("mask", "rows-invalid", ("input_mask", "instance 3")),
    ],
)
def test_a_malformed_shard_is_named_with_its_fault(
    tmp_path: Path, edit: str, code: Code, facts: tuple[object, ...]
) -> None:
    path = make_folder(tmp_path, [20]) / "d_training_0.hdf5"
    edited(path, edit)
    with refused(code, path, *facts):
        read_shard(path)


def test_a_shard_without_instances_is_not_read(tmp_path: Path) -> None:
    path = make_folder(tmp_path, [20]) / "d_training_0.hdf5"
    with h5py.File(path, "r+") as file:
        for name in list(file):
            data = file[name][:0]
            del file[name]
            file[name] = data
    with refused("file-damaged", path):
        check_shard(path)


# folders


def test_shards_are_found_at_any_depth_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    inner = make_folder(tmp_path / NAME.format(SEQ_LEN) / "d", [2] * 11)
    write_shard(inner / "d_test_0.hdf5", instances(5))
    (inner / ".d_training_3.hdf5.x.tmp").write_bytes(b"half")
    for folder in (tmp_path, inner.parent, inner):
        paths = find_shards(folder)
        assert [path.name for path in paths] == [f"d_training_{number}.hdf5" for number in range(11)]
        info = folder_info(folder)
        assert (info.path, info.samples, info.seq_len, info.max_predictions) == (inner, 22, SEQ_LEN, PREDICTIONS)
        assert info.vocab_size is None
    assert [path.name for path in find_shards(tmp_path, "test")] == ["d_test_0.hdf5"]


def test_several_lengths_need_a_choice(tmp_path: Path) -> None:
    short = make_folder(tmp_path / NAME.format(SEQ_LEN) / "d", [4])
    long = make_folder(tmp_path / NAME.format(20) / "d", [4], seq_len=20)
    with refused("data-ambiguous", tmp_path, "2 preparations", short.parent, long.parent, "seq_len 20"):
        folder_info(tmp_path)
    assert folder_info(tmp_path, seq_len=20).path == long
    assert Hdf5Batches(spec(tmp_path)).info.path == short
    with refused("data-mismatch", tmp_path, "seq_len 64", "seq_len 20"):
        folder_info(tmp_path, seq_len=64)


def test_shards_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    make_folder(tmp_path / "a", [4])
    make_folder(tmp_path / "b", [4], seq_len=20)
    with refused("data-mismatch", "seq_len", f"12 in {tmp_path / 'a'}", f"20 in {tmp_path / 'b'}"):
        folder_info(tmp_path)


def test_the_wrong_length_or_vocabulary_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path, [4])
    with refused("data-mismatch", "12 tokens", "--seq-len 128"):
        Hdf5Batches(spec(tmp_path, seq_len=128))
    with refused("vocabulary-mismatch", "d_training_0.hdf5", "word piece", "50:"):
        next(iter(Hdf5Batches(spec(tmp_path, vocab_size=50))))


def test_metadata_gives_the_vocabulary_size_and_tells_unfinished_preparations(tmp_path: Path) -> None:
    make_folder(tmp_path, [4, 4])
    names = [path.name for path in find_shards(tmp_path)]
    metadata = {"schema_version": 1, "vocab_size": 777, "shards": [*names, "d_test_0.hdf5"]}
    (tmp_path / "metadata.json").write_text(json.dumps(metadata))
    assert folder_info(tmp_path).vocab_size == 777
    (tmp_path / "metadata.json").write_text(json.dumps({**metadata, "shards": [*names, "d_training_2.hdf5"]}))
    with refused("data-unprepared", "d_training_2.hdf5", "bertbench data pretrain"):
        folder_info(tmp_path)
    for damaged, code in (("{", "file-damaged"), ('{"vocab_size": 777}', "record-foreign")):
        (tmp_path / "metadata.json").write_text(damaged)
        with refused(code, tmp_path / "metadata.json"):  # type: ignore[arg-type]
            folder_info(tmp_path)


def test_folders_without_shards_say_what_to_do(tmp_path: Path) -> None:
    with refused("path-missing", tmp_path / "none"):
        find_shards(tmp_path / "none")
    with refused("data-missing", tmp_path, "data pretrain"):
        find_shards(tmp_path)
    (tmp_path / "a.txt").write_text("Text.")
    with refused("data-unprepared", tmp_path, "data pretrain --input"):
        find_shards(tmp_path)
    with refused("path-kind", tmp_path / "a.txt"):
        find_shards(tmp_path / "a.txt")


def test_the_fingerprint_follows_the_content_not_the_place(tmp_path: Path) -> None:
    first = folder_info(make_folder(tmp_path / "a", [4, 5])).fingerprint
    assert folder_info(make_folder(tmp_path / "b", [4, 5])).fingerprint == first
    assert folder_info(make_folder(tmp_path / "c", [5, 4])).fingerprint != first


def made_up(folder: Path, count: int, **changes: object) -> list[Batch]:
    stream = PretrainTask().batches(spec(folder, **{"data": f"synthetic:{folder}", **changes}))
    return [*itertools.islice(stream, count)]


def lengths_of(batch: Batch) -> list[int]:
    return [int(length) for length in batch.tensors["attention_mask"].sum(dim=1)]


def test_names_of_distributions_and_folders_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lengths_folder("synthetic") is None and lengths_folder("synthetic:full") is None
    assert lengths_folder(str(tmp_path)) is None and not is_synthetic(str(tmp_path))
    assert lengths_folder(f"synthetic:{tmp_path}") == tmp_path
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shards").mkdir()
    (tmp_path / "full").mkdir()
    assert lengths_folder("synthetic:shards") == Path("shards") and lengths_folder("synthetic:full") is None
    with refused("option-choice", "banana"):
        SyntheticBatches(spec(tmp_path, data="synthetic:banana"))
    with refused("path-missing", tmp_path / "none"):
        SyntheticBatches(spec(tmp_path, data=f"synthetic:{tmp_path}/none"))


def test_made_up_lengths_follow_the_folder_over_all_ranks(tmp_path: Path) -> None:
    info = folder_info(make_folder(tmp_path, [500]))
    real = np.sort(read_shard(info.paths[0]).input_mask.sum(axis=1, dtype=int))
    drawn = [
        length
        for rank in range(2)
        for batch in made_up(tmp_path, 16, micro_batch_size=4, rank=rank, world_size=2)
        for length in lengths_of(batch)
    ]
    quantiles = real[((np.arange(len(drawn)) + 0.5) / len(drawn) * len(real)).astype(int)]
    assert sorted(drawn) == quantiles.tolist()


def test_the_same_folder_gives_the_same_batches_wherever_it_lies(tmp_path: Path) -> None:
    first, second = (make_folder(tmp_path / name, [20, 9]) for name in "ab")
    assert folder_lengths(folder_info(first)).fingerprint == folder_lengths(folder_info(second)).fingerprint
    for a, b in zip(made_up(first, 20), made_up(second, 20), strict=True):
        assert a.counts == b.counts and all(a.tensors[name].equal(b.tensors[name]) for name in a.tensors)
    other = folder_lengths(folder_info(make_folder(tmp_path / "c", [20])))
    assert other.fingerprint != folder_lengths(folder_info(first)).fingerprint


def test_of_a_large_folder_shards_spread_over_it_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = folder_info(make_folder(tmp_path, [10] * 8))
    monkeypatch.setattr(sample_lengths, "_MOST_SAMPLES", 20)
    found = folder_lengths(info)
    assert int(found.histogram.sum()) == 20 and found.samples == 80


def test_another_sequence_length_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path, [4])
    with refused("data-mismatch", "12 tokens", "not 128"):
        SyntheticBatches(spec(tmp_path, data=f"synthetic:{tmp_path}", seq_len=128))
