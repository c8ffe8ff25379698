"""GAP's TSVs, read and checked row by row. They know no quoting: a quotation mark is a character of the text."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, slots=True)
class Mention:
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
    def place(self) -> str:
        """Return the row in words."""
        return f"line {self.line} ({self.id[:60]})"


MOST_BYTES = 2**30
"""Size beyond which a file is taken for something else (GAP's largest has 1 MB)."""
_REMEDY = "give a TSV of GAP"
_MOST_TOLD = 5
_TRUTHS = {"true": True, "false": False, "": None}


@dataclass(frozen=True, slots=True)
class Flaw:
    """A row that cannot be used."""

    line: int
    """Its line, from 1."""
    id: str
    """Its name, where it has one."""
    kind: str
    """What is wrong, in words that fit all rows of which it is."""
    detail: str


@dataclass(frozen=True, slots=True)
class GapFile:
    """A file, read."""

    path: Path
    """Where it is."""
    examples: tuple[GapExample, ...]
    """The rows that can be used, in order, each with an id of its own."""
    flaws: tuple[Flaw, ...]
    labelled: bool
    """Whether it has the columns of the answers."""
    fingerprint: str
    """Hash of the file's content."""


class _RowError(Exception):
    """A row that cannot be used: (kind, detail)."""


def read_gap(path: Path) -> GapFile:
    """Read a TSV of GAP, with or without answers; rows that cannot be used are named."""
    content = read_content(path, "TSV of GAP", _REMEDY, MOST_BYTES)
    lines = decoded(path, content, "TSV of GAP", _REMEDY).split("\n")
    names = _header(path, lines[0].removesuffix("\r"))
    labelled = set(LABEL_COLUMNS) <= set(names)
    examples: dict[str, GapExample] = {}
    flaws: list[Flaw] = []
    for number, line in enumerate(lines[1:], start=2):
        row = line.removesuffix("\r")
        if not row.strip():
            continue
        example, flaw = _checked(row.split("\t"), number, names)
        if example is not None and example.id in examples:
            first = examples[example.id].line
            flaw = Flaw(number, example.id, "repeated ids", f"its id is already used in line {first}")
        elif example is not None:
            examples[example.id] = example
        if flaw is not None:
            flaws.append(flaw)
    if not examples:
        told = "; ".join(told_flaws(flaws)) or "it has no rows below its header"
        raise InputError("rows-invalid" if flaws else "file-empty", f"no row of {path} is usable: {told}")
    fingerprint = hashlib.blake2b(content, digest_size=16).hexdigest()
    return GapFile(path, tuple(examples.values()), tuple(flaws), labelled, fingerprint)


def told_flaws(flaws: Sequence[Flaw]) -> list[str]:
    """Return one text for each kind of flaw: how many, in which lines, and what is wrong with the first."""
    kinds: dict[str, list[Flaw]] = {}
    for flaw in flaws:
        kinds.setdefault(flaw.kind, []).append(flaw)
    return [
        f"{len(found):,} row(s) with {kind}, {told_lines([flaw.line for flaw in found])} (line {found[0].line}: "
        f"{found[0].detail})"
        for kind, found in kinds.items()
    ]


def told_lines(numbers: Sequence[int]) -> str:
    """Return the numbers of lines in words, the first few of many."""
    some = ", ".join(map(str, numbers[:_MOST_TOLD]))
    return f"line{'s' * (len(numbers) > 1)} {some}{', ...' if len(numbers) > _MOST_TOLD else ''}"


def _header(path: Path, line: str) -> list[str]:
    names = [name.strip() for name in line.split("\t")]
    some = any(name in names for name in LABEL_COLUMNS)
    missing = [name for name in (*COLUMNS, *(LABEL_COLUMNS if some else ())) if name not in names]
    if missing:
        raise InputError(
            "columns-missing",
            f"{path} is not a TSV of GAP: line 1 lacks {', '.join(missing)}; it must be {'<tab>'.join(COLUMNS)}, for "
            f"training and scoring also {' and '.join(LABEL_COLUMNS)}",
        )
    twice = sorted({name for name in names if names.count(name) > 1} & {*COLUMNS, *LABEL_COLUMNS})
    if twice:
        raise InputError("data-ambiguous", f"{path} has the column {twice[0]} twice: remove one")
    return names


def _checked(cells: Sequence[str], line: int, names: Sequence[str]) -> tuple[GapExample | None, Flaw | None]:
    try:
        if len(cells) != len(names):
            raise _RowError("a wrong number of columns", f"{len(cells)} instead of {len(names)}")
        return _example(dict(zip(names, cells, strict=True)), line), None
    except _RowError as error:
        kind, detail = error.args
        place = names.index("ID")
        return None, Flaw(line, cells[place].strip() if place < len(cells) else "", kind, detail)


def _example(cells: Mapping[str, str], line: int) -> GapExample:
    name, text = cells["ID"].strip(), cells["Text"]
    if not name:
        raise _RowError("no id", "the column ID is empty")
    if not name.isprintable():
        raise _RowError("unprintable ids", f"the column ID is {name[:40]!r}")
    mentions = {column: _mention(cells, column, text) for column in ("Pronoun", "A", "B")}
    truths = {column: _truth(cells, column) for column in LABEL_COLUMNS if column in cells}
    return GapExample(
        line,
        name,
        text,
        mentions["Pronoun"],
        mentions["A"],
        mentions["B"],
        truths.get("A-coref"),
        truths.get("B-coref"),
    )


def _mention(cells: Mapping[str, str], column: str, text: str) -> Mention:
    mention, given = cells[column], cells[f"{column}-offset"].strip()
    if not mention.strip():
        raise _RowError("an empty mention", f"the column {column} is empty")
    if not (given.isascii() and given.isdigit()) or len(given) > 9:
        raise _RowError("offsets that are not numbers", f"{column}-offset is {given[:40]!r}")
    offset = int(given)
    if not text.startswith(mention, offset):
        there = text[offset : offset + len(mention)]
        places = text.count(mention)
        hint = f"; it is at {text.index(mention)}" if places == 1 else f"; the text contains it {places} times"
        raise _RowError(
            "misaligned offsets", f"{column} is {mention[:40]!r}, but the text at {offset} is {there[:40]!r}{hint}"
        )
    return Mention(mention, offset)


def _truth(cells: Mapping[str, str], column: str) -> bool | None:
    given = cells[column].strip().lower()
    if given not in _TRUTHS:
        raise _RowError("labels that are neither TRUE nor FALSE", f"{column} is {cells[column][:40]!r}")
    return _TRUTHS[given]
