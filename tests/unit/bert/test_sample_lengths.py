"""Made-up batches with the lengths of a folder's samples: the same bins, the same histogram, on every rank."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from support.refusals import refused
from test_loader import SEQ_LEN, make_folder, spec
from test_loader_bins import BINS, SAMPLES, TOTALS, make_binned

from bert.data.batch import Batch
from bert.data.lengths import is_synthetic, lengths_folder
from bert.data.synthetic import SyntheticBatches
from bert.tasks.pretrain import folder as sample_lengths
from bert.tasks.pretrain.folder import folder_info, folder_lengths
from bert.tasks.pretrain.shards import read_shard
from bert.tasks.pretrain.task import PretrainTask


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


def test_the_histogram_counts_every_sample(tmp_path: Path) -> None:
    info = folder_info(make_folder(tmp_path, [50, 70]))
    real = np.concatenate([read_shard(path).input_mask.sum(axis=1, dtype=int) for path in info.paths])
    found = folder_lengths(info)
    assert found.histogram.tolist() == [np.bincount(real, minlength=SEQ_LEN + 1).tolist()]
    assert found.weights == (120,)


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


def test_made_up_batches_have_the_bins_of_the_folder_and_ranks_the_same_one(tmp_path: Path) -> None:
    folder = make_binned(tmp_path)
    ranks = [made_up(folder, 16, rank=rank, world_size=2) for rank in range(2)]
    widths = [[batch.tensors["input_ids"].shape[1] for batch in batches] for batches in ranks]
    assert widths[0] == widths[1]
    share = [widths[0].count(end) / 16 for end in BINS]
    assert np.allclose(share, np.array(TOTALS) / SAMPLES, atol=1 / 16)
    for batch in itertools.chain(*ranks):
        # The samples of a bin of these shards all have its length.
        assert set(lengths_of(batch)) == {batch.tensors["input_ids"].shape[1]}
    assert ranks[0][0].tensors["input_ids"].tolist() != ranks[1][0].tensors["input_ids"].tolist()


def test_the_same_folder_gives_the_same_batches_wherever_it_lies(tmp_path: Path) -> None:
    first, second = (make_binned(tmp_path / name) for name in "ab")
    assert folder_lengths(folder_info(first)).fingerprint == folder_lengths(folder_info(second)).fingerprint
    for a, b in zip(made_up(first, 20), made_up(second, 20), strict=True):
        assert a.counts == b.counts and all(a.tensors[name].equal(b.tensors[name]) for name in a.tensors)
    other = folder_lengths(folder_info(make_folder(tmp_path / "c", [20])))
    assert other.fingerprint != folder_lengths(folder_info(first)).fingerprint


def test_of_a_large_folder_shards_spread_over_it_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = folder_info(make_folder(tmp_path, [10] * 8))
    monkeypatch.setattr(sample_lengths, "_MOST_SAMPLES", 20)
    found = folder_lengths(info)
    assert int(found.histogram.sum()) == 20 and found.weights == (80,)


def test_another_sequence_length_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path, [4])
    with refused("data-mismatch", "12 tokens", "not 128"):
        SyntheticBatches(spec(tmp_path, data=f"synthetic:{tmp_path}", seq_len=128))
