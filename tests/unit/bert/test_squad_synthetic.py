"""Made-up windows: their lengths against those of real questions, what they hold, and what they are like."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from support.refusals import refused
from support.squad_windows import VOCAB, squad_windows, write_windows

from bert.data.batch import Batch
from bert.data.batches import DataSpec, padded_length
from bert.data.synthetic import SHORTEST, squad
from bert.data.synthetic import squad_windows as made_up_windows
from bert.tasks.squad.task import SquadTask


def spec(**changes: object) -> DataSpec:
    return DataSpec(**{"data": "synthetic", "seq_len": 384, "micro_batch_size": 8, **changes})  # type: ignore[arg-type]


def take(count: int, **changes: object) -> list[Batch]:
    return list(itertools.islice(SquadTask().batches(spec(**changes)), count))


def moments(histogram: np.ndarray) -> tuple[float, float]:
    """Mean and root mean square of the lengths."""
    share, length = histogram / histogram.sum(), np.arange(len(histogram))
    return float((share * length).sum()), float(np.sqrt((share * length**2).sum()))


def test_windows_of_384_tokens_have_the_figures_of_the_dev_set() -> None:
    windows = made_up_windows(384)
    mean, root = moments(windows)
    assert windows.sum() / 10_000 == pytest.approx(10_833 / 10_570, rel=0.002)
    assert mean == pytest.approx(178.494, rel=0.005) and root == pytest.approx(191.191, rel=0.005)
    assert windows[384] / windows.sum() == pytest.approx(0.0244, abs=0.002)
    drawn = squad(np.random.default_rng(0), 40_000, 384)
    assert drawn.mean() == pytest.approx(mean, abs=5 * drawn.std() / 200)
    assert drawn.min() >= SHORTEST and drawn.max() == 384


@pytest.mark.parametrize("source", ["synthetic", "synthetic:squad", "synthetic:uniform", "synthetic:full"])
@pytest.mark.parametrize("padding", ["longest", "fixed"])
def test_made_up_windows_look_like_real_ones(source: str, padding: str) -> None:
    for batch in take(4, data=source, padding=padding):
        tensors, counts = batch.tensors, batch.counts
        rows, columns = tensors["input_ids"].shape
        lengths = tensors["attention_mask"].sum(dim=1)
        assert columns == padded_length(int(lengths.max()), 384, padding)
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
    path = write_windows(tmp_path, squad_windows(64))
    same = {"seq_len": 64, "micro_batch_size": 4, "vocab_size": VOCAB, "rank": rank, "world_size": 2}
    real = list(itertools.islice(SquadTask().batches(spec(data=str(path), **same)), 20))
    for source in (path, tmp_path):
        made_up = take(20, data=f"synthetic:{source}", **same)
        assert [batch.counts for batch in made_up] == [batch.counts for batch in real]
        assert not torch.equal(made_up[0].tensors["input_ids"], real[0].tensors["input_ids"])
    with refused("data-mismatch", "64 tokens", "not 384", "use 64"):
        take(1, data=f"synthetic:{path}")
