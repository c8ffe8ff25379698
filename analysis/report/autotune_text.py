"""The trials of a search for the fastest configuration as lines of text."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.report import tables
from analysis.report.terminal import printable

Row = Mapping[str, Any]


def autotune_text(rows: Sequence[Row], best: Mapping[str, Any] | None, names: Sequence[str]) -> str:
    """Return a table, the fastest first.

    Args:
        rows: one per trial: samples_per_second, peak_memory_bytes, predicted_bytes, status, round and what it ran.
        best: the row of the fastest; its rate is what others are held against. None where there is none.
        names: of the rows, without their rounds.
    """
    grouped: dict[str, list[Row]] = {}
    for name, row in zip(names, rows, strict=True):
        grouped.setdefault(name, []).append(row)
    top = names[list(rows).index(best)] if best is not None else ""
    whole = _rate(grouped[top]) if top else 0.0
    ordered = sorted(grouped, key=lambda name: (name != top, -_rate(grouped[name])))
    lines = [("", "configuration", "samples/s", "of the fastest", "trials", "peak memory", "predicted", "status")]
    for name in ordered:
        found = grouped[name]
        rate = _rate(found)
        first = found[0]
        lines.append(
            (
                "*" if name == top else "",
                name,
                tables.fine(rate) if rate else tables.UNKNOWN,
                tables.percent(rate / whole) if rate and whole else tables.UNKNOWN,
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
    rates = [row["samples_per_second"] or 0.0 if row["status"] == "ok" else 0.0 for row in found]
    return statistics.median(rates)


def _size(count: int | None) -> str:
    return tables.UNKNOWN if count is None else tables.size(count)
