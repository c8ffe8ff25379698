"""The result of an analysis, independent of its output: terminal, JSON, CSV files or page."""

import dataclasses
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.diagnose.advice import Advice
from analysis.wording import short

if TYPE_CHECKING:
    import pandas as pd


_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Finding:
    """One table with what it means."""

    name: str
    """Stable name: of the CSV file, the key in JSON; [a-z0-9_]+, distinct in what is shown together."""
    title: str
    table: "pd.DataFrame"
    """Rows, most important first. Columns are snake_case with the unit in the name; shares are fractions of 1."""
    sentence: str = ""
    """What the numbers mean and what to try next; "" if there is nothing to report."""
    advice: tuple[Advice, ...] = ()
    """What could save time by this table; `advice.ranked` chooses among those of all findings."""


def number(value: float) -> str:
    """Four significant digits, whole and separated from 1000 on: 0.4, 116.9, 1,230."""
    return short(value, 4)


def short_name(name: str) -> str:
    """Return the name of a kernel as a sentence has room for it."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def distinct(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings with distinct names: repeated ones get the suffix _2, _3, ..."""
    names = distinct_names([one.name for one in findings])
    return [dataclasses.replace(one, name=name) for one, name in zip(findings, names, strict=True)]


def joined(tables: "Sequence[pd.DataFrame]") -> "pd.DataFrame | None":
    """Return the rows of all tables in one, such as of all ranks; None where there are none."""
    import pandas as pd

    filled = [table for table in tables if len(table)]
    return pd.concat(filled, ignore_index=True) if filled else None


def file_stem(file: Path) -> str:
    """Return a file's name as part of a finding's: [a-z0-9_]+, at most 60 characters; "table" where nothing is left."""
    return re.sub("[^a-z0-9]+", "_", file.name.partition(".")[0].lower()).strip("_")[:60] or "table"


def distinct_names(names: Sequence[str]) -> list[str]:
    """Return the names made distinct: repeated ones get the suffix _2, _3, ... that no other name has."""
    distinct: list[str] = []
    for name in names:
        candidates = [name, *(f"{name}_{number}" for number in range(2, len(names) + 2))]
        distinct.append(next(one for one in candidates if one not in distinct and (one == name or one not in names)))
    return distinct


def plain_rows(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    """Return a table as plain JSON values; what is not known, or infinite, is None."""
    known = frame.notna() & ~frame.isin([math.inf, -math.inf])
    rows = frame.astype(object).where(known, None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]
