"""Files of predictions: the official scorer's TSV of decisions, and Kaggle's probabilities. Imports no torch."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bert.tasks.gap.scores import DECISIONS, Decision
from common.atomic import write_text
from common.errors import InputError
from common.reading import decoded, read_content

KAGGLE_COLUMNS = ("ID", "A", "B", "NEITHER")
MOST_BYTES = 2**28
"""Size beyond which a file is taken for something else."""
_REMEDY = "give lines of ID<tab>TRUE or FALSE<tab>TRUE or FALSE, or probabilities below a header ID,A,B,NEITHER"
_TRUTHS = {"TRUE": True, "FALSE": False}
"""As the official scorer has it, another word is no decision."""

Probabilities = tuple[float, float, float]
"""Of neither, A and B; not negative, of a sum above 0."""


def read_predictions(path: Path) -> tuple[dict[str, Decision], dict[str, Probabilities] | None]:
    """Return decisions by id, and probabilities where the file has them; the first line of an id counts.

    Decisions are a TSV of ID, A-coref and B-coref without a header, as the official scorer reads it; probabilities have
    the header ID, A, B, NEITHER in any order, between commas or tabs, as on Kaggle.
    """
    what = "file of predictions"
    text = decoded(path, read_content(path, what, _REMEDY, MOST_BYTES), what, _REMEDY)
    delimiter = "\t" if "\t" in text.split("\n", 1)[0] else ","
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if row]
    except csv.Error as error:
        raise InputError("answers-invalid", f"{path} is no table ({error}): {_REMEDY}") from error
    header = [name.strip().upper() for name in rows[0]] if rows else []
    has_probabilities = sorted(header) == sorted(KAGGLE_COLUMNS)
    decisions: dict[str, Decision] = {}
    probabilities: dict[str, Probabilities] = {}
    for row in rows[has_probabilities:]:
        try:
            if has_probabilities:
                cells = dict(zip(header, row, strict=True))
                shares = _shares(cells)
                probabilities.setdefault(cells["ID"].strip(), shares)
                decisions.setdefault(cells["ID"].strip(), DECISIONS[int(np.argmax(shares))])
            else:
                decisions.setdefault(row[0].strip(), (_TRUTHS.get(row[1].upper()), _TRUTHS.get(row[2].upper())))
        except (ValueError, KeyError, IndexError) as error:
            raise InputError("answers-invalid", f"{path} has the row {row} ({error}): {_REMEDY}") from error
    if all(None in both for both in decisions.values()):
        raise InputError("answers-invalid", f"{path} decides on no row: {_REMEDY}")
    return decisions, probabilities if has_probabilities else None


def _shares(cells: Mapping[str, str]) -> Probabilities:
    neither, a, b = (float(cells[name]) for name in ("NEITHER", "A", "B"))
    if min(neither, a, b) < 0 or not 0 < neither + a + b < math.inf:
        raise ValueError("no probabilities")
    return neither, a, b


def write_official(path: Path, decisions: Mapping[str, Decision]) -> Path:
    """Write decisions as the official scorer reads them; return `path`. Raises StorageError."""
    lines = ["\t".join([name, *(str(bool(one)).upper() for one in both)]) for name, both in decisions.items()]
    write_text(path, "\n".join(lines) + "\n")
    return path


def write_kaggle(path: Path, probabilities: Mapping[str, Sequence[float]]) -> Path:
    """Write probabilities of neither, A and B as Kaggle takes them; return `path`. Raises StorageError."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(KAGGLE_COLUMNS)
    # Nine digits tell any two float32 apart.
    writer.writerows([name, *(f"{p:.9g}" for p in (a, b, neither))] for name, (neither, a, b) in probabilities.items())
    write_text(path, text.getvalue())
    return path
