"""GAP's TSVs, read and checked row by row. They know no quoting: a quotation mark is a character of the text."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from common.errors import InputError
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
MOST_BYTES = 2**30
"""Size beyond which a file is taken for something else (GAP's largest has 1 MB)."""
_REMEDY = "give a TSV of GAP"
_MOST_NAMED = 5
_TRUTHS = {"true": True, "false": False, "": None}


class Mention(NamedTuple):
    """Characters of a text that mention a person."""

    text: str
    """As written in the text."""
    offset: int

    @property
    def end(self) -> int:
        """Return the number of characters up to its end."""
        return self.offset + len(self.text)


@dataclass(frozen=True, slots=True)
class GapExample:
    """One row."""

    line: int
    """Its line in the file, from 1."""
    id: str
    text: str
    pronoun: Mention
    a: Mention
    b: Mention
    a_coref: bool | None = None
    """Whether the pronoun means A; None if the row does not say."""
    b_coref: bool | None = None
    """Whether the pronoun means B; None if the row does not say."""

    @property
    def mentions(self) -> tuple[Mention, Mention, Mention]:
        """Return pronoun, A and B."""
        return self.pronoun, self.a, self.b

    @property
    def gender(self) -> str | None:
        """Return the gender of the pronoun; None of one that GAP does not have."""
        return GENDERS.get(self.pronoun.text.lower())

    @property
    def label(self) -> int | None:
        """Return the class, an index of LABELS; None if the row does not say, or says both names."""
        if self.a_coref is None or self.b_coref is None or (self.a_coref and self.b_coref):
            return None
        return 1 if self.a_coref else 2 if self.b_coref else 0

    @property
    def gold(self) -> tuple[bool, bool, str | None]:
        """Return the answer as bert.tasks.gap.scores takes it."""
        return bool(self.a_coref), bool(self.b_coref), self.gender


@dataclass(frozen=True, order=True, slots=True)
class LeftOut:
    """A row that cannot be used."""

    line: int
    """Its line, from 1."""
    id: str
    why: str


@dataclass(frozen=True, slots=True)
class GapFile:
    """A file, read."""

    path: Path
    examples: tuple[GapExample, ...]
    """The rows that can be used, in order, each with an id of its own."""
    left_out: tuple[LeftOut, ...]
    labelled: bool
    """Whether it has the columns of the answers."""
    fingerprint: str
    """Hash of the file's content."""


def read_gap(path: Path) -> GapFile:
    """Read a TSV of GAP, with or without answers; rows that cannot be used are named."""
    content = read_content(path, "TSV of GAP", _REMEDY, MOST_BYTES)
    lines = decoded(path, content, "TSV of GAP", _REMEDY).split("\n")
    names = [name.strip() for name in lines[0].split("\t")]
    labelled = any(name in names for name in LABEL_COLUMNS)
    missing = [name for name in (*COLUMNS, *(LABEL_COLUMNS if labelled else ())) if name not in names]
    if missing:
        raise InputError("columns-missing", f"{path}, line 1, lacks the columns {', '.join(missing)}: {_REMEDY}")
    examples: dict[str, GapExample] = {}
    left_out: list[LeftOut] = []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        cells = dict(zip(names, line.removesuffix("\r").split("\t"), strict=False))
        try:
            if len(cells) != len(names) or line.count("\t") >= len(names):
                raise ValueError(f"{line.count(chr(9)) + 1} columns instead of {len(names)}")
            example = _example(cells, number)
            if example.id in examples:
                raise ValueError(f"its id is that of line {examples[example.id].line}")
            examples[example.id] = example
        except ValueError as error:
            left_out.append(LeftOut(number, cells.get("ID", ""), str(error)))
    if not examples:
        reasons = in_words(left_out) or "it has no rows below its header"
        raise InputError("rows-invalid" if left_out else "file-empty", f"no row of {path} is usable: {reasons}")
    fingerprint = hashlib.blake2b(content, digest_size=16).hexdigest()
    return GapFile(path, tuple(examples.values()), tuple(left_out), labelled, fingerprint)


def in_words(left_out: Sequence[LeftOut]) -> str:
    """Return the first few rows that cannot be used, with the reasons."""
    named = [f"line {row.line} ({row.id[:60]}): {row.why}" for row in left_out[:_MOST_NAMED]]
    return "; ".join([*named, *(["..."] if len(left_out) > _MOST_NAMED else [])])


def _example(cells: Mapping[str, str], line: int) -> GapExample:
    name, text = cells["ID"].strip(), cells["Text"]
    if not name or not name.isprintable():
        raise ValueError(f"its id is {name!r}")
    pronoun, a, b = (_mention(cells, column, text) for column in ("Pronoun", "A", "B"))
    truths = [_TRUTHS.get(cells.get(column, "").strip().lower(), column) for column in LABEL_COLUMNS]
    for truth in truths:
        if isinstance(truth, str):
            raise ValueError(f"{truth} is {cells[truth]!r} instead of TRUE or FALSE")
    return GapExample(line, name, text, pronoun, a, b, *truths)  # type: ignore[arg-type]


def _mention(cells: Mapping[str, str], column: str, text: str) -> Mention:
    mention, given = cells[column], cells[f"{column}-offset"].strip()
    offset = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else -1
    if not mention.strip() or offset < 0 or not text.startswith(mention, offset):
        raise ValueError(f"{column} {mention[:40]!r} does not stand at {column}-offset {given[:40]!r} of the text")
    return Mention(mention, offset)
