"""The trials of a search for the fastest configuration as lines of text."""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis import wording
from analysis.metrics.comparison.winner import typical_rate
from analysis.render.terminal import printable

Row = Mapping[str, Any]


def autotune_text(rows: Sequence[Row], names: Sequence[str], best: str, close: Sequence[str]) -> str:
    """Return a table, the best first, then the fastest.

    Args:
        rows: one per trial: samples_per_second, peak_memory_bytes, predicted_bytes, status, round and what it ran.
        names: of the rows, without their rounds.
        best: name of the best configuration; its rate is what others are held against. Empty where there is none.
        close: names of those that may be as fast.
    """
    grouped: dict[str, list[Row]] = {}
    for name, row in zip(names, rows, strict=True):
        grouped.setdefault(name, []).append(row)
    whole = _rate(grouped[best]) if best else 0.0
    ordered = sorted(grouped, key=lambda name: (name != best, -_rate(grouped[name])))
    marks = {**dict.fromkeys(close, "~"), best: "*"}
    lines = [("", "configuration", "samples/s", "of the best", "trials", "peak memory", "predicted", "status")]
    for name in ordered:
        found = grouped[name]
        rate = _rate(found)
        first = found[0]
        lines.append(
            (
                marks.get(name, ""),
                name,
                wording.fine(rate) if rate else wording.UNKNOWN,
                wording.percent(rate / whole) if rate and whole else wording.UNKNOWN,
                str(len(found)),
                _size(first["peak_memory_bytes"]),
                _size(first["predicted_bytes"]),
                str(first["status"]),
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    left = (0, 1, len(widths) - 1)
    return "\n".join(
        printable(
            "  ".join(
                f"{cell:<{width}}" if column in left else f"{cell:>{width}}"
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
        ).rstrip()
        for line in lines
    )


def _rate(found: Sequence[Row]) -> float:
    """Over the rounds that ran; 0 where none did."""
    rates = [row["samples_per_second"] for row in found if row["status"] == "ok" and row["samples_per_second"]]
    return typical_rate(rates) if rates else 0.0


def _size(count: int | None) -> str:
    return wording.UNKNOWN if count is None else wording.size(count)
