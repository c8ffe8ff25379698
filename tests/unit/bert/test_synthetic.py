import itertools

import numpy as np
import pytest
import torch
from support.refusals import refused

from bert.data.batch import Batch
from bert.data.batches import DataSpec
from bert.data.synthetic import DISTRIBUTIONS, check_distribution, sample_count
from bert.tasks.pretrain.batches import SyntheticBatches


def spec(**changes: object) -> DataSpec:
    return DataSpec(**{"data": "synthetic", "seq_len": 128, "micro_batch_size": 8, **changes})  # type: ignore[arg-type]


def take(count: int, **changes: object) -> list[Batch]:
    return list(itertools.islice(SyntheticBatches(spec(**changes)), count))


@pytest.mark.parametrize(
    ("name", "seq_len", "mean"),
    [
        ("full", 128, 128.0),
        ("phase1", 128, 0.9 * 128 + 0.1 * 133 / 2),
        ("uniform", 128, 133 / 2),
        ("mean254", 512, 254.0),
    ],
)
def test_a_distribution_has_its_stated_mean_and_range(name: str, seq_len: int, mean: float) -> None:
    lengths = DISTRIBUTIONS[name](np.random.default_rng(0), 40_000, seq_len)
    error = lengths.std() / 200
    assert abs(lengths.mean() - mean) <= 5 * error
    assert lengths.min() >= 5 and lengths.max() == seq_len


@pytest.mark.parametrize("source", ["synthetic", "synthetic:full", "synthetic:uniform"])
def test_counts_tell_what_the_tensors_hold(source: str) -> None:
    for batch in take(4, data=source):
        tensors, counts = batch.tensors, batch.counts
        lengths = tensors["attention_mask"].sum(dim=1)
        assert all(tensor.dtype == torch.int64 for tensor in tensors.values())
        assert (counts.samples, counts.padded_tokens) == (8, 1024)
        assert counts.real_tokens == int(lengths.sum()) and counts.squared_lengths == int((lengths**2).sum())
        assert counts.predicted_positions == len(tensors["masked_positions"]) == len(tensors["masked_labels"])
        assert (tensors["attention_mask"].diff(dim=1) <= 0).all(), "padding is at the end"
        per_row = torch.bincount(tensors["masked_positions"] // 128, minlength=8)
        assert per_row.tolist() == [min(20, max(1, round(0.15 * n))) for n in lengths.tolist()]


def test_sequences_look_like_pretraining_data() -> None:
    (batch,) = take(1, micro_batch_size=64, data="synthetic:uniform")
    ids, mask = batch.tensors["input_ids"], batch.tensors["attention_mask"]
    flat = batch.tensors["masked_positions"]
    assert (ids[:, 0] == 101).all() and ((ids == 102).sum(dim=1) == 2).all()
    assert (ids[mask == 0] == 0).all() and ids.max() < 30522
    shown = ids.reshape(-1)[flat]
    assert 0.7 < (shown == 103).float().mean() < 0.9
    assert mask.reshape(-1)[flat].all() and not torch.isin(shown, torch.tensor([101, 102])).any()
    assert ((batch.tensors["token_type_ids"] == 1) <= (mask == 1)).all() and batch.tensors["token_type_ids"].any()
    assert set(batch.tensors["next_sentence_labels"].tolist()) == {0, 1}


def test_names_that_are_none_are_refused() -> None:
    with refused("option-choice", "'phase'", "'phase1'"):
        check_distribution("synthetic:phase")
    with refused("option-conflict", "mean254", 512):
        SyntheticBatches(spec(data="synthetic:mean254"))
    with refused("option-value", "--seq-len 4"):
        SyntheticBatches(spec(seq_len=4))
    assert check_distribution("synthetic") == "phase1" and check_distribution("synthetic", task="squad") == "squad"


def test_ranks_together_have_the_stated_distribution_and_seeds_differ() -> None:
    ranks = [take(64, rank=rank, world_size=4) for rank in range(4)]
    lengths = torch.cat([batch.tensors["attention_mask"].sum(1) for batches in ranks for batch in batches]).numpy()
    assert len(lengths) == sample_count(128) == 2048
    assert abs(lengths.mean() - (0.9 * 128 + 0.1 * 133 / 2)) <= 5 * lengths.std() / np.sqrt(2048)
    first, again, other = (take(1, seed=seed)[0].tensors["input_ids"] for seed in (1, 1, 2))
    assert first.equal(again) and not first.equal(other)
