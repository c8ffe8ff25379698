"""`inspect` names the rule of the format that a row breaks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import pretraining_shards as shards
from test_inspection import FIRST, failed, look

from bert.tasks.pretrain.inspecting.rows import ROW_CHECKS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shards.write_folder(tmp_path / "small")


def full_row(arrays: dict[str, Any]) -> int:
    """A row without padding."""
    return int(np.flatnonzero(arrays["input_mask"].all(axis=1))[2])


def short_row(arrays: dict[str, Any]) -> int:
    """A row with padding and fewer masked positions than there is place for."""
    lengths = arrays["input_mask"].sum(axis=1)
    return int(np.flatnonzero((lengths < 16) & (lengths > 9))[0])


def _set(name: str, where: Callable[[dict[str, Any], int], Any], value: Any, short: bool = False) -> Any:
    def edit(arrays: dict[str, Any]) -> int:
        row = short_row(arrays) if short else full_row(arrays)
        arrays[name][(row, *where(arrays, row))] = value
        return row

    return edit


def _unmasked(arrays: dict[str, Any], row: int) -> int:
    """A piece that is not masked."""
    taken = {
        0,
        shards.switch_of(arrays, row) - 1,
        shards.length_of(arrays, row) - 1,
        *arrays["masked_lm_positions"][row].tolist(),
    }
    return next(column for column in range(1, shards.length_of(arrays, row)) if column not in taken)


def _empty_first(arrays: dict[str, Any]) -> int:
    row = full_row(arrays)
    arrays["segment_ids"][row, 2:] = 1
    return row


def _swapped(arrays: dict[str, Any]) -> int:
    row = full_row(arrays)
    for name in ("masked_lm_positions", "masked_lm_ids"):
        arrays[name][row, :2] = arrays[name][row, 1::-1]
    return row


def _on_sep(arrays: dict[str, Any]) -> int:
    row = full_row(arrays)
    arrays["masked_lm_positions"][row, -1] = shards.SEQ_LEN - 1
    arrays["masked_lm_ids"][row, -1] = shards.SEP
    return row


def _fewer(arrays: dict[str, Any]) -> int:
    row = full_row(arrays)
    arrays["input_ids"][row, arrays["masked_lm_positions"][row, -1]] = arrays["masked_lm_ids"][row, -1]
    for name in ("masked_lm_positions", "masked_lm_ids"):
        arrays[name][row, -1] = 0
    return row


BROKEN: dict[str, Callable[[dict[str, Any]], int]] = {
    "mask_ones_then_zeros": _set("input_mask", lambda a, r: (2,), 0),
    "padding_is_zero": _set("input_ids", lambda a, r: (shards.SEQ_LEN - 1,), 7, short=True),
    "segments_zero_then_one": _set("segment_ids", lambda a, r: (shards.length_of(a, r) - 1,), 0),
    "no_empty_segment": _empty_first,
    "label_zero_or_one": _set("next_sentence_labels", lambda a, r: (), 2),
    "positions_inside": _set("masked_lm_positions", lambda a, r: (_last(a, r),), shards.SEQ_LEN, short=True),
    "positions_ascend": _swapped,
    "zero_ends_the_list": _set("masked_lm_ids", lambda a, r: (-1,), 9, short=True),
    "specials_not_masked": _on_sep,
    "masked_count": _fewer,
    "ids_in_vocabulary": _set("input_ids", lambda a, r: (_unmasked(a, r),), len(shards.PIECES)),
    "labels_in_vocabulary": _set("masked_lm_ids", lambda a, r: (0,), -5),
    "cls_first": _set("input_ids", lambda a, r: (0,), 9),
    "two_seps": _set("input_ids", lambda a, r: (_unmasked(a, r),), shards.SEP),
    "sep_last": _set("input_ids", lambda a, r: (shards.SEQ_LEN - 1,), 9),
    "segment_switch_after_sep": _set("segment_ids", lambda a, r: (shards.switch_of(a, r),), 0),
    "no_special_inside": _set("input_ids", lambda a, r: (_unmasked(a, r),), shards.MASK),
}


def _last(arrays: dict[str, Any], row: int) -> int:
    return int(np.count_nonzero(arrays["masked_lm_positions"][row])) - 1


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_row_is_named_by_its_check(folder: Path, name: str) -> None:
    arrays = shards.instances(40, 0)
    row = BROKEN[name](arrays)
    shards.write(folder / FIRST, arrays, {"bertbench_settings": "one"})
    found = failed(look(folder))
    assert found[name] == (1, f"{FIRST} row {row}")
    assert set(found) <= set(ROW_CHECKS), "the files are whole"


def test_every_check_of_rows_is_broken_by_a_test() -> None:
    assert {*BROKEN, "bins_hold_their_lengths"} == set(ROW_CHECKS)


def test_a_replaced_piece_that_happens_to_be_special_breaks_nothing(folder: Path) -> None:
    for special in range(5):
        arrays = shards.instances(40, 0)
        arrays["input_ids"][7, arrays["masked_lm_positions"][7, 0]] = special
        shards.write(folder / FIRST, arrays, {"bertbench_settings": "one"})
        assert look(folder).passed


def test_whole_words_may_leave_fewer_masked(folder: Path) -> None:
    arrays = shards.instances(40, 0)
    _fewer(arrays)
    shards.write(folder / FIRST, arrays, {"bertbench_settings": "one"})
    sizes = {"small_training_0.hdf5": 40, "small_training_1.hdf5": 30, "small_test_0.hdf5": 20}
    instances = {"seq_len": 24, "max_predictions": 3, "masked_lm_prob": 0.15, "whole_word_mask": True}
    shards.write_beside(folder, sizes, instances=instances)
    assert look(folder).passed
