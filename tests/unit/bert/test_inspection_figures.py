"""The figures and samples that `inspect` shows are those of the rows."""

from pathlib import Path

import numpy as np
import pytest
from support import pretraining_shards as shards
from test_inspection import FIRST, look
from test_inspection_rows import length_of, switch_of

from bert.tasks.pretrain.inspecting.figures import confidence, row_hashes, spread


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shards.write_folder(tmp_path / "small")


def test_figures_are_those_of_a_plain_count(folder: Path) -> None:
    training = look(folder).splits[0]
    parts = [shards.instances(40, 0), shards.instances(30, 1)]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in shards.TYPES}
    masked = shown = same = first = second = unknown = pieces = 0
    for row in range(70):
        length, switch = length_of(arrays, row), switch_of(arrays, row)
        first, second, pieces = first + switch - 2, second + length - switch - 1, pieces + length - 3
        ids = arrays["input_ids"][row].tolist()
        for place, label in zip(arrays["masked_lm_positions"][row], arrays["masked_lm_ids"][row], strict=True):
            if place:
                masked += 1
                shown += ids[place] == shards.MASK
                same += ids[place] == label
                ids[place] = label
        unknown += ids.count(shards.UNK)
    real = int(arrays["input_mask"].sum())
    assert (training.shards, training.instances, training.real_tokens, training.masked) == (2, 70, real, masked)
    assert training.padding_efficiency == pytest.approx(real / (70 * shards.SEQ_LEN))
    assert training.mask_rate == pytest.approx(masked / real)
    assert training.mask_rate_of_pieces == pytest.approx(masked / pieces)
    assert training.shown_mask is not None and training.shown_mask.count == shown
    assert training.shown_same is not None and training.shown_same.count == same
    assert training.shown_random is not None and training.shown_random.count == masked - shown - same
    assert (training.mean_first, training.mean_second) == pytest.approx((first / 70, second / 70))
    assert training.random_second.count == int(arrays["next_sentence_labels"].sum())
    assert training.unknown_share == pytest.approx(unknown / pieces)
    assert sum(training.lengths) == 70 and training.short == 70 - training.lengths[-1]
    assert training.file_bytes == sum(path.stat().st_size for path in folder.glob("*training*"))
    assert sum(count for _, count in training.frequent) <= pieces and len(training.frequent) == 10


def test_repeated_instances_and_test_instances_in_training_are_counted(folder: Path) -> None:
    arrays = shards.instances(40, 0)
    for values in arrays.values():
        values[10:15] = values[5]
    shards.write(folder / FIRST, arrays, {"bertbench_settings": "one"})
    shards.write(folder / "small_test_0.hdf5", {k: v[:20] for k, v in arrays.items()}, {"bertbench_settings": "one"})
    found = look(folder)
    assert found.splits[0].duplicates == 5 and found.splits[1].duplicates == 5 and found.test_in_training == 20
    assert any("training instances, too" in note for note in found.notes)


def test_masks_that_chance_does_not_give_are_noted_and_no_failure(folder: Path) -> None:
    arrays = shards.instances(400, 0)
    for row in range(400):
        places = arrays["masked_lm_positions"][row]
        arrays["input_ids"][row, places[places > 0]] = shards.MASK
    shards.write(folder / FIRST, arrays, {"bertbench_settings": "one"})
    shards.write_beside(folder, {FIRST: 400, "small_training_1.hdf5": 30, "small_test_0.hdf5": 20})
    found = look(folder)
    assert found.passed and any("show [MASK]; 81% is meant" in note or "80% is meant" in note for note in found.notes)


def test_samples_are_chosen_by_the_seed_and_show_what_is_hidden(folder: Path) -> None:
    arrays = {name: values[:1] for name, values in shards.instances(2, 0).items()}
    ids = [shards.CLS, 10, 65, 66, shards.SEP, 12, 13, 14, shards.SEP]
    arrays["input_ids"][0] = [*ids, *([0] * (shards.SEQ_LEN - len(ids)))]
    arrays["input_mask"][0] = arrays["input_ids"][0] > 0
    arrays["segment_ids"][0] = [0] * 5 + [1] * 4 + [0] * (shards.SEQ_LEN - 9)
    arrays["input_ids"][0, 5:7] = [shards.MASK, 20]
    arrays["masked_lm_positions"][0], arrays["masked_lm_ids"][0] = [5, 6, 7], [12, 65, 14]
    arrays["next_sentence_labels"][0] = 1
    for path in folder.glob("*.hdf5"):
        path.unlink()
    shards.write(folder / FIRST, arrays)
    (sample,) = look(folder).samples
    assert (sample.first, sample.second) == ("w5ing [bold]", "[MASK:w7][w15:##ing] [w9:w9]")
    assert (sample.shard, sample.row, sample.tokens, sample.masked, sample.label) == (FIRST, 0, 9, 3, 1)


def test_the_same_seed_shows_the_same_samples(folder: Path) -> None:
    chosen = [look(folder, seed=seed, samples=5).samples for seed in (1, 1, 2)]
    assert chosen[0] == chosen[1] != chosen[2] and len(set(chosen[0])) == 5
    assert len(look(folder, samples=1000).samples) == 90 and not look(folder, samples=0).samples


def test_hashes_tell_rows_apart() -> None:
    rows = np.arange(60_000, dtype=np.int32).reshape(20_000, 3)
    labels = np.zeros(20_000, np.int8)
    assert len(np.unique(row_hashes([rows, labels]))) == 20_000
    assert (row_hashes([rows[:, ::-1], labels]) != row_hashes([rows, labels])).all()


def test_duplicates_of_more_instances_than_hashes_are_kept_of_are_unknown(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bert.tasks.pretrain.inspecting.figures.MOST_HASHES", 40)
    found = look(folder)
    assert [split.duplicates for split in found.splits] == [None, 0] and found.test_in_training is None


def test_intervals_are_those_of_the_binomial_distribution() -> None:
    scipy = pytest.importorskip("scipy.stats")
    bounds = spread(0.1, 20_000)
    assert bounds == pytest.approx([v / 20_000 for v in scipy.binom.interval(0.999, 20_000, 0.1)], abs=2e-4)
    assert confidence(8, 20) == pytest.approx(scipy.binomtest(8, 20).proportion_ci(method="wilson"), abs=1e-4)
    assert spread(0.5, 0) is None and confidence(0, 0) is None
