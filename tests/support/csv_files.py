"""Small CSVs with a vocabulary of single letters, for tests of the classification of texts."""

import csv
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert.data.vocabulary import SPECIAL_PIECES
from bert.tasks.classify.prepare import CsvConfig, CsvSummary, prepare
from bert.tasks.classify.reading import CsvForm, FoundForm, Row, find_form, read_rows
from records.classification import FORMAT

WORDS = ("red", "green", "blue", "cat", "dog", "bird", "one", "two", "three")
LETTERS = string.ascii_lowercase + string.digits


def write_vocabulary(folder: Path) -> Path:
    """A vocab.txt that cuts every ASCII word into pieces: a few words, and all letters."""
    path = folder / "vocab.txt"
    pieces = [*SPECIAL_PIECES, *WORDS, *LETTERS, *(f"##{letter}" for letter in LETTERS), *".,!?'-=+@"]
    path.write_text("\n".join(pieces) + "\n")
    return path


def write_rows(path: Path, rows: Sequence[tuple[str, str]], header: tuple[str, str] = ("text", "label")) -> Path:
    """A CSV of texts and labels."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def read(path: Path, **given: object) -> tuple[FoundForm, list[Row], list[Row]]:
    """A CSV as it is read with what is given of its form: the form, the rows, and what was left out."""
    form = find_form(path, CsvForm(**given))  # type: ignore[arg-type]
    rows = list(read_rows(path, form))
    return form, [row for row in rows if not row.left_out], [row for row in rows if row.left_out]


def pairs(rows: list[Row]) -> list[tuple[str, str | None]]:
    """Text and label of each row."""
    return [(row.text, row.label) for row in rows]


def colours_and_animals(count: int) -> list[tuple[str, str]]:
    """Texts that a model learns to tell apart in a few steps: what they name is their label."""
    kinds = {"colour": WORDS[:3], "animal": WORDS[3:6], "number": WORDS[6:]}
    labels = list(kinds)
    return [
        (f"{kinds[label][number % 3]} {kinds[label][number // 3 % 3]} {LETTERS[number % 36]}{number}", label)
        for number in range(count)
        for label in [labels[number % len(labels)]]
    ]


def prepared(path: Path, **options: object) -> CsvSummary:
    """Prepare a CSV with the vocabulary beside it, made where it is missing."""
    vocabulary = path.parent / "vocab.txt"
    if not vocabulary.exists():
        write_vocabulary(path.parent)
    return prepare(CsvConfig(**{"input": path, "vocab": vocabulary, **options}), lambda stage, done, total: None)  # type: ignore[arg-type]


def document(**changes: Any) -> dict[str, Any]:
    """Return the document of a finished run, with changed fields."""
    return {
        "format": FORMAT,
        "schema_version": 1,
        "labels": ["spam", "ham"],
        "label_distribution": {"train": {"ham": 8, "spam": 2}, "validate": {"ham": 1}, "test": {"ham": 3, "spam": 1}},
        "curve": [[1, 0.9], [2, 0.5]],
        "evaluations": [{"applied_steps": 2, "accuracy": 0.75, "balanced_accuracy": 0.7, "log_loss": 0.6}],
        "run": {"model": "tiny", "updates": 2, "begun_from": None},
        "test": {"confusion": [["ham", "ham", 2], ["ham", "spam", 1], ["spam", "spam", 1]]},
        **changes,
    }
