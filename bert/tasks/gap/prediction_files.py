"""Files of predictions: the official scorer's TSV of decisions, and Kaggle's probabilities. Imports no torch."""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert.tasks.gap.reading import told_lines
from bert.tasks.gap.scores import DECISIONS, Decision
from common.atomic import write_text
from common.errors import InputError
from common.reading import decoded, read_content

KAGGLE_COLUMNS = ("ID", "A", "B", "NEITHER")
_KAGGLE_DELIMITERS = (",", "\t")
MOST_BYTES = 2**28
"""Size beyond which a file is taken for something else."""
# What is left of a sum of 1 when three probabilities are rounded to three digits.
_LEAST_DEVIATION = 0.002
_FORMS = "ID<tab>TRUE or FALSE<tab>TRUE or FALSE; probabilities need the header ID, A, B, NEITHER with commas or tabs"
_TRUTHS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class GapPredictions:
    """What a system says about rows."""

    decisions: dict[str, Decision]
    probabilities: dict[str, tuple[float, float, float]] | None = None
    """Of neither, A and B, by id; None if the file has decisions alone."""
    notes: tuple[str, ...] = ()


def read_predictions(path: Path) -> GapPredictions:
    """Read predictions: decisions as the official scorer does, or probabilities as Kaggle does.

    Decisions are a TSV of ID, A-coref and B-coref without a header; probabilities have the header ID, A, B, NEITHER in
    any order, between commas or tabs.
    """
    what, remedy = "file of predictions", "give a file of `bertbench predict gap`, or of that form"
    text = decoded(path, read_content(path, what, remedy, MOST_BYTES), what, remedy)
    first = text.split("\n", 1)[0]
    for delimiter in _KAGGLE_DELIMITERS:
        names = [name.strip().strip('"').upper() for name in first.split(delimiter)]
        if sorted(names) == sorted(KAGGLE_COLUMNS):
            return _read_kaggle(path, text, names, delimiter)
    return _read_official(path, text)


def write_official(path: Path, decisions: Mapping[str, Decision]) -> Path:
    """Write decisions as the official scorer reads them; return `path`. Raises StorageError."""
    lines = ["\t".join([name, *(str(bool(said)).upper() for said in found)]) for name, found in decisions.items()]
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


def _read_official(path: Path, text: str) -> GapPredictions:
    decisions: dict[str, Decision] = {}
    repeated: list[int] = []
    strange: list[int] = []
    for line, cells in _rows(path, text, "\t"):
        if len(cells) < 3:
            raise InputError(
                "rows-invalid",
                f"the predictions {path}, line {line}, have {len(cells)} of 3 columns: each line is {_FORMS}",
            )
        name = cells[0].strip()
        if name in decisions:
            repeated.append(line)
            continue
        said = [_TRUTHS.get(cell.lower()) for cell in cells[1:3]]
        if None in said:
            strange.append(line)
        decisions[name] = (said[0], said[1])
    if not any(None not in found for found in decisions.values()):
        raise InputError("answers-invalid", f"the predictions {path} hold no rows: each line is {_FORMS}")
    notes = []
    if repeated:
        notes.append(f"{len(repeated):,} line(s) repeat an id ({told_lines(repeated)}): the first one counts")
    if strange:
        notes.append(f"{len(strange):,} line(s) have values other than TRUE and FALSE ({told_lines(strange)})")
    return GapPredictions(decisions, None, tuple(notes))


def _read_kaggle(path: Path, text: str, names: Sequence[str], delimiter: str) -> GapPredictions:
    found: dict[str, tuple[float, float, float]] = {}
    repeated: list[int] = []
    sums: dict[int, float] = {}
    rows = _rows(path, text, delimiter)
    next(rows)
    for line, cells in rows:
        where = f"the predictions {path}, line {line}"
        if len(cells) != len(names):
            raise InputError(
                "rows-invalid", f"{where}, have {len(cells)} of {len(names)} columns ({delimiter.join(names)})"
            )
        row = dict(zip(names, cells, strict=True))
        shares = tuple(_share(row[name], f"{where}, column {name}") for name in ("NEITHER", "A", "B"))
        if not 0 < sum(shares) < math.inf:
            why = "too large to add up" if any(shares) else "all 0, but one must be above"
            raise InputError("answers-invalid", f"{where}: the probabilities are {why}")
        name = row["ID"].strip()
        if name in found:
            repeated.append(line)
        else:
            found[name] = (shares[0], shares[1], shares[2])
            sums[line] = sum(shares)
    if not found:
        raise InputError("file-empty", f"the predictions {path} hold no rows below their header")
    decisions = {name: DECISIONS[int(np.argmax(shares))] for name, shares in found.items()}
    notes = _sum_notes(sums)
    if repeated:
        notes.append(f"{len(repeated):,} line(s) repeat an id ({told_lines(repeated)}): the first one counts")
    return GapPredictions(decisions, found, tuple(notes))


def _rows(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each row with its line, from 1; without the empty ones. Raises InputError: one does not end in its line."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    line = 1
    try:
        for cells in reader:
            if reader.line_num > line:
                raise InputError(
                    "file-damaged",
                    f"the predictions {path}, line {line}: a quoted field does not end on this "
                    "line: close or remove the quote",
                )
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise InputError("file-damaged", f"the predictions {path}, line {line}, cannot be read: {error}") from error


def _share(cell: str, where: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise InputError(
            "answers-invalid",
            f"{where}, is {cell[:40]!r}, not a probability: give a number of 0 or more (rows are normalized to sum 1)",
        )
    return value


def _sum_notes(sums: Mapping[int, float]) -> list[str]:
    """Return notes, by line, on rows whose probabilities do not sum to 1."""
    odd = {line: found for line, found in sums.items() if abs(found - 1) > _LEAST_DEVIATION}
    if not odd:
        return []
    line, furthest = max(odd.items(), key=lambda item: abs(item[1] - 1))
    return [
        f"{len(odd):,} row(s) of probabilities do not sum to 1 and were normalized, as Kaggle does; line "
        f"{line} is furthest off with {furthest:.4g}"
    ]
