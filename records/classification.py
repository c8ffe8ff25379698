"""The results of a text classification, read from any one of the files that a training leaves beside its CSV.

<root>_train_test_stats.json        everything below, as one document
<root>_testset_predictions.csv      prediction, true_label
<root>_trained_model/               weights, config.json, vocab.txt, and the same document as results.json
<root>.sqlite                       the document of each run, in the table runs
"""

import csv
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from common.errors import InputError, SchemaError, content_code
from common.reading import read_regular
from common.sqlite import connected

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
DATABASE_ID, DATABASE_VERSION = 0x62627463, 5
"""Application id of databases of texts, and the version of their tables (bert.tasks.classify.store)."""
_OTHERS = "train again, or give another file of the training"
_NEEDED = "give a file written by `bertbench train classify`: *_train_test_stats.json, *_testset_predictions.csv, "
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
    confusion: list[tuple[str, str, _Count]]


class _Document(msgspec.Struct):
    """What a training writes beside its CSV."""

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
    """Read the results that any one of the files holds.

    Predictions are those of the file where it has some; what a file of predictions lacks is taken from the statistics
    beside it, where those are of the same predictions.

    Raises:
        InputError: it is missing, damaged, or none of them.
        SchemaError: another version wrote it.
    """
    if path.is_dir():
        inner = path / RESULTS_FILE
        if not inner.is_file():
            raise InputError("run-incomplete", f"{path} holds no {RESULTS_FILE}: {_NEEDED}")
        return replace(_of_document(inner, _read_json(inner)), path=path)
    if not path.is_file():
        raise InputError("path-missing", f"{path} does not exist: {_NEEDED}")
    with path.open("rb") as file:
        head = file.read(16)
    if not head:
        raise InputError("file-empty", f"{path} is empty, 0 bytes: {_NEEDED}")
    if head == _SQLITE:
        return _of_database(path)
    if path.suffix == ".json":
        return _of_document(path, _read_json(path))
    if path.suffix == ".csv":
        return _of_predictions(path)
    raise InputError("file-format", f"{path} is not a classification result: {_NEEDED}")


def _of_document(path: Path, document: Any) -> ClassificationResult:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError("record-foreign", f"{path} is not a classification result: {_NEEDED}")
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise SchemaError(
            "record-version",
            f"{path} has schema version {version!r}, but this bertbench reads {SCHEMA_VERSION}: {_OTHERS}",
        )
    try:
        content = msgspec.convert(document, _Document)
    except msgspec.ValidationError as error:
        raise InputError("file-damaged", f"{path} is damaged ({error}): {_OTHERS}") from error
    pairs = {(true, predicted): count for true, predicted, count in content.test.confusion}
    if not any(pairs.values()):
        raise InputError("file-damaged", f"{path} is damaged (no prediction): {_OTHERS}")
    return ClassificationResult(
        path=path,
        pairs=pairs,
        labels=tuple(dict.fromkeys(content.labels)),
        distribution=content.label_distribution,
        curve=content.curve,
        evaluations=[
            {name: value for name, value in one.items() if name == "applied_steps" or isinstance(value, float)}
            for one in content.evaluations
        ],
        run=content.run,
    )


def _of_database(path: Path) -> ClassificationResult:
    with connected(path, _OTHERS) as connection:
        program, version = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if program != DATABASE_ID:
            raise InputError("record-foreign", f"{path} is a SQLite file of another program: {_NEEDED}")
        if version != DATABASE_VERSION:
            raise SchemaError(
                "record-version",
                f"{path} has schema version {version}, but this bertbench reads {DATABASE_VERSION}: {_OTHERS}",
            )
        found = connection.execute("SELECT value FROM meta WHERE name = 'fingerprint'").fetchone()
        rows = connection.execute("SELECT fingerprint, result FROM runs ORDER BY number DESC").fetchall()
    if not rows:
        raise InputError("run-incomplete", f"{path} has no result yet: train with `bertbench train classify {path}`")
    try:
        fingerprint = json.loads(found[0])
        own = [result for of, result in rows if of == fingerprint]
        if not own:
            raise InputError(
                "data-mismatch",
                f"{path} was recreated with different samples after its {len(rows)} result{'s' * (len(rows) != 1)}: "
                f"train with `bertbench train classify {path}`, or give another file of the training",
            )
        return _of_document(path, json.loads(own[0]))
    except (ValueError, TypeError) as error:
        raise InputError("file-damaged", f"{path} is damaged: its last result is not JSON: {_OTHERS}") from error


def _of_predictions(path: Path) -> ClassificationResult:
    statistics = root_of(path).with_name(f"{root_of(path).name}{STATISTICS_ENDING}")
    pairs = read_predictions(path)
    try:
        beside = _of_document(statistics, _read_json(statistics))
    except InputError:
        return ClassificationResult(path, pairs)
    return replace(beside, path=path) if beside.pairs == pairs else ClassificationResult(path, pairs)


def read_predictions(path: Path) -> Pairs:
    """Read a file of predictions. Raises InputError if it is none; the message has the line."""
    found: Counter[tuple[str, str]] = Counter()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(file)
            header = next(rows, [])
            if not set(PREDICTION_COLUMNS) <= set(header):
                raise InputError(
                    "columns-missing",
                    f"{path} lacks the columns {' and '.join(PREDICTION_COLUMNS)}: {_NEEDED}",
                )
            given, true = (header.index(name) for name in PREDICTION_COLUMNS)
            for row in rows:
                if len(row) <= max(given, true):
                    raise InputError(
                        "rows-invalid", f"{path} line {rows.line_num} has {len(row)} fields, too few: remove that line"
                    )
                found[row[true], row[given]] += 1
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(content_code(error), f"cannot read {path}: {error}; give a file of predictions") from error
    if not found:
        raise InputError(
            "file-empty", f"{path} holds no predictions: train again, or give another file of the training"
        )
    return dict(found)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(read_regular(path, 2**30).decode())
    except OSError as error:
        raise InputError(content_code(error), f"cannot read {path}: {error.strerror}; {_NEEDED}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(content_code(error), f"{path} is not JSON ({error}): {_NEEDED}") from error
