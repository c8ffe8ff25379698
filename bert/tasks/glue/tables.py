"""What the nine tasks of GLUE are (Wang et al. 2018, arXiv 1804.07461, table 1), and the rows of their tables.

Tables are tab-separated text in which quotes mean nothing, or data sets of `datasets`. Classes are in the order of the
published one (nyu-mll/glue). Imports no torch.
"""

import hashlib
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert.data.finished import Counts
from common.errors import Code, InputError, MissingToolError
from common.reading import decoded, read_content
from common.registry import lookup

TRAIN = "train"
REGRESSION_RANGE = (0.0, 5.0)
"""Range of the labels of STS-B."""
DIAGNOSTIC = "test_diagnostic"
"""Answered by a model of MNLI."""
LEFT_OUT = "left out: "
"""Begin of the names of counts of unusable rows."""
_BINARY = ("0", "1")
_ENTAILMENT = ("entailment", "not_entailment")
_SERVER_FILES = {"test_matched": "MNLI-m", "test_mismatched": "MNLI-mm", DIAGNOSTIC: "AX"}
_EMPTY = "empty sentences"
_MOST_UNUSABLE, _LEAST_UNUSABLE = 0.1, 5
"""A table with more unusable rows than this share, and this number, is taken for something else."""
_OLDEST = 4
"""Release of `datasets` since which a dataset is data alone: before it came with programs, which were run."""

Raw = tuple[str, str, list[str], str]
"""A row as it is written: its place in words, its number, its texts (none where it does not fit the header), label."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GlueSpec:
    """One task."""

    name: str
    folder: str
    """In the published archive."""
    texts: tuple[str, ...] = ("sentence1", "sentence2")
    """Columns of its one or two sentences."""
    hub_texts: tuple[str, ...] = ()
    """The same in `datasets`; empty where they are the same."""
    label: str = "label"
    classes: tuple[str, ...] = ()
    """Labels as the tables have them: class i is classes[i]. None: the label is a number (a regression)."""
    metrics: tuple[str, ...] = ("accuracy",)
    """What the benchmark reports, by the names of bert.tasks.glue.task; its own score of a task is their mean."""
    index: str = "index"
    """Column that numbers the rows, where a table has it; else rows are numbered from 0."""
    headless: tuple[str, ...] = ()
    """Columns of the tables with labels, where these have no header."""
    splits: tuple[str, ...] = (TRAIN, "dev", "test")
    """Its tables: training, evaluation, test."""

    @property
    def labels(self) -> int:
        """Outputs of the model: classes, or 1 for a number."""
        return len(self.classes) or 1

    @property
    def is_regression(self) -> bool:
        """Whether the label is a number."""
        return not self.classes

    @property
    def headline(self) -> str:
        """The score that decides which checkpoint is the best."""
        return "_".join(self.metrics) if self.is_regression else self.metrics[0]

    @property
    def evaluations(self) -> tuple[str, ...]:
        """Splits with labels that nothing is trained on, the one that training is evaluated on first."""
        return tuple(split for split in self.splits if split.startswith("dev"))

    def answer_file(self, split: str) -> str:
        """Return the name of the file of a split's answers; that of a test split is the one GLUE's server knows."""
        return f"{_SERVER_FILES.get(split, self.folder if is_test(split) else f'{self.folder}-{split}')}.tsv"


def is_test(split: str) -> bool:
    """Whether only the benchmark has the labels of a split."""
    return split.startswith("test")


_ALL = (
    GlueSpec(
        name="cola", folder="CoLA", texts=("sentence",), classes=_BINARY, metrics=("matthews",),
        headless=("source", "label", "original_label", "sentence"),
    ),
    GlueSpec(name="sst2", folder="SST-2", texts=("sentence",), classes=_BINARY),
    GlueSpec(
        name="mrpc", folder="MRPC", texts=("#1 String", "#2 String"), hub_texts=("sentence1", "sentence2"),
        label="Quality", classes=_BINARY, metrics=("f1_score", "accuracy"),
    ),
    GlueSpec(
        name="qqp", folder="QQP", texts=("question1", "question2"), label="is_duplicate", classes=_BINARY,
        metrics=("f1_score", "accuracy"), index="id",
    ),
    GlueSpec(name="stsb", folder="STS-B", label="score", metrics=("pearson", "spearman")),
    GlueSpec(
        name="mnli", folder="MNLI", hub_texts=("premise", "hypothesis"), label="gold_label",
        classes=("entailment", "neutral", "contradiction"),
        splits=(TRAIN, "dev_matched", "dev_mismatched", "test_matched", "test_mismatched", DIAGNOSTIC),
    ),
    GlueSpec(name="qnli", folder="QNLI", texts=("question", "sentence"), classes=_ENTAILMENT),
    GlueSpec(name="rte", folder="RTE", classes=_ENTAILMENT),
    GlueSpec(name="wnli", folder="WNLI", classes=_BINARY),
)  # fmt: skip
TASKS = {spec.name: spec for spec in _ALL}


def task_of(name: str) -> GlueSpec:
    """Return a task by its name. Raises UsageError that lists the names."""
    return lookup(TASKS, name, "task of GLUE")


@dataclass(frozen=True, slots=True)
class GlueRow:
    """One example."""

    index: int
    """Its number in the table, which answers are handed in with."""
    first: str
    second: str | None
    """None if the task has one sentence."""
    label: float | None
    """Number of the class, or the number that is to be found; None in a test table."""


@dataclass(frozen=True, slots=True)
class GlueTable:
    """The rows of a file, or of what stands for it, that can be used, and counts of those that cannot."""

    source: Path
    rows: tuple[GlueRow, ...]
    counts: Counts

    @property
    def fingerprint(self) -> str:
        """Return a hash of the rows, wherever they were read from."""
        digest = hashlib.blake2b(digest_size=16)
        for row in self.rows:
            # Six digits: `datasets` keeps numbers as float32.
            label = "" if row.label is None else f"{row.label:.6g}"
            line = "\t".join((str(row.index), label, row.first, row.second or ""))
            digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
        return digest.hexdigest()


def find_table(folder: Path, spec: GlueSpec, split: str) -> Path | None:
    """Return the table of a split by its published name, in GLUE's archive or the folder of the task."""
    place, name = ("diagnostic", "diagnostic") if split == DIAGNOSTIC else (spec.folder, split)
    path = (folder if folder.resolve().name == place else folder / place) / f"{name}.tsv"
    return path if path.is_file() else None


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file, plain or gzip, which only a line feed ends; at least one. Raises InputError."""
    remedy = "give a table of GLUE"
    text = decoded(path, read_content(path, "GLUE table", remedy, packed=True), "table", remedy)
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]


def read_table(path: Path, spec: GlueSpec, split: str) -> GlueTable:
    """Read a file. Lines that cannot be used are left out and counted.

    Raises InputError: it cannot be read, has not the columns of the split, or too many lines cannot be used.
    """
    return _table(path, spec, split, _lines(path, spec, split))


def _lines(path: Path, spec: GlueSpec, split: str) -> Iterator[Raw]:
    lines = read_lines(path)
    headless = () if is_test(split) else spec.headless
    names = [name.strip() for name in headless or lines[0].split("\t")]
    needed = [*spec.texts, *([] if is_test(split) else [spec.label])]
    if not set(needed) <= set(names):
        given, wanted = ", ".join(names)[:200], f"{spec.name}'s {split} table, {', '.join(needed)}"
        raise InputError("columns-missing", f"{path}, line 1: {given!r} lacks columns of {wanted}: give that table")
    # Nothing is handed in for rows that are trained on: their numbers need not be unique.
    has_index = spec.index in names and split != TRAIN
    first = 1 if headless else 2
    for number, line in enumerate(lines if headless else lines[1:]):
        if line.strip():
            fields = line.split("\t")
            row = dict(zip(names, fields, strict=False)) if len(fields) == len(names) else {}
            index = row.get(spec.index, "") if has_index else str(number)
            yield f"line {number + first}", index, [row[name] for name in spec.texts if row], row.get(spec.label, "")


def read_hub(name: str, spec: GlueSpec) -> dict[str, GlueTable]:
    """Return the tables of a task by split; `name` is what datasets.load_dataset takes.

    Raises InputError (it cannot be loaded, or is no task of GLUE) and MissingToolError (no library, or too old a one).
    """
    try:
        import datasets
    except ImportError as error:
        remedy = "pip install datasets, or give --input FOLDER"
        raise MissingToolError("package-missing", f"--dataset needs `datasets`: {remedy}") from error
    if int(datasets.__version__.split(".")[0]) < _OLDEST:
        remedy = f"pip install 'datasets>={_OLDEST}'"
        raise MissingToolError("tool-version", f"datasets {datasets.__version__} runs code of a dataset: {remedy}")
    datasets.disable_progress_bars()
    try:
        loaded = datasets.load_dataset(name, spec.name)  # nosec B615 # whose name and version the user chooses
    except Exception as error:  # the library raises what the network, the hub or pyarrow raise
        call = f"datasets.load_dataset({name!r}, {spec.name!r})"
        raise InputError("download-failed", f"{call} failed ({error}): give another --dataset, or --input") from error
    places = {split: hub_split(split) for split in spec.splits if hub_split(split) in loaded}
    if not places:
        raise InputError("data-missing", f"the dataset {name} has no split of GLUE's {spec.name}, only {[*loaded]}")
    return {
        split: _table(Path(f"{name}/{spec.name}/{place}"), spec, split, _examples(spec, split, loaded[place]))
        for split, place in places.items()
    }


def hub_split(split: str) -> str:
    """Return what `datasets` calls a split: validation instead of dev."""
    return split.replace("dev", "validation", 1)


def _examples(spec: GlueSpec, split: str, data: Any) -> Iterator[Raw]:
    texts = spec.hub_texts or spec.texts
    names = getattr(data.features.get("label"), "names", None) or spec.classes
    classes = spec.classes if set(spec.classes) == {"0", "1"} else tuple(names)
    has_columns = {*texts, "label"} <= {*data.column_names}
    if not has_columns or sorted(classes) != sorted(spec.classes) or len(names) != len(classes):
        given, wanted = f"columns {data.column_names}, classes {names}", f"{texts}, label, classes {spec.classes}"
        raise InputError("columns-missing", f"the dataset has {given}, {spec.name} needs {wanted}: give another")
    has_index = "idx" in data.column_names and split != TRAIN
    for number, row in enumerate(data):
        value = row["label"]
        # The library writes a missing label as -1.
        label = "" if value in (None, -1) else str(value) if spec.is_regression else classes[value]
        index = str(row["idx"] if has_index else number)
        yield f"row {number}", index, [str(row[name]) for name in texts], label


def _table(source: Path, spec: GlueSpec, split: str, raw: Iterable[Raw]) -> GlueTable:
    """Return the rows that can be used, and counts of the others. Raises InputError if these are too many."""
    rows: list[GlueRow] = []
    counts, seen, unusable = Counts({"rows": 0}), set[int](), 0
    for place, index, texts, label in raw:
        number, value = row_number(index), None if is_test(split) else label_of(spec, label.strip())
        if not texts:
            reason = "another number of fields than the header"
        elif number is None or number in seen:
            reason = "no number in the index" if number is None else "index used before"
        elif value is None and not is_test(split):
            reason = "no label" if label.strip() in ("", "-") else "unknown label"
        else:
            seen.add(number)
            counts.add("rows")
            if not all(text.strip() for text in texts):
                counts.add(_EMPTY, example=place)
            rows.append(GlueRow(number, texts[0], texts[1] if len(texts) > 1 else None, value))
            continue
        unusable += 1
        counts.add(f"{LEFT_OUT}{reason}", example=place)
    if not rows or unusable > max(_LEAST_UNUSABLE, _MOST_UNUSABLE * (unusable + len(rows))):
        reasons = "; ".join(f"{name}: {', '.join(places)}" for name, places in counts.names.items() if name != _EMPTY)
        share = f"{unusable:,} of the {unusable + len(rows):,} rows of {source}"
        code: Code = "rows-invalid" if unusable else "file-empty"
        raise InputError(code, f"{share} are not usable ({reasons}): download it again")
    return GlueTable(source, tuple(rows), counts)


def label_of(spec: GlueSpec, text: str, anywhere: bool = False) -> float | None:
    """Return the class, or the number in the labels' range or `anywhere`, that a text stands for; None for none."""
    if spec.classes:
        return float(spec.classes.index(text)) if text in spec.classes else None
    try:
        value = float(text)
    except ValueError:
        return None
    low, high = REGRESSION_RANGE
    return value if math.isfinite(value) and (anywhere or low <= value <= high) else None


def row_number(text: str) -> int | None:
    """Return the number that a row has in its table; None for none: 18 digits are what an int64 holds for certain."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None
