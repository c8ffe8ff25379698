"""Synthetic data: lengths against distributions and real questions, and what samples are like."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from support.datasets import SQUAD_TOKENS, squad_splits
from support.refusals import refused

from bert.data.batch import Batch
from bert.data.batches import DataSpec
from bert.data.synthetic import DISTRIBUTIONS, SHORTEST, check_distribution, squad, squad_windows
from bert.tasks.pretrain.batches import SyntheticBatches
from bert.tasks.squad.features import open_features
from bert.tasks.squad.task import SquadTask


def spec(**changes: object) -> DataSpec:
    return DataSpec(**{"data": "synthetic", "seq_len": 128, "micro_batch_size": 8, **changes})  # type: ignore[arg-type]


def take(count: int, **changes: object) -> list[Batch]:
    return list(itertools.islice(SyntheticBatches(spec(**changes)), count))


def windows(count: int, **changes: object) -> list[Batch]:
    return list(itertools.islice(SquadTask().batches(spec(**{"seq_len": 384, **changes})), count))


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


def moments(histogram: np.ndarray) -> tuple[float, float]:
    """Mean and root mean square of the lengths."""
    share, length = histogram / histogram.sum(), np.arange(len(histogram))
    return float((share * length).sum()), float(np.sqrt((share * length**2).sum()))


def test_windows_of_384_tokens_have_the_figures_of_the_dev_set() -> None:
    counted = squad_windows(384)
    mean, root = moments(counted)
    assert counted.sum() / 10_000 == pytest.approx(10_833 / 10_570, rel=0.002)
    assert mean == pytest.approx(178.494, rel=0.005) and root == pytest.approx(191.191, rel=0.005)
    assert counted[384] / counted.sum() == pytest.approx(0.0244, abs=0.002)
    drawn = squad(np.random.default_rng(0), 40_000, 384)
    assert drawn.mean() == pytest.approx(mean, abs=5 * drawn.std() / 200)
    assert drawn.min() >= SHORTEST and drawn.max() == 384


@pytest.mark.parametrize("source", ["synthetic", "synthetic:squad", "synthetic:uniform", "synthetic:full"])
@pytest.mark.parametrize("padding", ["longest", "fixed"])
def test_made_up_windows_look_like_real_ones(source: str, padding: str) -> None:
    for batch in windows(4, data=source, padding=padding):
        tensors, counts = batch.tensors, batch.counts
        rows, columns = tensors["input_ids"].shape
        lengths = tensors["attention_mask"].sum(dim=1)
        assert columns == (384 if padding == "fixed" else min(384, -(-int(lengths.max()) // 8) * 8))
        assert (counts.samples, counts.padded_tokens, counts.predicted_positions) == (rows, rows * columns, 0)
        assert counts.real_tokens == int(lengths.sum()) and counts.squared_lengths == int((lengths**2).sum())
        assert (tensors["input_ids"][:, 0] == 101).all() and ((tensors["input_ids"] == 102).sum(dim=1) == 2).all()
        for row, length in enumerate(lengths.tolist()):
            ids, segments = tensors["input_ids"][row], tensors["token_type_ids"][row]
            question = ids.tolist().index(102) + 1
            assert segments.tolist() == [0] * question + [1] * (length - question) + [0] * (columns - length)
            assert question <= tensors["start_positions"][row] <= tensors["end_positions"][row] < length - 1
            assert (ids[length:] == 0).all() and ids[length - 1] == 102


@pytest.mark.parametrize("rank", [0, 1])
def test_batch_by_batch_the_lengths_are_those_of_a_features_file_or_of_the_folder_it_is_in(
    rank: int, tmp_path: Path
) -> None:
    path = squad_splits(tmp_path, times=9)["training"]
    vocab_size = open_features(path, "training").settings.vocab_size
    same = {"seq_len": SQUAD_TOKENS, "micro_batch_size": 4, "vocab_size": vocab_size, "rank": rank, "world_size": 2}
    real = list(itertools.islice(SquadTask().batches(spec(data=str(path), **same)), 20))
    for source in (path, path.parent):
        made_up = windows(20, data=f"synthetic:{source}", **same)
        assert [batch.counts for batch in made_up] == [batch.counts for batch in real]
        assert not torch.equal(made_up[0].tensors["input_ids"], real[0].tensors["input_ids"])
