"""Batches from a folder of shards: ranks, epochs, positions, reading ahead; evaluation of each test sample."""

import itertools
import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support import pretraining_shards, training_runs
from support.examples import examples
from support.pretraining_shards import write_shard

from bert.data.batch import Batch
from bert.data.batches import DataSpec
from bert.model.config import model_config
from bert.model.heads import BertForPretraining
from bert.optim.precision import Precision
from bert.parallel.base import SingleStrategy
from bert.tasks.base import Evaluation
from bert.tasks.pretrain import batches as pieces
from bert.tasks.pretrain.batches import Hdf5Batches, TestShards, to_batch
from bert.tasks.pretrain.instances import Instances
from bert.tasks.pretrain.shards import read_shard
from bert.train.base_run import evaluate

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


TEST_SAMPLES = 20


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return training_runs.shards(tmp_path / "data")


@pytest.fixture
def model() -> BertForPretraining:
    torch.manual_seed(0)
    return BertForPretraining(model_config(training_runs.settings("synthetic")))


def measured(model: BertForPretraining, data: Path, samples: int = 0, micro_batch_size: int = 3) -> Evaluation:
    shards = TestShards(spec(data, seq_len=32, micro_batch_size=micro_batch_size), samples)
    return evaluate(model, shards, SingleStrategy(), Precision("fp32", "cpu"))


def test_losses_are_means_over_all_positions_and_samples(data: Path, model: BertForPretraining) -> None:
    found = measured(model, data)
    instances = read_shard(data / "small_test_0.hdf5")
    batch = to_batch([(instances, np.arange(len(instances)))])
    tensors = batch.tensors
    model.eval()
    with torch.no_grad():
        encoded = model.encoder(tensors["input_ids"], tensors["attention_mask"], tensors["token_type_ids"])
        hidden = encoded.hidden.flatten(0, 1)[tensors["masked_positions"]]
        words = model.masked_words(hidden, model.encoder.embeddings.word.weight)
        sentences = model.next_sentence(encoded.pooled)
    labels, nexts = tensors["masked_labels"], tensors["next_sentence_labels"]
    assert found.samples == TEST_SAMPLES and found.counts["predicted_positions"] == len(labels)
    assert found.values["mlm_loss"] == pytest.approx(float(F.cross_entropy(words, labels)), rel=1e-5)
    assert found.values["nsp_loss"] == pytest.approx(float(F.cross_entropy(sentences, nexts)), rel=1e-5)
    assert found.values["mlm_accuracy"] == pytest.approx(float((words.argmax(1) == labels).float().mean()))
    assert found.values["nsp_accuracy"] == pytest.approx(float((sentences.argmax(1) == nexts).float().mean()))


@pytest.mark.parametrize("world_size", [1, 2, 7, 30])
def test_ranks_see_every_sample_once(data: Path, world_size: int) -> None:
    shards = [TestShards(spec(data, seq_len=32, rank=rank, world_size=world_size)) for rank in range(world_size)]
    seen = [row for one in shards for batch in one.batches() for row in batch.tensors["input_ids"].tolist()]
    ids = read_shard(data / "small_test_0.hdf5").input_ids
    assert sorted(row[: int(np.count_nonzero(row))] for row in seen) == sorted(row[row > 0].tolist() for row in ids)


def test_some_samples_are_spread_evenly_and_no_more_than_there_are(data: Path, model: BertForPretraining) -> None:
    assert measured(model, data, samples=7).samples == 7
    assert measured(model, data, samples=1000).samples == TEST_SAMPLES
    rows = [row for _, rows in TestShards(spec(data, seq_len=32), 5)._chunks for row in rows]
    assert rows == [0, 4, 8, 12, 16]


def test_nothing_is_drawn_and_the_mode_stays(data: Path, model: BertForPretraining) -> None:
    model.train()
    before = torch.get_rng_state()
    measured(model, data)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training and all(part.training for part in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
