"""What an analysis says, whatever shows it: terminal, JSON, CSV files, the page."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Finding:
    """One table with what it means."""

    name: str
    """Stable name: of the CSV file, the key in JSON; [a-z0-9_]+, distinct in what is shown together."""
    title: str
    table: "pd.DataFrame"
    """Rows to show, most telling first. Columns are snake_case with the unit in the name; shares are fractions of 1."""
    sentence: str = ""
    """What the numbers mean here and what to try next; "" where there is nothing to say."""


def distinct(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings under distinct names: of one name, the second and later ones end in _2, _3, ..."""
    names = distinct_names([one.name for one in findings])
    return [
        one if name == one.name else Finding(name, one.title, one.table, one.sentence)
        for one, name in zip(findings, names, strict=True)
    ]


def file_stem(file: Path) -> str:
    """Return what a file's name gives to the names of its findings: [a-z0-9_]+, at most 60 characters."""
    stem = re.sub("[^a-z0-9]+", "_", file.name.partition(".")[0].lower()).strip("_")
    return stem[:60] or "table"


def distinct_names(names: Sequence[str]) -> list[str]:
    """Return the names, those that came before with _2, _3, ... at their end, never one that another has."""
    found: dict[str, None] = {}
    for name in names:
        own, number = name, 1
        while own in found or (own != name and own in names):
            number += 1
            own = f"{name}_{number}"
        found[own] = None
    return list(found)
