"""The results of a text classification, read from any one of the files that a training leaves beside its CSV.

<root>_train_test_stats.json        everything below, as one document
<root>_testset_predictions.csv      prediction, true_label
<root>_trained_model/               weights, config.json, vocab.txt, and the same document as results.json
<root>.sqlite                       the data; the document of each run, in the table runs
"""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from common.errors import InputError
from common.reading import read_errors, read_regular
from records.files import check_version, record_errors

Pairs = Mapping[tuple[str, str], int]
"""(true label, predicted label) -> how often."""
FORMAT = "bertbench classification result"
SCHEMA_VERSION = 1
STATISTICS_ENDING = "_train_test_stats.json"
PREDICTIONS_ENDING = "_testset_predictions.csv"
MODEL_ENDING = "_trained_model"
_ENDINGS = (STATISTICS_ENDING, PREDICTIONS_ENDING, MODEL_ENDING)
RESULTS_FILE = "results.json"
PREDICTION_COLUMNS = ("prediction", "true_label")
_SQLITE = b"SQLite format 3\0"
DATABASE_ID = 0x62627463
"""Application id of databases of texts (bert.tasks.classify.store)."""
_MOST_BYTES = 1 << 30
_OTHERS = "train again, or give another file of the training"
_NEEDED = "give a file of `bertbench train classify`: *_train_test_stats.json, *_testset_predictions.csv, "
_NEEDED += "*_trained_model or *.sqlite"


@dataclass(frozen=True, slots=True)
class ClassificationResult:
    """Results of a training."""

    path: Path
    pairs: Pairs
    """(true label, prediction) -> texts of the test split."""
    labels: tuple[str, ...] = ()
    """Labels in the order of their codes; empty if the file does not say."""
    distribution: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    curve: Sequence[tuple[int, float]] = ()
    """(updates applied, training loss)."""
    evaluations: Sequence[Mapping[str, Any]] = ()
    """Scores on the validation split, with `applied_steps`."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """How it was trained, by name."""

    @property
    def root(self) -> Path:
        """What the names of the files begin with."""
        return root_of(self.path)


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Test(msgspec.Struct):
    confusion: Annotated[list[tuple[str, str, _Count]], msgspec.Meta(min_length=1)]


class _Document(msgspec.Struct):
    test: _Test
    labels: tuple[str, ...]
    label_distribution: dict[str, dict[str, _Count]]
    curve: list[tuple[int, float]]
    evaluations: list[dict[str, Any]]
    run: dict[str, Any]


def root_of(path: Path) -> Path:
    """Return what the names of a training's files begin with: the CSV without its ending."""
    path = path.resolve()
    for ending in _ENDINGS:
        if path.name.endswith(ending) and path.name != ending:
            return path.with_name(path.name.removesuffix(ending))
    return path.with_suffix("")


def is_classification(path: Path) -> bool:
    """Return whether a path has the name or the kind of a file that holds the results of a training."""
    if path.name.endswith(_ENDINGS) or not path.is_file():
        return path.name.endswith(_ENDINGS)
    with path.open("rb") as file:
        return file.read(72)[68:] == DATABASE_ID.to_bytes(4, "big")


def read_result(path: Path) -> ClassificationResult:
    """Read the results of a training by any one of its files.

    A database is read by the statistics beside it; so is what a file of predictions lacks, where they agree with it.

    Raises:
        InputError: it is missing, damaged, or none of them.
        SchemaError: another version wrote it.
    """
    if path.is_dir():
        return replace(_of_document(path / RESULTS_FILE), path=path)
    with read_errors(path, _NEEDED), path.open("rb") as file:
        head = file.read(16)
    if not head:
        raise InputError("file-empty", f"{path} is empty, 0 bytes: {_NEEDED}")
    if head == _SQLITE:
        return replace(_of_document(_statistics(path)), path=path)
    if path.suffix == ".json":
        return _of_document(path)
    if path.suffix == ".csv":
        return _of_predictions(path)
    raise InputError("file-format", f"{path} is not a classification result: {_NEEDED}")


def _of_document(path: Path, text: str | bytes | None = None) -> ClassificationResult:
    with record_errors(path, _OTHERS):
        document = msgspec.json.decode(read_regular(path, _MOST_BYTES) if text is None else text)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError("record-foreign", f"{path} is not a classification result: {_NEEDED}")
    check_version(path, document.get("schema_version"), SCHEMA_VERSION)
    with record_errors(path, _OTHERS):
        content = msgspec.convert(document, _Document)
    return ClassificationResult(
        path=path,
        pairs={(true, predicted): count for true, predicted, count in content.test.confusion},
        labels=content.labels,
        distribution=content.label_distribution,
        curve=content.curve,
        evaluations=[
            {name: value for name, value in one.items() if name == "applied_steps" or isinstance(value, float)}
            for one in content.evaluations
        ],
        run=content.run,
    )


def _statistics(path: Path) -> Path:
    return root_of(path).with_name(f"{root_of(path).name}{STATISTICS_ENDING}")


def _of_predictions(path: Path) -> ClassificationResult:
    pairs = read_predictions(path)
    try:
        beside = _of_document(_statistics(path))
    except InputError:
        return ClassificationResult(path, pairs)
    return replace(beside, path=path) if beside.pairs == pairs else ClassificationResult(path, pairs)


def read_predictions(path: Path) -> Pairs:
    """Read a file of predictions. Raises InputError if it is none; the message has the line."""
    pairs: Counter[tuple[str, str]] = Counter()
    with record_errors(path, _OTHERS), path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        if not set(PREDICTION_COLUMNS) <= set(rows.fieldnames or ()):
            raise InputError("columns-missing", f"{path} lacks a column of {', '.join(PREDICTION_COLUMNS)}: {_NEEDED}")
        for row in rows:
            if None in (row["true_label"], row["prediction"]):
                raise InputError("rows-invalid", f"{path} line {rows.line_num} is cut short: remove that line")
            pairs[row["true_label"], row["prediction"]] += 1
    if not pairs:
        raise InputError("file-empty", f"{path} holds no predictions: {_OTHERS}")
    return dict(pairs)
