"""One shard checked against the format: its header, then what must hold for every row, in blocks of rows, vectorized.

Legend: N rows of the block, L tokens, P predictions. A row is [CLS] A [SEP] B [SEP] and padding. Checks of pieces look
at the row as it was before masking: a random id instead of a piece may well be that of [SEP].
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.tasks.pretrain.folder import Block, read_blocks
from bert.tasks.pretrain.inspecting.figures import MOST_PIECES, Tally
from bert.tasks.pretrain.shards import (
    BIN_COUNTS_ATTRIBUTE,
    BIN_LENGTHS_ATTRIBUTE,
    COLUMNS,
    SETTINGS_ATTRIBUTE,
    opened,
)
from common.errors import InputError

Int32 = npt.NDArray[np.int32]
Int8 = npt.NDArray[np.int8]
Rows = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.integer[Any]]

FEWEST_PER_SEGMENT = 1
ROW_CHECKS = {
    "mask_ones_then_zeros": "input_mask is one or more 1, then 0",
    "padding_is_zero": "input_ids and segment_ids are 0 where input_mask is 0",
    "segments_zero_then_one": "segment_ids are 0, then 1 up to the last real token",
    "no_empty_segment": "both segments have at least one piece",
    "label_zero_or_one": "next_sentence_labels are 0 or 1",
    "positions_inside": "masked positions are real tokens",
    "positions_ascend": "masked positions are strictly ascending",
    "zero_ends_the_list": "after the first position 0, positions and labels are 0",
    "specials_not_masked": "no masked position is [CLS] or [SEP]",
    "masked_count": "min(P, max(1, round(p x tokens))) tokens are masked; with whole words at most this number",
    "ids_in_vocabulary": "input_ids are 0 or more and below the vocabulary's size",
    "labels_in_vocabulary": "masked_lm_ids are 0 or more and below the vocabulary's size",
    "cls_first": "the first token is [CLS]",
    "two_seps": "exactly two tokens are [SEP]",
    "sep_last": "the last real token is [SEP]",
    "segment_switch_after_sep": "segment 1 begins after a [SEP]",
    "no_special_inside": "no other real token is [CLS], [MASK] or [PAD]",
    "bins_hold_their_lengths": "in binned shards, each bin has only its declared lengths",
}
"""Name -> what must hold."""
NEEDS_SPECIALS = ("cls_first", "two_seps", "sep_last", "segment_switch_after_sep", "no_special_inside")
NEEDS_SIZE = ("ids_in_vocabulary", "labels_in_vocabulary")
NEEDS_BINS = ("bins_hold_their_lengths",)


@dataclass(frozen=True, slots=True)
class Specials:
    """Ids of the special pieces."""

    cls_id: int
    """Id of [CLS]."""
    sep_id: int
    """Id of [SEP]."""
    mask_id: int
    """Id of [MASK]."""
    unk_id: int | None
    """Id of [UNK]; None = unknown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What the rows are checked against."""

    specials: Specials | None
    """None = not known."""
    vocab_size: int | None
    """None = not known."""
    masked_lm_prob: float
    """Share of the tokens that is masked."""
    exact_count: bool
    """The number of masked tokens is exactly the rule's; False = at most that (whole words, or not known)."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What the rows of a block are, as far as their own columns tell."""

    ids: Integers
    """[N, L] after masking."""
    original: Integers
    """[N, L] before masking."""
    lengths: npt.NDArray[np.int64]
    """[N] real tokens."""
    switches: npt.NDArray[np.int64]
    """[N] column where segment 1 begins; the length where there is no segment 1."""
    counts: npt.NDArray[np.int64]
    """[N] masked positions."""
    real: Rows
    """[N, L] real tokens."""
    listed: Rows
    """[N, P] entries before the first 0."""
    rows: npt.NDArray[np.int64]
    """[M] row of each masked position that is in the row."""
    columns: npt.NDArray[np.int64]
    """[M] its column."""


def layout_of(block: Block) -> Layout:
    """Find lengths, segments and masked positions of a block; nothing in it is taken for right."""
    ids, positions = block["input_ids"], block["masked_lm_positions"]
    lengths = np.count_nonzero(block["input_mask"], axis=1)
    second = block["segment_ids"] != 0
    switches = np.where(second.any(axis=1), second.argmax(axis=1), lengths)
    ended = positions == 0
    counts = np.where(ended.any(axis=1), ended.argmax(axis=1), positions.shape[1])
    listed = _triangle(positions.shape[1])[counts]
    rows, places = np.nonzero(listed)
    columns = positions[rows, places].astype(np.int64)
    usable = (columns > 0) & (columns < ids.shape[1])
    rows, places, columns = rows[usable], places[usable], columns[usable]
    original = ids.copy()
    original[rows, columns] = block["masked_lm_ids"][rows, places]
    real = _triangle(ids.shape[1])[lengths]
    return Layout(ids, original, lengths, switches, counts, real, listed, rows, columns)


def _triangle(width: int) -> Rows:
    """Return [width + 1, width]: row n is true in its first n columns."""
    return np.arange(width)[None, :] < np.arange(width + 1)[:, None]


def broken_rows(block: Block, layout: Layout, rules: Rules, bounds: Integers | None = None) -> dict[str, Rows]:
    """Return for each check that is broken which rows break it, [N].

    Args:
        block: all datasets of the format, integers, at least one row.
        layout: of the same block.
        rules: what the rows are checked against; checks that need what is not known are left out.
        bounds: [N, 2] smallest and largest length that the bin of each row holds; None = not binned.
    """
    found: dict[str, Rows] = {}

    def report(name: str, wrong: Rows) -> None:
        if wrong.any():
            rows: Rows = np.asarray(wrong.reshape(len(wrong), -1).any(axis=1))
            found[name] = rows

    _check_shape(block, layout, report)
    _check_positions(block, layout, rules, report)
    if rules.vocab_size is not None:
        for name, dataset in (("ids_in_vocabulary", "input_ids"), ("labels_in_vocabulary", "masked_lm_ids")):
            values = block[dataset]
            if values.min() < 0 or values.max() >= rules.vocab_size:
                report(name, (values < 0) | (values >= rules.vocab_size))
    if rules.specials is not None:
        _check_specials(layout, rules.specials, report)
    if bounds is not None:
        report("bins_hold_their_lengths", (layout.lengths < bounds[:, 0]) | (layout.lengths > bounds[:, 1]))
    return found


Report = Callable[[str, Rows], None]


def _check_shape(block: Block, layout: Layout, report: Report) -> None:
    mask, segments, labels = block["input_mask"], block["segment_ids"], block["next_sentence_labels"]
    real, lengths, switches = layout.real, layout.lengths, layout.switches
    report("mask_ones_then_zeros", (mask != real) | (lengths == 0)[:, None])
    report("padding_is_zero", ((layout.ids != 0) | (segments != 0)) & ~real)
    second = real & ~_triangle(real.shape[1])[switches]
    # In padding, a 1 is what padding_is_zero says.
    report("segments_zero_then_one", (segments != second) & real)
    first, last = switches - 2, lengths - switches - 1
    report("no_empty_segment", (first < FEWEST_PER_SEGMENT) | (last < FEWEST_PER_SEGMENT))
    report("label_zero_or_one", (labels != 0) & (labels != 1))


def _check_positions(block: Block, layout: Layout, rules: Rules, report: Report) -> None:
    positions, labels, listed = block["masked_lm_positions"], block["masked_lm_ids"], layout.listed
    lengths, switches = layout.lengths, layout.switches
    report("positions_inside", ((positions < 0) | (positions >= lengths[:, None])) & listed)
    report("positions_ascend", (positions[:, 1:] <= positions[:, :-1]) & listed[:, 1:])
    report("zero_ends_the_list", ((positions != 0) | (labels != 0)) & ~listed)
    special = (positions == (lengths - 1)[:, None]) | (positions == (switches - 1)[:, None])
    report("specials_not_masked", special & listed)
    # np.rint rounds halves to even, as Python's round does.
    wanted = np.maximum(1, np.rint(rules.masked_lm_prob * lengths)).astype(np.int64)
    wanted = np.minimum(np.minimum(wanted, positions.shape[1]), np.maximum(lengths - 3, 0))
    report("masked_count", layout.counts != wanted if rules.exact_count else layout.counts > wanted)


def _check_specials(layout: Layout, specials: Specials, report: Report) -> None:
    original, every = layout.original, np.arange(len(layout.original))
    ends = original[every, np.maximum(layout.lengths - 1, 0)]
    report("cls_first", original[:, 0] != specials.cls_id)
    is_sep = original == specials.sep_id
    is_sep &= layout.real
    report("two_seps", np.count_nonzero(is_sep, axis=1) != 2)
    report("sep_last", ends != specials.sep_id)
    before = original[every, np.maximum(layout.switches - 1, 0)]
    report("segment_switch_after_sep", before != specials.sep_id)
    inside = original[:, 1:]
    stray = (inside == specials.cls_id) | (inside == specials.mask_id) | (inside == 0)
    stray &= layout.real[:, 1:]
    report("no_special_inside", stray)


def length_bounds(lengths: Integers, counts: Integers) -> npt.NDArray[np.int64]:
    """Return [rows, 2]: the smallest and the largest length that the bin of each row of a shard holds.

    Args:
        lengths: [B] longest length of each bin, ascending.
        counts: [B] rows of each bin.
    """
    upper = lengths.astype(np.int64)
    lower = np.concatenate([[1], upper[:-1] + 1])
    return np.repeat(np.stack([lower, upper], axis=1), counts, axis=0)


def guess_specials(block: Block, layout: Layout) -> Specials | None:
    """Return the special ids as the data shows them, None unless nearly every row agrees.

    Source of the thresholds: every row begins with [CLS] and ends with [SEP], and of the masked positions 80 % are
    [MASK], where the next id has 10 % divided by the size of the vocabulary.
    """
    full = layout.lengths >= 2
    if not full.any() or len(layout.columns) < 50:
        return None
    every = np.flatnonzero(full)
    cls_id = _mode(layout.original[every, 0], 0.99)
    sep_id = _mode(layout.original[every, layout.lengths[every] - 1], 0.99)
    shown = layout.ids[layout.rows, layout.columns]
    mask_id = _mode(shown, 0.6)
    if cls_id is None or sep_id is None or mask_id is None or len({cls_id, sep_id, mask_id, 0}) < 4:
        return None
    inner = layout.switches[every] - 1
    if np.mean(layout.original[every, inner] == sep_id) < 0.99:
        return None
    return Specials(cls_id, sep_id, mask_id, None)


def _mode(values: Integers, share: float) -> int | None:
    found, counts = np.unique(values, return_counts=True)
    best = int(counts.argmax())
    return int(found[best]) if counts[best] >= share * len(values) else None


FILE_CHECKS = {
    "readable": "the file is complete, and its data can be decompressed",
    "datasets": f"the datasets {', '.join(COLUMNS)} are there",
    "dtypes": f"their types are {', '.join(dtype for dtype, _ in COLUMNS.values())}",
    "shapes": "their shapes are [N, L], [N, P] and [N], with one N, L and P",
    "holds_instances": "there is an instance",
    "bins_add_up": "in binned shards, lengths ascend to L and counts add up to N",
}
"""Name -> what must hold."""


@dataclass(slots=True)
class Violations:
    """Violations of the checks."""

    counts: dict[str, int] = field(default_factory=dict)
    firsts: dict[str, str] = field(default_factory=dict)
    """Name of a check -> where the first one is, and what it is."""

    def add(self, name: str, first: str, count: int = 1) -> None:
        """Count violations of a check."""
        self.counts[name] = self.counts.get(name, 0) + count
        self.firsts.setdefault(name, first)

    def merge(self, other: "Violations") -> None:
        """Add those of a later file."""
        for name, count in other.counts.items():
            self.add(name, other.firsts[name], count)


@dataclass(frozen=True, slots=True)
class ShardWork:
    """A shard to inspect."""

    path: Path
    rules: Rules


@dataclass(slots=True)
class ShardFindings:
    """What was found in one shard."""

    path: Path
    file_bytes: int
    violations: Violations = field(default_factory=Violations)
    instances: int | None = None
    """N; None if the header does not tell."""
    seq_len: int | None = None
    max_predictions: int | None = None
    settings: str | None = None
    """Fingerprint of the settings it was made with."""
    bounds: npt.NDArray[np.int64] | None = None
    """[N, 2] smallest and largest length that the bin of each row holds; None = not binned."""
    bins: int = 0
    """Bins its rows are in; 0 = not binned."""
    tally: Tally | None = None
    """What was counted; None if the rows could not all be read."""


def inspect_shard(work: ShardWork) -> ShardFindings:
    """Check and count one shard, in blocks of rows; never fails for what is in the file."""
    found = ShardFindings(work.path, work.path.stat().st_size)
    try:
        with opened(work.path) as file:
            if _read_header(file, found):
                _check_rows(file, found, work.rules)
    except InputError as error:
        found.violations.add("readable", f"{work.path.name}: {error.__cause__ or error}")
    found.bounds = None  # large, and of no use to the parent process
    return found


def _read_header(file: Any, found: ShardFindings) -> bool:
    """Return whether the rows can be read."""
    import h5py

    name, violations = found.path.name, found.violations
    settings = file.attrs.get(SETTINGS_ATTRIBUTE)
    found.settings = None if settings is None else str(settings)
    missing = [column for column in COLUMNS if not isinstance(file.get(column), h5py.Dataset)]
    if missing:
        violations.add("datasets", f"{name} lacks {', '.join(missing)}", len(missing))
        return False
    for column, (dtype, _) in COLUMNS.items():
        if file[column].dtype != np.dtype(dtype):
            violations.add("dtypes", f"{name}: {column} is {file[column].dtype}, not {dtype}")
    wrong = _wrong_shapes({column: file[column].shape for column in COLUMNS})
    if wrong:
        violations.add("shapes", f"{name}: {wrong[0]}", len(wrong))
        return False
    found.instances, found.seq_len = file["input_ids"].shape
    found.max_predictions = file["masked_lm_ids"].shape[1]
    if not found.instances:
        violations.add("holds_instances", name)
        return False
    _read_bins(file.attrs, found)
    return all(np.issubdtype(file[column].dtype, np.integer) for column in COLUMNS)


def _wrong_shapes(shapes: dict[str, tuple[int, ...]]) -> list[str]:
    wrong = []
    known: dict[str, int] = {}
    for column, (_, width) in COLUMNS.items():
        shape = shapes[column]
        axes = ("N", width) if width else ("N",)
        if len(shape) != len(axes):
            wrong.append(f"{column} has {len(shape)} axes, not {len(axes)}")
            continue
        for axis, size in zip(axes, shape, strict=True):
            if known.setdefault(axis, size) != size:
                wrong.append(f"{column} has {axis} = {size}, another dataset {known[axis]}")
            elif axis != "N" and not size:
                wrong.append(f"{column} has {axis} = 0")
    return wrong


def _read_bins(attributes: Any, found: ShardFindings) -> None:
    name, violations = found.path.name, found.violations
    bins = [attributes.get(key) for key in (BIN_LENGTHS_ATTRIBUTE, BIN_COUNTS_ATTRIBUTE)]
    if bins[0] is None and bins[1] is None:
        return
    try:
        lengths, counts = (np.atleast_1d(np.asarray(values)).astype(np.int64) for values in bins)
    except (TypeError, ValueError) as error:
        violations.add("bins_add_up", f"{name}: {error}")
        return
    if lengths.ndim != 1 or lengths.shape != counts.shape or not len(lengths):
        violations.add("bins_add_up", f"{name}: {lengths.shape} lengths, {counts.shape} counts")
    elif (np.diff(lengths) <= 0).any() or lengths[0] < 1 or lengths[-1] != found.seq_len:
        violations.add("bins_add_up", f"{name}: lengths {lengths.tolist()}, L = {found.seq_len}")
    elif (counts < 0).any() or counts.sum() != found.instances:
        violations.add("bins_add_up", f"{name}: counts of {counts.sum()} rows in all, N = {found.instances}")
    else:
        found.bins, found.bounds = len(lengths), length_bounds(lengths, counts)


def _check_rows(file: Any, found: ShardFindings, rules: Rules) -> None:
    assert found.seq_len is not None
    tally = Tally(found.seq_len, MOST_PIECES if rules.vocab_size is None else rules.vocab_size)
    for begin, raw in read_blocks(file, tuple(COLUMNS)):
        block = _as_integers(raw)
        layout = layout_of(block)
        bounds = None if found.bounds is None else found.bounds[begin : begin + len(layout.ids)]
        for check, rows in broken_rows(block, layout, rules, bounds).items():
            found.violations.add(check, f"{found.path.name} row {begin + int(rows.argmax())}", int(rows.sum()))
        tally.add(block, layout, rules.specials)
    found.tally = tally


def _as_integers(raw: Block) -> Block:
    """Columns of another type than the format's become int64: comparing with negative numbers must not wrap."""
    return {
        column: values if values.dtype == np.dtype(COLUMNS[column][0]) else values.astype(np.int64)
        for column, values in raw.items()
    }


def specials_of_data(path: Path) -> Specials | None:
    """Return the special ids as the first rows of a shard show them; None if they do not, or cannot be read."""
    try:
        with opened(path) as file:
            if _read_header(file, ShardFindings(path, 0)):
                for _, raw in read_blocks(file, tuple(COLUMNS)):
                    block = _as_integers(raw)
                    return guess_specials(block, layout_of(block))
    except InputError:
        pass
    return None
