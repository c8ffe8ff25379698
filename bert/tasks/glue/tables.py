"""Rows of a GLUE table: tab-separated text in which quotes mean nothing. Imports no torch."""

import hashlib
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert.corpus.files import blocks, refuse_other_files
from bert.data.finished import Counts
from bert.tasks.glue.tasks import REGRESSION_RANGE, TRAIN, GlueSpec
from common.errors import InputError, read_code
from common.reading import decoded

MOST_UNUSABLE = 0.1
"""Share of lines that cannot be used from which on a table is taken for something else."""
_LEAST_UNUSABLE = 5
MOST_BYTES = 2**30
"""Size, unpacked, beyond which a file is taken for something else (GLUE's largest has 71 MB)."""
NO_LABEL = "left out: no label"
WRONG_LABEL = "left out: unknown label"
RAGGED = "left out: another number of fields than the header"
NO_INDEX = "left out: no number in the index"
REPEATED = "left out: index used before"
EMPTY = "empty sentences"
"""Name of the count of rows with an empty text, which are kept."""
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class GlueRow:
    """One example."""

    index: int
    """Its number in the table, which answers are handed in with."""
    first: str
    """Its sentence, or the first of two."""
    second: str | None
    """The second one; None if the task has none."""
    label: float | None
    """Number of the class, or the number that is to be found; None in a test table."""


@dataclass(frozen=True, slots=True)
class GlueTable:
    """What a table holds."""

    source: Path
    """The file, or what stands for it."""
    rows: tuple[GlueRow, ...]
    """Those that can be used, in order."""
    counts: Counts
    """What was met: 'rows', and what was left out with the numbers of the first lines."""

    @property
    def fingerprint(self) -> str:
        """Return a hash of the rows, wherever they were read from."""
        digest = hashlib.blake2b(digest_size=16)
        for row in self.rows:
            # Six digits: `datasets` keeps numbers as float32.
            label = "" if row.label is None else f"{row.label:.6g}"
            values = (str(row.index), label, row.first, "" if row.second is None else row.second)
            digest.update("\t".join(values).encode("utf-8", "surrogatepass") + b"\n")
        return digest.hexdigest()


def read_table(path: Path, spec: GlueSpec, split: str) -> GlueTable:
    """Read a table.

    Quotes are plain characters, only a line feed ends a line. Lines that cannot be used are left out and counted.

    Args:
        path: plain, gzip or bz2; UTF-8, with or without a byte order mark.
        spec: its task.
        split: which of the task's tables it is.
    """
    lines = read_lines(path)
    columns, begin = _columns(lines, spec, split)
    layout = _layout(path, spec, split, columns)
    counts = Counts({"rows": 0})
    rows = tuple(_rows(lines[begin:], begin + 1, layout, spec, counts))
    table = GlueTable(path, rows, counts)
    check_table(table, sum(1 for line in lines[begin:] if line.strip()))
    return table


def _columns(lines: Sequence[str], spec: GlueSpec, split: str) -> tuple[tuple[str, ...], int]:
    headless = spec.headless.get(split)
    return (tuple(lines[0].split("\t")), 1) if headless is None else (headless, 0)


def check_table(table: GlueTable, lines: int) -> None:
    """Refuse a table with no row, or of which too much was left out. Raises InputError."""
    left_out = lines - len(table.rows)
    reasons = "; ".join(
        f"{name.removeprefix('left out: ')}: {count:,} ({', '.join(table.counts.names.get(name, ()))})"
        for name, count in table.counts.numbers.items()
        if name.startswith("left out")
    )
    if not table.rows:
        raise InputError(
            "rows-invalid" if reasons else "file-empty",
            f"{table.source} holds no usable row ({reasons or 'it is empty'}): download it again",
        )
    if left_out > max(_LEAST_UNUSABLE, MOST_UNUSABLE * lines):
        raise InputError(
            "rows-invalid",
            f"{left_out:,} of the {lines:,} rows of {table.source} are not usable ({reasons}): correct it or download "
            "it again",
        )


def read_lines(path: Path, wanted: str = "a table of GLUE") -> list[str]:
    """Return the lines of a text file, which only a line feed ends; at least one.

    Args:
        path: the file.
        wanted: what is to be given where it cannot be read, in words.
    """
    try:
        refuse_other_files(path)
        content = bytearray()
        for block, _ in blocks(path):
            content += block
            if len(content) > MOST_BYTES:
                raise InputError(
                    "file-limit",
                    f"{path} holds more than {MOST_BYTES >> 20} MiB, too large for a GLUE table: give GLUE's tables",
                )
    except (EOFError, zlib.error) as error:
        raise InputError(
            read_code(error),
            f"{path} is truncated or damaged ({error}): download it again",
        ) from error
    except OSError as error:
        raise InputError(read_code(error), f"cannot read {path}: {error.strerror or error}; give {wanted}") from error
    text = decoded(path, bytes(content), "table", f"give {wanted}")
    if "\0" in text[:4096]:
        raise InputError("file-encoding", f"{path} holds NUL bytes and is not text: download it again")
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Positions of the required columns."""

    width: int
    texts: tuple[int, ...]
    label: int | None
    index: int | None


def _layout(path: Path, spec: GlueSpec, split: str, columns: Sequence[str]) -> _Layout:
    names = [name.strip() for name in columns]
    needed = [*spec.texts, *([] if split in spec.tests else [spec.label])]
    missing = [name for name in needed if name not in names]
    if missing:
        shown = ", ".join(repr(name[:_SHOWN]) for name in names[:12]) or "nothing"
        raise InputError(
            "columns-missing",
            f"{path}, line 1: the header of {spec.name}'s {split} table needs the columns {', '.join(needed)}, and "
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not among {shown}",
        )
    label = names.index(spec.label) if split not in spec.tests else None
    # Nothing is handed in for rows that are trained on: their numbers need not be unique.
    index = names.index(spec.index) if spec.index in names and split != TRAIN else None
    return _Layout(len(names), tuple(names.index(name) for name in spec.texts), label, index)


def _rows(lines: Iterable[str], first: int, layout: _Layout, spec: GlueSpec, counts: Counts) -> Iterator[GlueRow]:
    seen: set[int] = set()
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        place = f"line {first + number}"
        fields = line.split("\t")
        if len(fields) != layout.width:
            counts.add(RAGGED, example=f"{place}: {len(fields)} instead of {layout.width}")
            continue
        index = number if layout.index is None else row_number(fields[layout.index])
        texts = [fields[column] for column in layout.texts]
        label = None if layout.label is None else fields[layout.label]
        row = make_row(spec, index, texts, label, seen, counts, place, layout.label is not None)
        if row is not None:
            yield row


def make_row(
    spec: GlueSpec,
    index: int | None,
    texts: Sequence[str],
    label: str | None,
    seen: set[int],
    counts: Counts,
    place: str,
    has_labels: bool,
) -> GlueRow | None:
    """Return an example, or None if it cannot be used, which is counted.

    Args:
        spec: its task.
        index: its number; None if it has none.
        texts: its sentences.
        label: as it was written.
        seen: indexes of the rows before, to which this one's is added.
        counts: receives the counts.
        place: its place, in words.
        has_labels: whether it needs a label.
    """
    if index is None:
        counts.add(NO_INDEX, example=place)
        return None
    if index in seen:
        counts.add(REPEATED, example=f"{place}: {index}")
        return None
    value = None
    if has_labels:
        text = (label or "").strip()
        if text in ("", "-"):
            counts.add(NO_LABEL, example=place)
            return None
        value = label_of(spec, text)
        if value is None:
            counts.add(WRONG_LABEL, example=f"{place}: {text[:_SHOWN]!r}")
            return None
    if not all(text.strip() for text in texts):
        counts.add(EMPTY, example=place)
    seen.add(index)
    counts.add("rows")
    return GlueRow(index, texts[0], texts[1] if len(texts) > 1 else None, value)


def label_of(spec: GlueSpec, text: str, anywhere: bool = False) -> float | None:
    """Return the class, or the number, that a text stands for; None for none.

    Args:
        spec: the task.
        text: as it was written.
        anywhere: numbers may lie out of the range of the labels, as those that a model finds.
    """
    if spec.classes:
        return float(spec.classes.index(text)) if text in spec.classes else None
    try:
        value = float(text)
    except ValueError:
        return None
    low, high = (-math.inf, math.inf) if anywhere else REGRESSION_RANGE
    return value if math.isfinite(value) and low <= value <= high else None


def row_number(text: str) -> int | None:
    """Return the number that a row has in its table; None for none: 18 digits are what an int64 holds for certain."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


ENDINGS = (".tsv", ".tsv.gz")


def find_table(folder: Path, spec: GlueSpec, split: str) -> Path | None:
    """Return the table of a split by its published name, plain or gzip; None if there is none.

    Args:
        folder: GLUE's archive, or the folder of the task in it.
        spec: the task.
        split: which of the task's tables.
    """
    place, name = spec.elsewhere.get(split, (spec.folder, split))
    home = folder if folder.resolve().name == place else folder / place
    return next((path for ending in ENDINGS if (path := home / f"{name}{ending}").is_file()), None)


def missing_tables(folder: Path, spec: GlueSpec) -> list[str]:
    """Return a note on the missing tables of a task that has others; none if all are there."""
    missing = [split for split in spec.splits if split not in spec.elsewhere and not find_table(folder, spec, split)]
    names = ", ".join(f"{spec.folder}/{split}.tsv" for split in missing)
    return [f"{spec.name}: {names} (or .tsv.gz) not found in {folder}"] if missing else []
