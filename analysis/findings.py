"""What an analysis says, whatever shows it: terminal, JSON, CSV files, the page."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Finding:
    """One table with what it means."""

    name: str
    """Stable name: of the CSV file, the key in JSON; [a-z_]+."""
    title: str
    """Heading for people."""
    table: "pd.DataFrame"
    """Rows to show, most telling first. Columns are snake_case with the unit in the name; shares are fractions of 1."""
    sentence: str = ""
    """What the numbers mean here and what to try next; "" where there is nothing to say."""
