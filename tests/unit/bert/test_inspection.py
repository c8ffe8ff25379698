"""`inspect` passes what the format says, and names what breaks it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from support import pretraining_shards as shards
from support.refusals import refused
from support.shared_files import DATA

from bert.data.pool import Workers
from bert.tasks.pretrain.folder import read_blocks, shard_groups
from bert.tasks.pretrain.inspecting.figures import confidence, row_hashes, spread
from bert.tasks.pretrain.inspecting.inspection import CHECKS, Inspection, inspect
from common.errors import Code

FIRST = "small_training_0.hdf5"


def look(folder: Path, **options: Any) -> Inspection:
    with Workers(1) as workers:
        (found,) = inspect(folder, workers, **options)
    return found


def statuses(found: Inspection) -> dict[str, str]:
    return {check.name: check.status for check in found.checks}


def failed(found: Inspection) -> dict[str, tuple[int, str | None]]:
    return {check.name: (check.violations, check.first) for check in found.checks if check.status == "failed"}


def change(path: Path, edit: Callable[[h5py.File], None]) -> None:
    with h5py.File(path, "r+") as file:
        edit(file)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shards.write_folder(tmp_path / "small")


def test_a_valid_folder_passes_every_check_but_those_of_bins(folder: Path) -> None:
    found = look(folder)
    assert found.passed
    skipped = {name for name, status in statuses(found).items() if status == "skipped"}
    assert skipped == {"bins_add_up", "bins_hold_their_lengths"} and not failed(found)
    assert list(statuses(found)) == list(CHECKS)


def _binned(folder: Path, lengths: list[int], counts: list[int] | None = None) -> None:
    arrays = shards.instances(40, 0)
    real = arrays["input_mask"].sum(axis=1)
    order = np.argsort(real, kind="stable")
    arrays = {name: values[order] for name, values in arrays.items()}
    upper = np.searchsorted(np.sort(real), np.asarray(lengths), side="right")
    found = np.diff(upper, prepend=0) if counts is None else counts
    attributes = {
        "bertbench_settings": "one",
        "bertbench_bin_lengths": np.array(lengths, np.int32),
        "bertbench_bin_counts": np.array(found, np.int64),
    }
    shards.write(folder / FIRST, arrays, attributes)


def test_bins_must_hold_the_lengths_they_say(folder: Path) -> None:
    _binned(folder, [8, 16, 24])
    found = look(folder)
    assert found.passed and statuses(found)["bins_hold_their_lengths"] == "passed" and found.splits[0].bins == 3
    _binned(folder, [8, 16, 24], [0, 40, 0])
    assert list(failed(look(folder))) == ["bins_hold_their_lengths"]
    for lengths, counts in (
        ([8, 16, 24], [1, 2, 3]),
        ([8, 16], [20, 20]),
        ([16, 8, 24], [20, 10, 10]),
        ([24], [20, 20]),
        ([], []),
    ):
        _binned(folder, lengths, counts)
        assert list(failed(look(folder))) == ["bins_add_up"]


def _drop(name: str) -> Callable[[h5py.File], None]:
    return lambda file: file.__delitem__(name)


def _as(name: str, dtype: str) -> Callable[[h5py.File], None]:
    def edit(file: h5py.File) -> None:
        values = file[name][:].astype(dtype)
        del file[name]
        file[name] = values

    return edit


def _cut(name: str, rows: int | None = None, columns: int | None = None) -> Callable[[h5py.File], None]:
    def edit(file: h5py.File) -> None:
        values = file[name][:][:rows] if columns is None else file[name][:][:, :columns]
        del file[name]
        file[name] = values

    return edit


@pytest.mark.parametrize(
    ("edit", "check", "said"),
    [
        (_drop("segment_ids"), "datasets", "lacks segment_ids"),
        (_as("input_ids", "int64"), "dtypes", "input_ids is int64, not int32"),
        (_as("input_mask", "uint8"), "dtypes", "input_mask is uint8, not int8"),
        (_as("input_ids", "float32"), "dtypes", "float32"),
        (_cut("input_mask", rows=10), "shapes", "N = 10"),
        (_cut("masked_lm_ids", columns=2), "shapes", "P = 2"),
        (_cut("input_ids", columns=9), "shapes", "L = "),
    ],
)
def test_a_broken_header_is_named(folder: Path, edit: Callable[[h5py.File], None], check: str, said: str) -> None:
    change(folder / FIRST, edit)
    count, first = failed(look(folder))[check]
    assert count >= 1 and first is not None and FIRST in first and said in first


def test_integers_of_another_type_are_still_checked_row_by_row(folder: Path) -> None:
    change(folder / FIRST, _as("input_ids", "int64"))
    found = look(folder)
    assert set(failed(found)) == {"dtypes"} and found.splits[0].instances == 70


def test_no_instance_is_a_violation(folder: Path) -> None:
    shards.write(folder / FIRST, shards.instances(0), {"bertbench_settings": "one"}, chunks=None)
    assert set(failed(look(folder))) == {"holds_instances", "metadata_counts"}


def test_truncated_foreign_and_damaged_files_are_named_and_the_others_read(folder: Path) -> None:
    whole = (folder / FIRST).read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"no HDF5 at all" * 99):
        (folder / FIRST).write_bytes(content)
        found = look(folder)
        (check,) = (check for check in found.checks if check.status == "failed")
        assert check.name == "readable" and check.first is not None and FIRST in check.first
        assert found.splits[0].instances == 30
    (folder / FIRST).write_bytes(whole)
    with h5py.File(folder / FIRST) as file:
        chunk = file["input_ids"].id.get_chunk_info(0)
    damaged = bytearray(whole)
    damaged[chunk.byte_offset + 5 : chunk.byte_offset + chunk.size] = b"\xff" * (chunk.size - 5)
    (folder / FIRST).write_bytes(bytes(damaged))
    assert "readable" in failed(look(folder))


def test_all_shards_unreadable_is_a_failed_check_and_no_crash(folder: Path) -> None:
    for path in folder.glob("*.hdf5"):
        path.write_bytes(b"x")
    found = look(folder)
    assert failed(found)["readable"][0] == 3 and not found.splits and not found.samples
    assert statuses(found)["cls_first"] == "skipped"


def test_metadata_and_shards_are_held_against_each_other(folder: Path) -> None:
    sizes = {"small_training_0.hdf5": 40, "small_training_1.hdf5": 30, "small_test_0.hdf5": 20}
    cases: dict[str, dict[str, Any]] = {
        "metadata": {"complete": False},
        "metadata_lists_shards": {"shards": [*sizes, "small_training_2.hdf5"]},
        "metadata_counts": {"samples": {**sizes, FIRST: 41}},
        "metadata_widths": {"instances": {"seq_len": 25, "max_predictions": 3, "whole_word_mask": False}},
        "same_settings": {"settings": "two"},
        "vocabulary": {"vocab": "another"},
    }
    for check, changes in cases.items():
        shards.write_beside(folder, sizes, **changes)
        assert list(failed(look(folder))) == [check], check
    shards.write_beside(folder, sizes, shards=[FIRST])
    assert failed(look(folder))["metadata_lists_shards"][0] == 2


@pytest.mark.parametrize("text", ["{", "[]", '{"shards": 3, "instances": 4, "samples": 5, "vocab_size": "x"}'])
def test_damaged_metadata_is_a_failed_check(folder: Path, text: str) -> None:
    (folder / "metadata.json").write_text(text, encoding="utf-8")
    assert failed(look(folder))


def test_a_missing_or_damaged_vocabulary_is_named(folder: Path) -> None:
    (folder / "vocab.txt").write_text("one\n", encoding="utf-8")
    assert "[PAD]" in str(failed(look(folder))["vocabulary"][1])
    (folder / "vocab.txt").unlink()
    assert "vocab.txt is missing" in str(failed(look(folder))["vocabulary"][1])


def test_shards_of_other_widths_do_not_belong_together(folder: Path) -> None:
    shards.write(folder / "small_training_1.hdf5", shards.instances(30, 1, seq_len=32), {"bertbench_settings": "one"})
    found = look(folder)
    assert {"same_widths", "metadata_widths"} <= set(failed(found)) and found.splits[0].instances == 40


def test_files_that_no_loader_reads_are_named(folder: Path) -> None:
    shards.write(folder / "extra.h5", shards.instances(3))
    assert failed(look(folder)) == {"names": (1, "extra.h5")}


def foreign(path: Path, count: int = 400) -> Path:
    shards.write(path / "wiki_training_0.hdf5", shards.instances(count, 5))
    return path


def test_shards_from_elsewhere_show_their_special_ids(tmp_path: Path) -> None:
    found = look(foreign(tmp_path / "elsewhere"))
    assert found.passed and statuses(found)["cls_first"] == statuses(found)["two_seps"] == "passed"
    skipped = {name for name, status in statuses(found).items() if status == "skipped"}
    assert {"metadata", "vocabulary", "ids_in_vocabulary", "labels_in_vocabulary"} <= skipped
    assert any("[CLS] 2, [SEP] 3, [MASK] 4" in note for note in found.notes)
    assert found.splits[0].unknown_share is None and found.samples[0].first.replace("[", "").strip()


def test_special_ids_are_not_guessed_from_rows_that_do_not_agree(tmp_path: Path) -> None:
    arrays = shards.instances(400, 5)
    arrays["input_ids"][::2, 0] = 9
    shards.write(tmp_path / "wiki_training_0.hdf5", arrays)
    found = look(tmp_path)
    assert found.passed and statuses(found)["cls_first"] == "skipped" and found.splits[0].shown_mask is None


def test_a_given_vocabulary_is_used_for_shards_that_have_none(tmp_path: Path, folder: Path) -> None:
    place = foreign(tmp_path / "elsewhere", 3)
    found = look(place, vocab=folder / "vocab.txt")
    assert statuses(found)["ids_in_vocabulary"] == "passed" and found.vocab_size == len(shards.PIECES)
    with refused("path-missing", tmp_path / "none.txt"):
        look(place, vocab=tmp_path / "none.txt")


def test_the_number_of_workers_changes_nothing(folder: Path) -> None:
    with Workers(1) as one, Workers(2) as two:
        assert inspect(folder, one) == inspect(folder, two)


def test_several_preparations_are_each_inspected_or_the_one_picked(tmp_path: Path) -> None:
    for length in (24, 32):
        place = tmp_path / f"hdf5_lower_case_1_seq_len_{length}_max_pred_3_masked_lm_prob_0.15" / "small"
        shards.write(place / FIRST, shards.instances(30, 1, seq_len=length))
    with Workers(1) as workers:
        assert [one.splits[0].seq_len for one in inspect(tmp_path, workers)] == [24, 32]
    assert look(tmp_path, seq_len=32).splits[0].seq_len == 32
    with refused("data-mismatch", tmp_path, "512 tokens", "(24)", "(32)"):
        look(tmp_path, seq_len=512)


def test_bad_folders_and_options_are_refused(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    cases: tuple[tuple[Path, Code], ...] = (
        (tmp_path / "none", "path-missing"),
        (folder / FIRST, "path-kind"),
        (tmp_path / "empty", "data-missing"),
    )
    for path, code in cases:
        with refused(code, path):
            look(path)
    with refused("option-choice", "'validation'", "training", "test", "both"):
        look(folder, split="validation")
    for name in ("small_training_0.hdf5", "small_training_1.hdf5"):
        (folder / name).unlink()
    with refused("data-missing", folder, "training", "--split"):
        look(folder, split="training")
    assert [figures.split for figures in look(folder, split="test").splits] == ["test"]


def test_the_result_has_a_json_form(folder: Path) -> None:
    plain = json.loads(json.dumps(look(folder).to_json(), allow_nan=False))
    assert plain["passed"] is True and {check["status"] for check in plain["checks"]} == {"passed", "skipped"}


def test_blocks_cover_every_row_once_whatever_the_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert.tasks.pretrain.folder._BLOCK_VALUES", 24 * 7)
    arrays = shards.instances(50)
    for storage in ({"compression": "gzip"}, {"chunks": None}, {"chunks": True}):
        path = shards.write(tmp_path / "a_training_0.hdf5", arrays, None, **storage)
        with h5py.File(path) as file:
            found = list(read_blocks(file, tuple(shards.TYPES)))
        assert [begin for begin, _ in found] == list(np.cumsum([0, *(len(b["input_ids"]) for _, b in found)])[:-1])
        for name, values in arrays.items():
            assert (np.concatenate([block[name] for _, block in found]) == values).all()


def test_blocks_change_no_finding(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = shards.instances(40, 0)
    arrays["input_ids"][33, 0] = 9
    shards.write(folder / FIRST, arrays, {"bertbench_settings": "one"}, chunks=None)
    whole = look(folder)
    monkeypatch.setattr("bert.tasks.pretrain.folder._BLOCK_VALUES", 24 * 7)
    assert look(folder) == whole and failed(whole)["cls_first"] == (1, f"{FIRST} row 33")


def test_groups_list_training_before_test_by_number(folder: Path) -> None:
    for number in (10, 2):
        shards.write(folder / f"small_training_{number}.hdf5", shards.instances(3))
    (group,) = shard_groups(folder)
    assert [path.stem[6:] for path in group.shards] == [
        "training_0",
        "training_1",
        "training_2",
        "training_10",
        "test_0",
    ]


def test_shards_of_the_pipeline_s_own_writer_pass(folder: Path) -> None:
    from bert.tasks.pretrain.instances import Instances
    from bert.tasks.pretrain.shards import write_shard

    for path in folder.glob("*.hdf5"):
        with h5py.File(path) as file:
            instances = Instances(**{name: file[name][:] for name in shards.TYPES})
        write_shard(path, instances, "one")
    assert look(folder).passed


@pytest.mark.parametrize(("whole_words", "bins"), [(False, None), (True, 16)])
def test_instances_of_a_real_book_pass(tmp_path: Path, whole_words: bool, bins: int | None) -> None:
    book = DATA / "pretrain" / "books" / "11-0.txt"
    if not book.is_file():
        pytest.skip("needs ../shared/data/pretrain/books, which is not there")
    from bert.data.vocabulary import load_vocabulary
    from bert.tasks.pretrain.config import InstanceConfig
    from bert.tasks.pretrain.instances import plan_instances
    from bert.tasks.pretrain.masking import pieces_of
    from bert.tasks.pretrain.shards import ShardHeader, write_blocks
    from bert.tasks.pretrain.tokens import TokenShard

    vocabulary = load_vocabulary(DATA / "vocab" / "bert-uncased.txt", True)
    chapters = book.read_text(encoding="utf-8-sig").split("CHAPTER")
    documents = [[ids for ids in vocabulary.encode(text.split(". ")) if ids] for text in chapters]
    sentences = [sentence for document in documents for sentence in document]
    shard = TokenShard(
        np.concatenate(sentences).astype(np.uint16),
        np.cumsum([len(sentence) for sentence in sentences]),
        np.cumsum([len(document) for document in documents if document]),
    )
    config = InstanceConfig(seq_len=64, max_predictions=9, dupe_factor=2, whole_word_mask=whole_words)
    plan = plan_instances(shard, pieces_of(vocabulary), config, (0, 0), bins)
    header = ShardHeader(
        samples=len(plan), seq_len=64, max_predictions=9, bin_lengths=plan.bin_lengths, bin_counts=plan.bin_counts
    )
    write_blocks(tmp_path / "books_training_0.hdf5", header, plan.blocks())
    vocabulary.save(tmp_path / "vocab.txt")
    found = look(tmp_path)
    assert found.passed, failed(found)
    assert found.splits[0].frequent[0][0] in (",", "the") and found.splits[0].bins == (4 if bins else 0)
    assert statuses(found)["bins_hold_their_lengths"] == ("passed" if bins else "skipped")
    assert not any("chance explains" in note for note in found.notes)


def test_figures_are_those_of_a_plain_count(folder: Path) -> None:
    training = look(folder).splits[0]
    parts = [shards.instances(40, 0), shards.instances(30, 1)]
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in shards.TYPES}
    masked = shown = same = first = second = unknown = pieces = 0
    for row in range(70):
        length, switch = shards.length_of(arrays, row), shards.switch_of(arrays, row)
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
    assert any("20 test instances" in note for note in found.notes)


def test_masks_that_chance_does_not_give_are_noted_and_no_failure(folder: Path) -> None:
    arrays = shards.instances(400, 0)
    for row in range(400):
        places = arrays["masked_lm_positions"][row]
        arrays["input_ids"][row, places[places > 0]] = shards.MASK
    shards.write(folder / FIRST, arrays, {"bertbench_settings": "one"})
    shards.write_beside(folder, {FIRST: 400, "small_training_1.hdf5": 30, "small_test_0.hdf5": 20})
    found = look(folder)
    assert found.passed and any("intended 80 %" in note for note in found.notes)


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
