"""One shard held against the format: its header, then all of its rows; runs in a worker process."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.tasks.pretrain.inspecting.invariants import (
    Rules,
    Specials,
    broken_rows,
    guess_specials,
    layout_of,
    length_bounds,
)
from bert.tasks.pretrain.inspecting.shard_files import Block, read_blocks
from bert.tasks.pretrain.inspecting.tallies import MOST_PIECES, Tally
from bert.tasks.pretrain.shard_writer import (
    BIN_COUNTS_ATTRIBUTE,
    BIN_LENGTHS_ATTRIBUTE,
    COLUMNS,
    SETTINGS_ATTRIBUTE,
)
from bert.tasks.pretrain.shards import opened
from common.errors import InputError

FILE_CHECKS = {
    "readable": "the file is whole, and its data can be decompressed",
    "datasets": f"the datasets {', '.join(COLUMNS)} are there",
    "dtypes": f"their types are {', '.join(dtype for dtype, _ in COLUMNS.values())}",
    "shapes": "their shapes are [N, L], [N, P] and [N], with one N, L and P",
    "holds_instances": "there is an instance",
    "bins_add_up": "where there are bins, their lengths ascend to L and their counts add up to N",
}
"""Name -> what must hold."""


@dataclass(slots=True)
class Violations:
    """What breaks the checks."""

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


@dataclass(frozen=True, slots=True)
class ShardFindings:
    """What was found in one shard."""

    path: Path
    file_bytes: int
    instances: int | None
    """N; None where the header does not tell."""
    seq_len: int | None
    max_predictions: int | None
    settings: str | None
    """Fingerprint of the settings it was made with."""
    bins: int
    """Bins its rows lie in; 0 = not binned."""
    violations: Violations
    tally: Tally | None
    """What was counted; None where the rows could not all be read."""


@dataclass(slots=True)
class _Header:
    instances: int | None = None
    seq_len: int | None = None
    max_predictions: int | None = None
    settings: str | None = None
    bins: int = 0
    bounds: npt.NDArray[np.int64] | None = None
    usable: bool = False


def inspect_shard(work: ShardWork) -> ShardFindings:
    """Check and count one shard, in blocks of rows; never fails for what is in the file."""
    violations, header, tally = Violations(), _Header(), None
    name = work.path.name
    try:
        with opened(work.path) as file:
            _read_header(file, name, header, violations)
            if header.usable:
                tally = _check_rows(file, name, header, work.rules, violations)
    except InputError as error:
        violations.add("readable", f"{name}: {error.__cause__ or error}")
    return ShardFindings(
        path=work.path,
        file_bytes=work.path.stat().st_size,
        instances=header.instances,
        seq_len=header.seq_len,
        max_predictions=header.max_predictions,
        settings=header.settings,
        bins=header.bins,
        violations=violations,
        tally=tally,
    )


def _read_header(file: Any, name: str, header: _Header, violations: Violations) -> None:
    import h5py

    settings = file.attrs.get(SETTINGS_ATTRIBUTE)
    header.settings = None if settings is None else str(settings)
    missing = [column for column in COLUMNS if not isinstance(file.get(column), h5py.Dataset)]
    if missing:
        violations.add("datasets", f"{name} lacks {', '.join(missing)}", len(missing))
        return
    for column, (dtype, _) in COLUMNS.items():
        if file[column].dtype != np.dtype(dtype):
            violations.add("dtypes", f"{name}: {column} is {file[column].dtype}, not {dtype}")
    wrong = _wrong_shapes({column: file[column].shape for column in COLUMNS})
    if wrong:
        violations.add("shapes", f"{name}: {wrong[0]}", len(wrong))
        return
    header.instances, header.seq_len = file["input_ids"].shape
    header.max_predictions = file["masked_lm_ids"].shape[1]
    if not header.instances:
        violations.add("holds_instances", name)
        return
    _read_bins(file.attrs, name, header, violations)
    header.usable = all(np.issubdtype(file[column].dtype, np.integer) for column in COLUMNS)


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


def _read_bins(attributes: Any, name: str, header: _Header, violations: Violations) -> None:
    found = [attributes.get(key) for key in (BIN_LENGTHS_ATTRIBUTE, BIN_COUNTS_ATTRIBUTE)]
    if found[0] is None and found[1] is None:
        return
    try:
        lengths, counts = (np.atleast_1d(np.asarray(values)).astype(np.int64) for values in found)
    except (TypeError, ValueError) as error:
        violations.add("bins_add_up", f"{name}: {error}")
        return
    if lengths.ndim != 1 or lengths.shape != counts.shape or not len(lengths):
        violations.add("bins_add_up", f"{name}: {lengths.shape} lengths, {counts.shape} counts")
    elif (np.diff(lengths) <= 0).any() or lengths[0] < 1 or lengths[-1] != header.seq_len:
        violations.add("bins_add_up", f"{name}: lengths {lengths.tolist()}, L = {header.seq_len}")
    elif (counts < 0).any() or counts.sum() != header.instances:
        violations.add("bins_add_up", f"{name}: counts of {counts.sum()} rows in all, N = {header.instances}")
    else:
        header.bins, header.bounds = len(lengths), length_bounds(lengths, counts)


def _check_rows(file: Any, name: str, header: _Header, rules: Rules, violations: Violations) -> Tally:
    assert header.seq_len is not None
    tally = Tally(header.seq_len, MOST_PIECES if rules.vocab_size is None else rules.vocab_size)
    for begin, raw in read_blocks(file, tuple(COLUMNS)):
        block = _as_integers(raw)
        layout = layout_of(block)
        bounds = None if header.bounds is None else header.bounds[begin : begin + len(layout.ids)]
        for check, rows in broken_rows(block, layout, rules, bounds).items():
            violations.add(check, f"{name} row {begin + int(rows.argmax())}", int(rows.sum()))
        tally.add(block, layout, rules.specials)
    return tally


def _as_integers(raw: Block) -> Block:
    """Columns of another type than the format's become int64: comparing with negative numbers must not wrap."""
    return {
        column: values if values.dtype == np.dtype(COLUMNS[column][0]) else values.astype(np.int64)
        for column, values in raw.items()
    }


def specials_of_data(path: Path) -> Specials | None:
    """Return the special ids as the first rows of a shard show them; None where they do not, or cannot be read."""
    findings = _Header()
    try:
        with opened(path) as file:
            _read_header(file, path.name, findings, Violations())
            if not findings.usable:
                return None
            for _, raw in read_blocks(file, tuple(COLUMNS)):
                block = _as_integers(raw)
                return guess_specials(block, layout_of(block))
    except InputError:
        pass
    return None
