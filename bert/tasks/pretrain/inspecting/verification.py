"""Two folders of HDF5 shards checked against each other, value by value, in blocks of rows.

Shards are paired by their relative names, so the order in which a folder lists them does not matter; the order of the
rows in a shard does. The first difference of two shards is reported. These do not count as differences:
compression, chunks, the fingerprints of the settings, and metadata that do not describe the shards.
"""

import filecmp
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.pool import Progress
from bert.data.vocabulary import VOCABULARY_FILE
from bert.tasks.pretrain.folder import hdf5_files, read_blocks
from bert.tasks.pretrain.shards import METADATA_FILE, SETTINGS_ATTRIBUTE, datasets_of, opened
from common.errors import InputError, UsageError, read_code
from common.json_file import read_json

_CONTENT_KEYS = ("schema_version", "vocab_size", "vocab", "lower_case", "instances", "shards", "samples", "complete")
"""What metadata say about the content; other keys say where it comes from."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of two files."""

    file: str
    what: str
    """What differs, and how; with the dataset, where it is one."""
    dataset: str | None = None
    """The dataset; None if the file as a whole is meant."""
    first_row: int | None = None


@dataclass(slots=True)
class Comparison:
    """Result of comparing two folders."""

    differences: list[Difference] = field(default_factory=list)
    """One for each file that differs; empty = equal."""
    identical: list[str] = field(default_factory=list)
    """Files that are the same byte for byte."""
    equal: list[str] = field(default_factory=list)
    """Shards of other bytes and the same content."""

    @property
    def passed(self) -> bool:
        """Whether the folders hold the same."""
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"equal_content": self.passed, **asdict(self)}


def verify(first: Path, second: Path, progress: Progress = lambda stage, done, total: None) -> Comparison:
    """Compare two folders of shards, at any depth: names, datasets, types, shapes, values, attributes, what is beside.

    Raises:
        InputError: a folder does not exist, or holds no HDF5 file.
        UsageError: both are the same folder.
    """
    if first.is_dir() and second.is_dir() and first.resolve() == second.resolve():
        raise UsageError("option-conflict", f"{first} and {second} are the same folder: give two different folders")
    comparison = Comparison()
    pairs = _paired(_by_name(first), _by_name(second), comparison)
    for number, (name, one, other) in enumerate(pairs):
        progress("verify", number, len(pairs))
        _compare_files(name, one, other, comparison)
    progress("verify", len(pairs), len(pairs))
    for one, other in dict.fromkeys((one.parent, other.parent) for _, one, other in pairs):
        _compare_beside(one, other, "" if one == first else f"{one.relative_to(first).as_posix()}/", comparison)
    return comparison


def _by_name(folder: Path) -> dict[str, Path]:
    found = {path.relative_to(folder).as_posix(): path for path in hdf5_files(folder)}
    if not found:
        raise InputError("data-missing", f"{folder} holds no HDF5 file (.hdf5, .h5): give a folder of shards")
    return found


def _paired(first: dict[str, Path], second: dict[str, Path], comparison: Comparison) -> list[tuple[str, Path, Path]]:
    """Pair the files by relative name; where the folders are at other depths, so that no name is in both, by the last
    part of it, if that is unique.
    """
    if not first.keys() & second.keys():
        short = [{path.name: path for path in found.values()} for found in (first, second)]
        if all(len(names) == len(found) for names, found in zip(short, (first, second), strict=True)):
            first, second = short
    for name in sorted(first.keys() ^ second.keys()):
        comparison.differences.append(Difference(name, f"only in {'A' if name in first else 'B'}"))
    return [(name, first[name], second[name]) for name in sorted(first.keys() & second.keys())]


def _compare_files(name: str, first: Path, second: Path, comparison: Comparison) -> None:
    if _same_bytes(first, second):
        comparison.identical.append(name)
        return
    try:
        with opened(first) as one, opened(second) as other:
            found = _first_difference(name, one, other)
    except InputError as error:
        found = Difference(name, f"cannot be compared: {error}")
    if found is None:
        comparison.equal.append(name)
    else:
        comparison.differences.append(found)


def _same_bytes(first: Path, second: Path) -> bool:
    try:
        return filecmp.cmp(first, second, shallow=False)
    except OSError as error:
        raise InputError(
            read_code(error), f"cannot read {error.filename}: {error.strerror}; check its permissions"
        ) from error


def _first_difference(name: str, first: Any, second: Any) -> Difference | None:
    ours, theirs = datasets_of(first), datasets_of(second)
    for dataset in sorted(ours.keys() ^ theirs.keys()):
        return Difference(name, f"the dataset {dataset} is only in {'A' if dataset in ours else 'B'}", dataset)
    if (say := _attributes(first.attrs, second.attrs, "")) is not None:
        return Difference(name, say)
    for dataset, one in ours.items():
        other = theirs[dataset]
        if (say := _attributes(one.attrs, other.attrs, f" of {dataset}")) is not None:
            return Difference(name, say, dataset)
        if one.dtype != other.dtype or one.shape != other.shape:
            kinds = [f"{member.dtype}[{', '.join(map(str, member.shape))}]" for member in (one, other)]
            return Difference(name, f"{dataset} is {kinds[0]} in A, {kinds[1]} in B", dataset)
        if not one.shape:
            if not _same_values(one[()], other[()]):
                return Difference(name, f"{dataset} has another value", dataset)
        elif (found := _other_row(name, dataset, one, other)) is not None:
            return found
    return None


def _attributes(first: Any, second: Any, of: str) -> str | None:
    """What the first other attribute is; what the settings were, which only the file as a whole says, is none."""
    for key in sorted({*first, *second} - ({SETTINGS_ATTRIBUTE} if not of else set())):
        ours, theirs = first.get(key), second.get(key)
        if ours is None or theirs is None or not _same_values(ours, theirs):
            return f"attribute {key}{of}: {_short(ours)} in A, {_short(theirs)} in B"
    return None


def _same_values(first: Any, second: Any) -> bool:
    one, other = np.asarray(first), np.asarray(second)
    return one.dtype == other.dtype and one.shape == other.shape and not _unequal(one, other).any()


def _other_row(name: str, dataset: str, first: Any, second: Any) -> Difference | None:
    """The first row that differs; the blocks of one file are read as the other's are, whatever their chunks."""
    for begin, block in read_blocks(first.parent, [first.name.rsplit("/", 1)[-1]]):
        (ours,) = block.values()
        theirs = second[begin : begin + len(ours)]
        wrong = _unequal(ours, theirs).reshape(len(ours), -1)
        if not wrong.any():
            continue
        row = int(wrong.any(axis=1).argmax())
        column = int(wrong[row].argmax())
        values = [_short(part.reshape(len(part), -1)[row, column]) for part in (ours, theirs)]
        at = f"[{begin + row}, {column}]" if ours.ndim > 1 else f"[{begin + row}]"
        say = f"{dataset}{at} is {values[0]} in A, {values[1]} in B"
        return Difference(name, say, dataset, begin + row)
    return None


def _unequal(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Where the values differ; not-a-number equals itself."""
    if first.dtype.kind == "O":  # texts, or arrays of any length
        pairs = zip(first.ravel(), second.ravel(), strict=True)
        return np.array([not np.array_equal(one, other) for one, other in pairs], bool).reshape(first.shape)
    wrong = np.asarray(first != second)
    if first.dtype.kind == "f":
        wrong = wrong & ~(np.isnan(first) & np.isnan(second))
    return wrong


def _compare_beside(first: Path, second: Path, prefix: str, comparison: Comparison) -> None:
    """The vocabulary and the metadata beside the shards, where both have them."""
    for name, compare in ((VOCABULARY_FILE, _other_piece), (METADATA_FILE, _other_metadata)):
        one, other = first / name, second / name
        if not one.is_file() or not other.is_file():
            continue
        if _same_bytes(one, other):
            comparison.identical.append(prefix + name)
        elif (say := compare(one, other)) is not None:
            comparison.differences.append(Difference(prefix + name, say))


def _other_piece(first: Path, second: Path) -> str | None:
    ours, theirs = (path.read_bytes().split() for path in (first, second))
    if ours == theirs:
        return None
    row = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), -1)
    where = "one has more pieces" if row < 0 else f"the first difference is in line {row + 1}"
    return f"{len(ours):,} pieces in A, {len(theirs):,} in B; {where}"


def _other_metadata(first: Path, second: Path) -> str | None:
    try:
        found = [read_json(path) for path in (first, second)]
    except InputError as error:
        return f"cannot be compared: {error}"
    for key in _CONTENT_KEYS:
        ours, theirs = (values.get(key) for values in found)
        if key == "shards" and isinstance(ours, list) and isinstance(theirs, list):
            ours, theirs = sorted(map(str, ours)), sorted(map(str, theirs))
        if ours != theirs:
            return f"{key} is {_short(ours)} in A, {_short(theirs)} in B"
    return None


def _short(value: Any) -> str:
    text = "none" if value is None else str(np.asarray(value).tolist() if hasattr(value, "dtype") else value)
    return text if len(text) <= 60 else f"{text[:57]}..."
