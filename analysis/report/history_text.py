"""The history of runs as tables for the terminal."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from analysis.metrics.history import History, Point, Series
from analysis.report import tables
from analysis.report.terminal import DEFAULT_WIDTH, printable, render, wrapped

Row = Mapping[str, Any]


def history_text(found: History, width: int = DEFAULT_WIDTH) -> str:
    """Return a table per measurement that was repeated, a line per other one, and what the newest are.

    Args:
        found: what several runs measured.
        width: characters per line.
    """
    several = [one for one in found.series if len(one.points) > 1]
    parts = [part for one in several for part in (_table(one, width), "")]
    parts += [line for one in found.series if len(one.points) == 1 for line in _once(one, width)]
    newest = [one.points[-1].verdict or "first" for one in found.series]
    tally = ", ".join(f"{newest.count(name)} {name}" for name in dict.fromkeys(newest))
    measured = f"{len(newest)} configuration{'' if len(newest) == 1 else 's'}"
    return "\n".join([*parts, f"{measured}; the newest of each: {tally}; threshold {100 * found.threshold:g} %"])


def series_title(one: Series, width: int = DEFAULT_WIDTH) -> str:
    """Return what was measured, and on which machine, in one line of at most so many characters."""
    row = one.row
    text = (
        f"{row['task']} {row['implementation']}, {tables.model(row)}, {tables.place(row)}, {tables.data(row)}: "
        f"{row['machine']}"
    )
    return printable(text if len(text) <= width else f"{text[: width - 1]}…")


def run_names(one: Series) -> list[str]:
    """Return a name per point: the last part of its folder, with as many before it as tell them apart."""
    folders = [Path(point.run).parts for point in one.points]
    longest = max(map(len, folders))
    for count in range(1, longest + 1):
        names = ["/".join(parts[-count:]) for parts in folders]
        if len(set(names)) == len(set(folders)):
            return names
    return [point.run for point in one.points]


def _table(one: Series, width: int) -> str:
    names = run_names(one)
    rows = [_row(point, name) for point, name in zip(one.points, names, strict=True)]
    columns = [
        tables.plain("began (UTC)", "when"),
        tables.plain("run", "name"),
        tables.measured("rounds", "rounds", tables.count),
        tables.measured("samples/s", "samples_per_second"),
        tables.spread("samples_per_second"),
        tables.measured("step ms", "step_time_ms"),
        tables.measured("time / before", "time_ratio", lambda value: tables.number(value, 4)),
        tables.measured("time / first", "time_ratio_first", lambda value: tables.number(value, 4)),
        tables.plain("verdict", "said"),
    ]
    lines = [render(tables.build("history", columns, rows), width, series_title(one, width))]
    reasons: dict[str, list[str]] = defaultdict(list)
    for point, name in zip(one.points, names, strict=True):
        if point.changed:
            lines += wrapped(f"{name}: changed: {'; '.join(point.changed)}", width)
        if point.reason:
            reasons[f"{point.verdict or point.status}: {point.reason}"].append(name)
    for reason, places in reasons.items():
        lines += wrapped(f"{', '.join(places)}: {reason}", width)
    return "\n".join(lines)


def _once(one: Series, width: int) -> list[str]:
    (point,) = one.points
    speed = f"{tables.number(point.samples_per_second)} samples/s" if point.status == "ok" else point.status
    return wrapped(f"measured once, {speed}: {series_title(one)}: {point.run}", width)


def _row(point: Point, name: str) -> Row:
    said = point.verdict or ("first" if point.status == "ok" else point.status)
    return {**asdict(point), "name": name, "when": point.began[:16].replace("T", " "), "said": said}
