"""GAP's TSVs, and files of predictions: the official scorer's decisions and Kaggle's probabilities. Imports no torch.

The TSVs know no quoting: a quotation mark is a character of the text.
"""

import csv
import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common.atomic import write_text
from common.errors import Code, InputError
from common.reading import decoded, read_content

COLUMNS = ("ID", "Text", "Pronoun", "Pronoun-offset", "A", "A-offset", "B", "B-offset")
"""Columns that a file needs; others, such as URL, are not looked at."""
LABEL_COLUMNS = ("A-coref", "B-coref")
"""Columns that a file to train on or to score needs, and one to predict does not."""
LABELS = ("neither", "A", "B")
"""What a pronoun can mean, in the order of the classes 0, 1, 2."""
MASCULINE, FEMININE = "masculine", "feminine"
GENDERS = {**dict.fromkeys(("he", "his", "him"), MASCULINE), **dict.fromkeys(("she", "her", "hers"), FEMININE)}
"""Gender of each pronoun, in lower case, as the official scorer has them."""
KAGGLE_COLUMNS = ("ID", "A", "B", "NEITHER")
_MOST_NAMED = 5
_TRUTHS = {"TRUE": True, "FALSE": False}

Decision = tuple[bool | None, bool | None]
"""Whether the pronoun means A, and B; None if nothing was decided."""
DECISIONS: tuple[Decision, ...] = ((False, False), (True, False), (False, True))
"""By class, in the order of LABELS."""
Probabilities = tuple[float, float, float]
"""Of neither, A and B; not negative, of a sum above 0."""
Gold = tuple[Decision, str | None]
"""The answer to one row, and the gender of the pronoun."""


class Mention(NamedTuple):
    """Characters of a text that mention a person."""

    text: str
    offset: int

    @property
    def end(self) -> int:
        """Return the number of characters up to its end."""
        return self.offset + len(self.text)


@dataclass(frozen=True, slots=True)
class GapExample:
    """One row; lines count from 1."""

    line: int
    id: str
    text: str
    mentions: tuple[Mention, ...]
    """Pronoun, A and B."""
    decision: Decision
    """Whether the pronoun means A, and B; None where the row does not say."""

    @property
    def gender(self) -> str | None:
        """Return the gender of the pronoun; None of one that GAP does not have."""
        return GENDERS.get(self.mentions[0].text.lower())

    @property
    def label(self) -> int | None:
        """Return the class, an index of LABELS; None if the row does not say, or says both names."""
        return DECISIONS.index(self.decision) if self.decision in DECISIONS else None


class LeftOut(NamedTuple):
    """A row that cannot be used; lines count from 1."""

    line: int
    id: str
    why: str


@dataclass(frozen=True, slots=True)
class GapFile:
    """A file, read: the rows that can be used, in order, each with an id of its own, and the hash of the content."""

    path: Path
    examples: tuple[GapExample, ...]
    left_out: tuple[LeftOut, ...]
    fingerprint: str


def read_gap(path: Path) -> GapFile:
    """Read a TSV of GAP, with or without answers; rows that cannot be used are named."""
    remedy = "give a TSV of GAP"
    content = read_content(path, "TSV of GAP", remedy)
    header, *lines = decoded(path, content, "TSV of GAP", remedy).replace("\r\n", "\n").split("\n")
    names = header.split("\t")
    labelled = any(name in names for name in LABEL_COLUMNS)
    missing = [name for name in (*COLUMNS, *(LABEL_COLUMNS if labelled else ())) if name not in names]
    if missing:
        raise InputError("columns-missing", f"{path}, line 1, lacks the columns {', '.join(missing)}: {remedy}")
    examples: dict[str, GapExample] = {}
    left_out: list[LeftOut] = []
    for number, line in enumerate(lines, start=2):
        cells = line.split("\t")
        row = dict(zip(names, cells, strict=False))
        try:
            if len(cells) != len(names):
                raise ValueError(f"{len(cells)} columns instead of {len(names)}")
            example = _example(row, number)
            if example.id in examples:
                raise ValueError(f"its id is that of line {examples[example.id].line}")
            examples[example.id] = example
        except ValueError as error:
            if line:
                left_out.append(LeftOut(number, row.get("ID", ""), str(error)))
    if not examples:
        code: Code = "rows-invalid" if left_out else "file-empty"
        raise InputError(code, f"no row of {path} is usable: {in_words(left_out)}")
    fingerprint = hashlib.blake2b(content, digest_size=16).hexdigest()
    return GapFile(path, tuple(examples.values()), tuple(left_out), fingerprint)


def in_words(left_out: Sequence[LeftOut]) -> str:
    """Return the first few rows that cannot be used, with the reasons."""
    named = [f"line {row.line} ({row.id[:60]}): {row.why}" for row in left_out[:_MOST_NAMED]]
    return "; ".join(named) + "; ..." * (len(left_out) > _MOST_NAMED)


def _example(cells: Mapping[str, str], line: int) -> GapExample:
    name, text = cells["ID"], cells["Text"]
    if not name.strip() or not name.isprintable():
        raise ValueError(f"its id is {name!r}")
    mentions = []
    for column in ("Pronoun", "A", "B"):
        mention, given = cells[column], cells[f"{column}-offset"]
        offset = int(given) if given.isdecimal() else -1
        if not mention.strip() or offset < 0 or not text.startswith(mention, offset):
            raise ValueError(f"{column} {mention[:40]!r} does not stand at {column}-offset {given[:40]!r} of the text")
        mentions.append(Mention(mention, offset))
    a, b = (cells.get(column, "").upper() for column in LABEL_COLUMNS)
    if not {a, b} <= {"TRUE", "FALSE", ""}:
        raise ValueError(f"{' and '.join(LABEL_COLUMNS)} are {a!r} and {b!r} instead of TRUE or FALSE")
    return GapExample(line, name, text, tuple(mentions), (_TRUTHS.get(a), _TRUTHS.get(b)))


def read_predictions(path: Path) -> tuple[dict[str, Decision], dict[str, Probabilities] | None]:
    """Return decisions by id, and probabilities where the file has them; the first line of an id counts.

    Decisions are a TSV of ID, A-coref and B-coref without a header, as the official scorer reads it: a word other than
    TRUE and FALSE is no decision. Probabilities are Kaggle's CSV, with the header ID,A,B,NEITHER.
    """
    remedy = "give lines of ID<tab>TRUE or FALSE<tab>TRUE or FALSE, or a CSV with the header ID,A,B,NEITHER"
    text = decoded(path, read_content(path, "file of predictions", remedy), "file of predictions", remedy)
    kaggle = text.startswith(",".join(KAGGLE_COLUMNS))
    decisions: dict[str, Decision] = {}
    probabilities: dict[str, Probabilities] = {}
    rows = csv.reader(io.StringIO(text, newline=""), delimiter="," if kaggle else "\t")
    try:
        for row in filter(None, rows):
            if kaggle and rows.line_num > 1:
                name, a, b, neither = row
                shares = float(neither), float(a), float(b)
                if min(shares) < 0 or not 0 < sum(shares) < math.inf:
                    raise ValueError(f"{row} are no probabilities")
                probabilities.setdefault(name, shares)
                decisions.setdefault(name, DECISIONS[int(np.argmax(shares))])
            elif not kaggle:
                name, a, b = row[:3]
                decisions.setdefault(name, (_TRUTHS.get(a.upper()), _TRUTHS.get(b.upper())))
    except (ValueError, csv.Error) as error:
        raise InputError("answers-invalid", f"cannot read {path}, line {rows.line_num} ({error}): {remedy}") from error
    if all(None in both for both in decisions.values()):
        raise InputError("answers-invalid", f"{path} decides on no row: {remedy}")
    return decisions, probabilities if kaggle else None


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
