"""Two folders of HDF5 shards held against each other, value by value, in blocks of rows.

Shards are paired by their relative names, so the order in which a folder lists them does not matter; the order of the
rows in a shard does. What does not concern the values is noted, and is no difference: compression, chunks, the
fingerprints of the settings, what metadata say besides what they say about the shards' content.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bert.data.pool import Progress
from bert.tasks.pretrain.inspecting.shard_files import hdf5_files, read_blocks, read_json
from bert.tasks.pretrain.inspecting.tallies import row_hashes
from bert.tasks.pretrain.naming import METADATA_FILE, VOCABULARY_FILE
from bert.tasks.pretrain.shard_writer import SETTINGS_ATTRIBUTE
from bert.tasks.pretrain.shards import datasets_of, opened
from common.errors import InputError, UsageError, read_code

_COPY_BYTES = 4 * 2**20
_CONTENT_KEYS = ("schema_version", "vocab_size", "vocab", "lower_case", "instances", "shards", "samples", "complete")
"""What metadata say about the content; other keys say where it comes from."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One way in which the folders differ."""

    file: str
    """Name relative to the folders."""
    what: str
    """What differs, and how; with the dataset, where it is one."""
    dataset: str | None = None
    """The dataset; None where the file as a whole is meant."""
    first_row: int | None = None
    """First row that differs."""
    rows: int | None = None
    """Rows that differ."""


@dataclass(slots=True)
class Comparison:
    """What comparing two folders gave."""

    differences: list[Difference] = field(default_factory=list)
    """What differs; empty = equal."""
    notes: list[str] = field(default_factory=list)
    """What differs and is no difference of content."""
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
        raise UsageError("option-conflict", f"{first} and {second} are the same folder: give two")
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
    """Pair the files by relative name; where the folders lie at other depths, so that no name is in both, by the last
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
    before = len(comparison.differences)
    try:
        with opened(first) as one, opened(second) as other:
            _compare_content(name, one, other, comparison)
    except InputError as error:
        # With both open it cannot be said which one is damaged.
        damage = [text for text in (_damage("A", first), _damage("B", second)) if text is not None]
        comparison.differences.append(Difference(name, f"cannot be compared: {'; '.join(damage) or error}"))
    if len(comparison.differences) == before:
        comparison.equal.append(name)


def _damage(folder: str, path: Path) -> str | None:
    """What is wrong with a file, None where all of it can be read."""
    try:
        with opened(path) as file:
            for name, dataset in datasets_of(file).items():
                if dataset.shape:
                    for _ in read_blocks(file, [name]):
                        pass
    except InputError as error:
        return f"in {folder} it is damaged ({error.__cause__ or error})"
    return None


def _same_bytes(first: Path, second: Path) -> bool:
    try:
        if first.stat().st_size != second.stat().st_size:
            return False
        with first.open("rb") as one, second.open("rb") as other:
            while block := one.read(_COPY_BYTES):
                if block != other.read(_COPY_BYTES):
                    return False
    except OSError as error:
        raise InputError(
            read_code(error), f"cannot read {error.filename}: {error.strerror}; check its permissions"
        ) from error
    return True


def _compare_content(name: str, first: Any, second: Any, comparison: Comparison) -> None:
    datasets = [datasets_of(file) for file in (first, second)]
    for dataset in sorted(datasets[0].keys() ^ datasets[1].keys()):
        where = "A" if dataset in datasets[0] else "B"
        comparison.differences.append(Difference(name, f"the dataset {dataset} is only in {where}", dataset))
    _compare_attributes(name, "", first.attrs, second.attrs, comparison)
    stored = set()
    for dataset in [dataset for dataset in datasets[0] if dataset in datasets[1]]:
        one, other = datasets[0][dataset], datasets[1][dataset]
        _compare_attributes(name, dataset, one.attrs, other.attrs, comparison)
        if one.dtype != other.dtype or one.shape != other.shape:
            kinds = [f"{member.dtype}[{', '.join(map(str, member.shape))}]" for member in (one, other)]
            say = f"{dataset} is {kinds[0]} in A, {kinds[1]} in B"
            comparison.differences.append(Difference(name, say, dataset))
            continue
        _compare_values(name, dataset, one, other, comparison)
        if _storage(one) != _storage(other):
            stored.add((_storage(one), _storage(other)))
    for ours, theirs in sorted(stored):
        comparison.notes.append(f"{name}: stored as {ours} in A, {theirs} in B")


def _storage(dataset: Any) -> str:
    if dataset.chunks is None:
        return "plain"
    filters = " ".join(
        part for part in ("shuffle" if dataset.shuffle else "", dataset.compression or "uncompressed") if part
    )
    level = "" if dataset.compression_opts is None else f" {dataset.compression_opts}"
    return f"{filters}{level}, chunks of {dataset.chunks[0]:,} rows"


def _compare_attributes(name: str, dataset: str, first: Any, second: Any, comparison: Comparison) -> None:
    for key in sorted({*first, *second}):
        ours, theirs = first.get(key), second.get(key)
        if ours is not None and theirs is not None and _same_values(ours, theirs):
            continue
        of = f" of {dataset}" if dataset else ""
        say = f"attribute {key}{of}: {_short(ours)} in A, {_short(theirs)} in B"
        if key == SETTINGS_ATTRIBUTE and not dataset:
            comparison.notes.append(f"{name}: made with other settings: {_short(ours)} in A, {_short(theirs)} in B")
        else:
            comparison.differences.append(Difference(name, say, dataset or None))


def _same_values(first: Any, second: Any) -> bool:
    one, other = np.asarray(first), np.asarray(second)
    return one.dtype == other.dtype and one.shape == other.shape and not _unequal(one, other).any()


def _short(value: Any) -> str:
    if value is None:
        return "none"
    return _short_json(np.asarray(value).tolist())


def _compare_values(name: str, dataset: str, first: Any, second: Any, comparison: Comparison) -> None:
    if not first.shape:
        if not _same_values(first[()], second[()]):
            comparison.differences.append(Difference(name, f"{dataset} has another value", dataset))
        return
    first_row, rows = None, 0
    sums = [0, 0]
    example = ""
    for begin, (ours, theirs) in _side_by_side(dataset, first, second):
        wrong = _unequal(ours, theirs).reshape(len(ours), -1)
        broken = wrong.any(axis=1)
        rows += int(broken.sum())
        if first_row is None and broken.any():
            row = int(broken.argmax())
            column = int(wrong[row].argmax())
            values = [_short(part.reshape(len(part), -1)[row, column]) for part in (ours, theirs)]
            first_row = begin + row
            at = f"[{first_row}, {column}]" if ours.ndim > 1 else f"[{first_row}]"
            example = f"{dataset}{at} is {values[0]} in A, {values[1]} in B"
        if ours.dtype.kind in "iufb":
            sums = [
                (known + int(row_hashes([part]).sum())) % 2**64
                for known, part in zip(sums, (ours, theirs), strict=True)
            ]
    if first_row is None:
        return
    say = f"{example}; {rows:,} of {len(first):,} rows differ"
    if sums[0] == sums[1] and first.dtype.kind in "iufb":
        say += ", the rows are the same in another order"
    comparison.differences.append(Difference(name, say, dataset, first_row, rows))


def _side_by_side(dataset: str, first: Any, second: Any) -> Iterator[tuple[int, tuple[Any, Any]]]:
    """Blocks of both; one file's blocks are read as the other's are, whatever their chunks."""
    for begin, block in read_blocks(first.parent, [first.name.rsplit("/", 1)[-1]]):
        (ours,) = block.values()
        yield begin, (ours, second[begin : begin + len(ours)])


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
    """The vocabulary and the metadata beside the shards."""
    for name, compare in ((VOCABULARY_FILE, _compare_vocabulary), (METADATA_FILE, _compare_metadata)):
        there = [(folder / name).is_file() for folder in (first, second)]
        if there == [True, True]:
            if _same_bytes(first / name, second / name):
                comparison.identical.append(prefix + name)
            else:
                compare(prefix + name, first / name, second / name, comparison)
        elif any(there):
            comparison.notes.append(f"{prefix}{name} is only in {'A' if there[0] else 'B'}")


def _compare_vocabulary(name: str, first: Path, second: Path, comparison: Comparison) -> None:
    lines = [path.read_bytes().replace(b"\r\n", b"\n").rstrip(b"\n").split(b"\n") for path in (first, second)]
    if lines[0] == lines[1]:
        comparison.notes.append(f"{name} has other line ends")
        return
    row = next((i for i, pair in enumerate(zip(*lines, strict=False)) if pair[0] != pair[1]), min(map(len, lines)))
    say = f"{len(lines[0]):,} pieces in A, {len(lines[1]):,} in B; the first other one is in line {row + 1}"
    comparison.differences.append(Difference(name, say, None, row))


def _compare_metadata(name: str, first: Path, second: Path, comparison: Comparison) -> None:
    try:
        found = [read_json(path) or {} for path in (first, second)]
    except InputError as error:
        comparison.differences.append(Difference(name, f"cannot be compared: {error}"))
        return
    for key in sorted({*found[0], *found[1]}):
        ours, theirs = (values.get(key) for values in found)
        if ours == theirs or (key == "shards" and _same_names(ours, theirs)):
            continue
        say = f"{key} is {_short_json(ours)} in A, {_short_json(theirs)} in B"
        if key in _CONTENT_KEYS:
            comparison.differences.append(Difference(name, say))
        else:
            comparison.notes.append(f"{name}: {say}")


def _same_names(first: Any, second: Any) -> bool:
    return isinstance(first, list) and isinstance(second, list) and sorted(map(str, first)) == sorted(map(str, second))


def _short_json(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
