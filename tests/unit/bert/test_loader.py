"""Batches from a folder of shards: ranks, epochs, positions, reading ahead."""

import itertools
import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import pretraining_shards
from support.examples import examples
from support.pretraining_shards import write_shard

from bert.data.batch import Batch
from bert.data.batches import DataSpec
from bert.tasks.pretrain import batches as pieces
from bert.tasks.pretrain.batches import Hdf5Batches
from bert.tasks.pretrain.instances import Instances
from bert.tasks.pretrain.shards import read_shard

SEQ_LEN, PREDICTIONS = 12, 3


def instances(samples: int, first_id: int = 1, seq_len: int = SEQ_LEN) -> Instances:
    """Sample i has the id `first_id + i` in its first column."""
    made = Instances(**pretraining_shards.instances(samples, first_id, seq_len, PREDICTIONS))
    made.input_ids[:, 0] = first_id + np.arange(samples)
    return made


def make_folder(folder: Path, sizes: list[int], seq_len: int = SEQ_LEN) -> Path:
    """Samples are numbered 1, 2, ... over all shards."""
    ends = np.cumsum([1, *sizes])
    for number, size in enumerate(sizes):
        write_shard(folder / f"d_training_{number}.hdf5", instances(size, int(ends[number]), seq_len))
    return folder


def spec(folder: Path, **changes: object) -> DataSpec:
    values = {"data": str(folder), "seq_len": SEQ_LEN, "micro_batch_size": 4, "vocab_size": 1000, **changes}
    return DataSpec(**values)  # type: ignore[arg-type]


def numbers(stream: Hdf5Batches, batches: int) -> list[list[int]]:
    return [batch.tensors["input_ids"][:, 0].tolist() for batch in itertools.islice(stream, batches)]


def test_a_batch_is_what_bert_batch_documents(tmp_path: Path) -> None:
    source = make_folder(tmp_path, [9]) / "d_training_0.hdf5"
    shard = read_shard(source)
    batch = next(iter(Hdf5Batches(spec(tmp_path))))
    rows = [number - 1 for number in batch.tensors["input_ids"][:, 0].tolist()]
    assert {name: str(tensor.dtype) for name, tensor in batch.tensors.items()} == dict.fromkeys(
        ["input_ids", "attention_mask", "token_type_ids", "masked_positions", "masked_labels", "next_sentence_labels"],
        "torch.int64",
    )
    for name, column in (
        ("input_ids", "input_ids"),
        ("attention_mask", "input_mask"),
        ("token_type_ids", "segment_ids"),
        ("next_sentence_labels", "next_sentence_labels"),
    ):
        assert (batch.tensors[name].numpy() == getattr(shard, column)[rows]).all()
    expected = [
        (line * SEQ_LEN + int(position), int(label))
        for line, row in enumerate(rows)
        for position, label in zip(shard.masked_lm_positions[row], shard.masked_lm_ids[row], strict=True)
        if position
    ]
    assert [*zip(batch.tensors["masked_positions"].tolist(), batch.tensors["masked_labels"].tolist(), strict=True)] == (
        expected
    )
    lengths = shard.input_mask[rows].sum(axis=1, dtype=int)
    counts = batch.counts
    assert (counts.samples, counts.padded_tokens, counts.predicted_positions) == (4, 48, len(expected))
    assert (counts.real_tokens, counts.squared_lengths) == (lengths.sum(), (lengths**2).sum())


def test_masked_positions_stop_at_the_first_padding(tmp_path: Path) -> None:
    made = instances(1)
    made.masked_lm_positions[0] = [2, 0, 4]
    made.masked_lm_ids[0] = [7, 8, 9]
    write_shard(tmp_path / "d_training_0.hdf5", made)
    batch = next(iter(Hdf5Batches(spec(tmp_path, micro_batch_size=1))))
    assert batch.tensors["masked_positions"].tolist() == [2] and batch.tensors["masked_labels"].tolist() == [7]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("shards"), [7, 1, 13, 4])


SAMPLES = 25


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 99), st.integers(1, 3))
def test_ranks_are_disjoint_and_each_epoch_is_complete(
    folder: Path, world_size: int, micro: int, seed: int, epochs: int
) -> None:
    steps = -(-SAMPLES * epochs // (world_size * micro))
    ranks = [
        numbers(Hdf5Batches(spec(folder, micro_batch_size=micro, seed=seed, rank=rank, world_size=world_size)), steps)
        for rank in range(world_size)
    ]
    walked = [number for step in range(steps) for rank in ranks for number in rank[step]]
    for epoch in range(epochs):
        assert sorted(walked[epoch * SAMPLES : (epoch + 1) * SAMPLES]) == list(range(1, SAMPLES + 1))
    # The same samples in the same order however many ranks share the work.
    alone = numbers(Hdf5Batches(spec(folder, micro_batch_size=micro * world_size, seed=seed)), steps)
    assert walked == [number for batch in alone for number in batch]


def test_the_next_shard_is_read_before_it_is_needed_and_in_another_thread(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "_KEPT_BYTES", 1)
    readers: list[tuple[str, str]] = []
    original = pieces.read_shard

    def noted(path: Path) -> Instances:
        readers.append((threading.current_thread().name.split("_")[0], path.name))
        return original(path)

    monkeypatch.setattr(pieces, "read_shard", noted)
    stream = iter(Hdf5Batches(spec(folder, micro_batch_size=1)))
    next(stream)
    deadline = time.monotonic() + 20
    while len(readers) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    [*itertools.islice(stream, 2 * SAMPLES - 1)]
    # Each shard once per epoch, or still there where it ends one epoch and begins the next.
    assert {name for name, _ in readers} == {"shards"} and 7 <= len(readers) <= 11


def batches(folder: Path, count: int, **changes: object) -> list[Batch]:
    return [*itertools.islice(Hdf5Batches(spec(folder, **changes)), count)]


def equal(a: Batch, b: Batch) -> bool:
    return a.counts == b.counts and all(a.tensors[name].equal(b.tensors[name]) for name in b.tensors)


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 3), st.integers(1, 8), st.integers(0, 25), st.booleans())
def test_a_saved_position_gives_the_identical_batches(
    folder: Path, world_size: int, micro: int, before: int, large: bool
) -> None:
    values = {"micro_batch_size": micro, "rank": world_size - 1, "world_size": world_size}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "_KEPT_BYTES", 1 if large else 2**20)
        whole = batches(folder, before + 8, **values)
        first = Hdf5Batches(spec(folder, **values))
        assert all(map(equal, itertools.islice(first, before), whole[:before]))
        second = Hdf5Batches(spec(folder, **values))
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert all(map(equal, itertools.islice(second, 8), whole[before:]))
        assert all(map(equal, itertools.islice(first, 8), whole[before:])), "a new iterator goes on, too"
