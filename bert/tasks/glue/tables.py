"""Rows of a GLUE table, from tab-separated text in which quotes mean nothing or from `datasets`. Imports no torch."""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert.data.finished import Counts
from bert.tasks.glue.tasks import DIAGNOSTIC, REGRESSION_RANGE, TRAIN, GlueSpec, is_test
from common.errors import InputError, MissingToolError
from common.reading import decoded, read_content

MOST_UNUSABLE = 0.1
"""Share of lines that cannot be used from which on a table is taken for something else."""
_LEAST_UNUSABLE = 5
LEFT_OUT = "left out: "
"""Begin of the names of counts of unusable rows."""
EMPTY = "empty sentences"
"""Name of the count of rows with an empty text, which are kept."""
MOST_BYTES = 2**30
"""Size, unpacked, beyond which a file is taken for something else (GLUE's largest has 71 MB)."""
_ENDINGS = (".tsv", ".tsv.gz")
_OLDEST = 4
"""Release of `datasets` since which a dataset is data alone: before it came with programs, which were run."""

Raw = tuple[str, str, list[str], str]
"""A row as it is written: its place in words, its number, its texts (none where it does not fit the header), label."""


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
    """What was met: 'rows', and what was left out with the first places."""

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


def find_table(folder: Path, spec: GlueSpec, split: str) -> Path | None:
    """Return the table of a split by its published name, plain or gzip, in GLUE's archive or the folder of the task."""
    place, name = ("diagnostic", "diagnostic") if split == DIAGNOSTIC else (spec.folder, split)
    home = folder if folder.resolve().name == place else folder / place
    return next((path for ending in _ENDINGS if (path := home / f"{name}{ending}").is_file()), None)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file, plain or gzip, which only a line feed ends; at least one. Raises InputError."""
    remedy = "give a table of GLUE"
    text = decoded(path, read_content(path, "GLUE table", remedy, MOST_BYTES, packed=True), "table", remedy)
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def read_table(path: Path, spec: GlueSpec, split: str) -> GlueTable:
    """Read a file. Lines that cannot be used are left out and counted.

    Raises:
        InputError: it cannot be read, has not the columns of the split, or too many lines cannot be used.
    """
    return _table(path, spec, split, _lines(path, spec, split))


def _lines(path: Path, spec: GlueSpec, split: str) -> Iterator[Raw]:
    lines = read_lines(path)
    headless = spec.headless if not is_test(split) else ()
    names = [name.strip() for name in headless or lines[0].split("\t")]
    needed = [*spec.texts, *([] if is_test(split) else [spec.label])]
    if not set(needed) <= set(names):
        raise InputError(
            "columns-missing",
            f"{path}, line 1: {', '.join(names)[:200]!r} has not the columns of {spec.name}'s {split} table, "
            f"{', '.join(needed)}: give that table",
        )
    # Nothing is handed in for rows that are trained on: their numbers need not be unique.
    has_index = spec.index in names and split != TRAIN
    for number, line in enumerate(lines if headless else lines[1:]):
        if line.strip():
            fields = line.split("\t")
            row = dict(zip(names, fields, strict=False)) if len(fields) == len(names) else {}
            index = row.get(spec.index, "") if has_index else str(number)
            place = f"line {number + (1 if headless else 2)}"
            yield place, index, [row[name] for name in spec.texts if row], row.get(spec.label, "")


def read_hub(name: str, spec: GlueSpec) -> dict[str, GlueTable]:
    """Return the tables of a task by split; `name` is what datasets.load_dataset takes.

    Raises:
        InputError: the library cannot load it, or it is no task of GLUE.
        MissingToolError: the library is missing or too old.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingToolError(
            "package-missing", "--dataset needs `datasets`: pip install datasets, or give --input FOLDER"
        ) from error
    if int(datasets.__version__.split(".")[0]) < _OLDEST:
        raise MissingToolError(
            "tool-version",
            f"datasets {datasets.__version__} runs code of a dataset: pip install 'datasets>={_OLDEST}'",
        )
    datasets.disable_progress_bars()
    try:
        loaded = datasets.load_dataset(name, spec.name)  # nosec B615 # whose name and version the user chooses
    except Exception as error:  # the library raises what the network, the hub or pyarrow raise
        raise InputError(
            "download-failed",
            f"datasets.load_dataset({name!r}, {spec.name!r}) failed ({error}): give another --dataset, or --input",
        ) from error
    tables = {
        split: _table(Path(f"{name}/{spec.name}/{hub_split(split)}"), spec, split, _examples(spec, split, data))
        for split in spec.splits
        if (data := loaded.get(hub_split(split))) is not None
    }
    if not tables:
        raise InputError("data-missing", f"the dataset {name} has no split of GLUE's {spec.name}, only {[*loaded]}")
    return tables


def hub_split(split: str) -> str:
    """Return what `datasets` calls a split: validation instead of dev."""
    return split.replace("dev", "validation", 1)


def _examples(spec: GlueSpec, split: str, data: Any) -> Iterator[Raw]:
    texts = spec.hub_texts or spec.texts
    if missing := {*texts, "label"} - {*data.column_names}:
        raise InputError(
            "columns-missing",
            f"the dataset has no columns {', '.join(missing)} of {spec.name}, but {data.column_names}",
        )
    names = getattr(data.features["label"], "names", None) or spec.classes
    classes = spec.classes if set(spec.classes) == {"0", "1"} else tuple(names)
    if len(names) != len(spec.classes) or set(classes) != set(spec.classes):
        raise InputError("labels-invalid", f"the dataset has the classes {names}, but {spec.name} {spec.classes}")
    has_index = "idx" in data.column_names and split != TRAIN
    for number, row in enumerate(data):
        value = row["label"]
        # The library writes a missing label as -1.
        label = "" if value in (None, -1) else str(value) if spec.is_regression else classes[value]
        index = row["idx"] if has_index else number
        yield f"row {number}", str(index), [str(row[name]) for name in texts], label


def _table(source: Path, spec: GlueSpec, split: str, raw: Iterable[Raw]) -> GlueTable:
    """Return the rows that can be used, and counts of the others. Raises InputError if these are too many."""
    rows: list[GlueRow] = []
    counts, seen, total = Counts({"rows": 0}), set[int](), 0
    for place, index, texts, label in raw:
        total += 1
        number, value = row_number(index), None if is_test(split) else label_of(spec, label.strip())
        reason = None
        if not texts:
            reason = "another number of fields than the header"
        elif number is None or number in seen:
            reason = "no number in the index" if number is None else "index used before"
        elif value is None and not is_test(split):
            reason = "no label" if label.strip() in ("", "-") else "unknown label"
        if reason is not None or number is None:
            counts.add(f"{LEFT_OUT}{reason}", example=place)
            continue
        seen.add(number)
        counts.add("rows")
        if not all(text.strip() for text in texts):
            counts.add(EMPTY, example=place)
        rows.append(GlueRow(number, texts[0], texts[1] if len(texts) > 1 else None, value))
    unusable = total - len(rows)
    reasons = "; ".join(f"{name}: {', '.join(places)}" for name, places in counts.names.items() if name != EMPTY)
    if not rows or unusable > max(_LEAST_UNUSABLE, MOST_UNUSABLE * total):
        raise InputError(
            "rows-invalid" if unusable else "file-empty",
            f"{unusable:,} of the {total:,} rows of {source} are not usable ({reasons}): download it again",
        )
    return GlueTable(source, tuple(rows), counts)


def label_of(spec: GlueSpec, text: str, anywhere: bool = False) -> float | None:
    """Return the class, or the number, that a text stands for; None for none.

    With `anywhere` numbers may lie out of the range of the labels, as those that a model finds.
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
