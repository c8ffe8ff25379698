"""Evaluation: exact sums over all test samples, once each, and nothing disturbed."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support import training_runs
from support.pretraining_shards import PIECES

from bert.data.batches import DataSpec
from bert.model.config import model_config
from bert.model.heads import BertForPretraining
from bert.optim.precision import Precision
from bert.parallel.base import SingleStrategy
from bert.tasks.base import Evaluation
from bert.tasks.pretrain.batches import TestShards, to_batch
from bert.tasks.pretrain.shards import read_shard
from bert.train.base_run import evaluate

TEST_SAMPLES = 20


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return training_runs.shards(tmp_path / "data")


@pytest.fixture
def model() -> BertForPretraining:
    torch.manual_seed(0)
    return BertForPretraining(model_config(training_runs.settings("synthetic")))


def spec(data: Path, micro_batch_size: int = 3, rank: int = 0, world_size: int = 1, seq_len: int = 32) -> DataSpec:
    return DataSpec(data=str(data), seq_len=seq_len, micro_batch_size=micro_batch_size, vocab_size=len(PIECES),
                    rank=rank, world_size=world_size)  # fmt: skip


def measured(model: BertForPretraining, data: Path, samples: int = 0, micro_batch_size: int = 3) -> Evaluation:
    shards = TestShards(spec(data, micro_batch_size), samples)
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
    shards = [TestShards(spec(data, rank=rank, world_size=world_size)) for rank in range(world_size)]
    seen = [row for one in shards for batch in one.batches() for row in batch.tensors["input_ids"].tolist()]
    ids = read_shard(data / "small_test_0.hdf5").input_ids
    assert sorted(row[: int(np.count_nonzero(row))] for row in seen) == sorted(row[row > 0].tolist() for row in ids)


def test_some_samples_are_spread_evenly_and_no_more_than_there_are(data: Path, model: BertForPretraining) -> None:
    assert measured(model, data, samples=7).samples == 7
    assert measured(model, data, samples=1000).samples == TEST_SAMPLES
    rows = [row for _, rows in TestShards(spec(data), 5)._chunks for row in rows]
    assert rows == [0, 4, 8, 12, 16]


def test_nothing_is_drawn_and_the_mode_stays(data: Path, model: BertForPretraining) -> None:
    model.train()
    before = torch.get_rng_state()
    measured(model, data)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training and all(part.training for part in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())
