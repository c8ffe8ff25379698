"""Truth against what was reported, row by row, as JSON and as tables of Markdown."""

import json
import math
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HOLDS, FAILS, STATED = "holds", "fails", "stated"

TITLES = {
    "steps": "Work of known duration, through worker, run directory, analysis and report",
    "traces": "Recordings of known work",
    "energy": "Known power",
    "warm-up": "Known ends of warm-up",
    "intervals": "How often the 95 % interval holds the true median",
    "processes": "The same trial in ten processes",
    "comparing": "Verdicts of compare on pairs of runs",
}
"""Of the parts, in their order."""


class Book:
    """Collects rows of part, quantity, unit, truth, reported, error, limit, verdict, note."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._test_begins = 0
        self._began = time.monotonic()
        self._load = os.getloadavg()

    def check(
        self, part: str, quantity: str, truth: float, reported: float | None, unit: str = "", within: float = 0.01
    ) -> None:
        """Note a quantity that has to agree with the truth within a relative error."""
        error = math.inf if reported is None else abs(reported - truth) / abs(truth) if truth else abs(reported)
        self._add(part, quantity, unit, truth, reported, error, f"within {100 * within:g} %", error <= within)

    def between(self, part: str, quantity: str, share: float, low: float, high: float, truth: float | None) -> None:
        """Note a share that has to lie in [low, high]."""
        limit = f"{100 * low:g} to {100 * high:g} %"
        error = None if truth is None else share - truth
        self._add(part, quantity, "share", truth, share, error, limit, low <= share <= high)

    def state(self, part: str, quantity: str, reported: float, unit: str, truth: float | None = None) -> None:
        """Note what was found, without judging it."""
        error = None if truth is None else reported - truth if unit == "share" else (reported - truth) / truth
        self._add(part, quantity, unit, truth, reported, error, "", None)

    def begin_test(self) -> None:
        """From here on rows are those of another test."""
        self._test_begins = len(self.rows)

    def failures(self) -> list[str]:
        """Return the rows of this test that do not hold, in words."""
        return [
            f"{row['quantity']}: {row['reported']} against {row['truth']} ({row['limit']})"
            for row in self.rows[self._test_begins :]
            if row["verdict"] == FAILS
        ]

    def _add(
        self,
        part: str,
        quantity: str,
        unit: str,
        truth: float | None,
        reported: float | None,
        error: float | None,
        limit: str,
        good: bool | None,
    ) -> None:
        assert part in TITLES
        verdict = STATED if good is None else HOLDS if good else FAILS
        row = {"part": part, "quantity": quantity, "unit": unit, "truth": truth, "reported": reported}
        finite = error is None or math.isfinite(error)
        self.rows.append({**row, "error": error if finite else None, "limit": limit, "verdict": verdict})

    def write(self, folder: Path, environment: Mapping[str, Any]) -> None:
        """Write truth.json and truth.md."""
        folder.mkdir(parents=True, exist_ok=True)
        about = {
            "device": environment.get("device_name"),
            "cores": (environment.get("cpu") or {}).get("physical_cores"),
            "python": platform.python_version(),
            "libraries": environment.get("libraries"),
            "commit": environment.get("git_commit"),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "seconds": round(time.monotonic() - self._began, 1),
            "load_average_before": round(self._load[0], 2),
            "load_average_after": round(os.getloadavg()[0], 2),
        }
        counts = {name: sum(row["verdict"] == name for row in self.rows) for name in (HOLDS, FAILS, STATED)}
        document = {"schema_version": 1, "about": about, "verdicts": counts, "rows": self.rows}
        (folder / "truth.json").write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        (folder / "truth.md").write_text(self._markdown(about, counts), encoding="utf-8")

    def _markdown(self, about: Mapping[str, Any], counts: Mapping[str, int]) -> str:
        lines = [
            f"# Verification of the measurements, {about['date']}",
            "",
            f"`make truth-test` on {about['device']}, {about['cores']} cores, in {about['seconds']:.0f} s. "
            f"Load average {about['load_average_before']} before, {about['load_average_after']} after. "
            f"{counts[HOLDS]} rows hold, {counts[FAILS]} fail, {counts[STATED]} are reported without a limit. "
            "[Verification of the measurements](../explanation/truth.md) explains them.",
        ]
        for part, title in TITLES.items():
            rows = [row for row in self.rows if row["part"] == part]
            if rows:
                lines += ["", f"## {title}", "", "| quantity | truth | reported | error | limit | verdict |"]
                lines += ["|---|---|---|---|---|---|", *map(_line, rows)]
        return "\n".join(lines) + "\n"


def _line(row: Mapping[str, Any]) -> str:
    unit = row["unit"]
    error = "" if row["error"] is None else f"{100 * row['error']:+.2f} %"
    if row["limit"].startswith("within") and row["error"] is not None:
        error = error.removeprefix("+")
    if unit == "share" and row["error"] is not None and not row["limit"].startswith("within"):
        error = f"{100 * row['error']:+.1f} points"
    cells = (
        row["quantity"],
        _value(row["truth"], unit),
        _value(row["reported"], unit),
        error,
        row["limit"],
        row["verdict"],
    )
    return f"| {' | '.join(cells)} |"


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit == "share":
        return f"{100 * value:.1f} %"
    if unit == "FLOP/s":
        value, unit = value / 1e9, "GFLOP/s"
    text = f"{value:.5g}"
    if "e" in text:  # five digits, written out
        text = f"{float(text):,.0f}" if abs(value) >= 1 else f"{float(text):.12f}".rstrip("0")
    return f"{text} {unit}".strip()
