"""Truth beside what was reported, row by row; `make release-test` keeps the rows as truth.csv."""

import csv
from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """A quantity with its truth."""

    quantity: str
    unit: str
    truth: float | None
    reported: float | None
    low: float | None = None
    """Smallest value that holds; None where the value is only stated."""
    high: float | None = None

    @property
    def holds(self) -> bool:
        if self.low is None or self.high is None:
            return True
        return self.reported is not None and self.low <= self.reported <= self.high


class Book:
    """Collects the rows of a test; call `failures` at its end."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._seen = 0

    def check(self, quantity: str, truth: float, reported: float | None, unit: str = "", within: float = 0.01) -> None:
        """Note a quantity that has to agree with the truth within a relative error."""
        room = within * abs(truth)
        self.rows.append(Row(quantity, unit, truth, reported, truth - room, truth + room))

    def between(self, quantity: str, share: float, low: float, high: float, truth: float | None) -> None:
        """Note a share that has to lie in [low, high]."""
        self.rows.append(Row(quantity, "share", truth, share, low, high))

    def state(self, quantity: str, reported: float, unit: str, truth: float | None = None) -> None:
        """Note what was found, without judging it."""
        self.rows.append(Row(quantity, unit, truth, reported))

    def failures(self) -> list[Row]:
        """Return the rows since the last call that do not hold."""
        new, self._seen = self.rows[self._seen :], len(self.rows)
        return [row for row in new if not row.holds]

    def write(self, folder: Path) -> None:
        """Write truth.csv."""
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "truth.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*Row._fields, "holds"])
            writer.writerows([*row, row.holds] for row in self.rows)
