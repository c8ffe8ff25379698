"""The history of runs: a table for each repeated measurement, one line for each other measurement."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from analysis import wording
from analysis.load import CIRCUMSTANCES
from analysis.metrics.comparison.history import History, Point, Series
from analysis.render import tables

Row = Mapping[str, Any]


def history_blocks(found: History) -> list[tables.Block]:
    """Return a table per repeated measurement, a line per other one, and a count of the latest verdicts."""
    named = list(zip(found.series, series_titles(found.series), strict=True))
    blocks = [block for one, title in named if len(one.points) > 1 for block in repeated_blocks(one, title)]
    blocks += [once_line(one, title) for one, title in named if len(one.points) == 1]
    newest = [one.points[-1].verdict or "first" for one in found.series]
    tally = ", ".join(f"{newest.count(name)} {name}" for name in dict.fromkeys(newest))
    measured = f"{len(newest)} configuration{'' if len(newest) == 1 else 's'}"
    last = f"{measured}; latest verdicts: {tally}; threshold {100 * found.threshold:g} %"
    return [*blocks, tables.Plain(last)]


def series_titles(series: Sequence[Series]) -> list[str]:
    """Return the title of each series: measurement, machine, and the settings that tell equal ones apart."""
    alike: dict[str, list[Row]] = defaultdict(list)
    for one in series:
        alike[_measured_what(one.row)].append(one.row)
    found = []
    for one in series:
        what = _measured_what(one.row)
        differing = [name for name in CIRCUMSTANCES if len({str(row.get(name)) for row in alike[what]}) > 1]
        own = "".join(f", {name.replace('_', ' ')} {_setting(one.row.get(name))}" for name in differing)
        found.append(f"{what}{own}: {one.row['machine']}")
    return found


def _measured_what(row: Row) -> str:
    if row["kind"] == "measure":
        return f"{row['implementation']} {wording.place(row)}"
    return f"{row['task']} {row['implementation']}, {wording.model(row)}, {wording.place(row)}, {wording.data(row)}"


def _setting(value: object) -> str:
    return "default" if value in (None, "") else str(value)


def run_names(one: Series) -> list[str]:
    """Return a name per point: the last parts of its folder, as many as tell the points apart."""
    folders = [Path(point.run).parts for point in one.points]
    longest = max(map(len, folders))
    for count in range(1, longest + 1):
        names = ["/".join(parts[-count:]) for parts in folders]
        if len(set(names)) == len(set(folders)):
            return names
    return [point.run for point in one.points]


def repeated_blocks(one: Series, title: str) -> list[tables.Block]:
    """Return the table of a repeated measurement, the changes between its runs, and the reasons for verdicts."""
    names = run_names(one)
    rows = [_row(point, name) for point, name in zip(one.points, names, strict=True)]
    columns = [
        tables.plain("started (UTC)", "when"),
        tables.plain("run", "name"),
        tables.measured("rounds", "rounds", wording.count),
        tables.recorded("samples_per_second"),
        tables.spread("samples_per_second"),
        tables.recorded("step_time_ms"),
        tables.measured("time / previous", "time_ratio", lambda value: wording.number(value, 4)),
        tables.measured("time / first", "time_ratio_first", lambda value: wording.number(value, 4)),
        tables.plain("verdict", "said"),
    ]
    blocks: list[tables.Block] = [tables.build("history", columns, rows, title)]
    reasons: dict[str, list[str]] = defaultdict(list)
    for point, name in zip(one.points, names, strict=True):
        if point.changed:
            blocks.append(f"{name}: changed: {'; '.join(point.changed)}")
        if point.reason:
            reasons[f"{point.verdict or point.status}: {point.reason}"].append(name)
    return [*blocks, *(f"{', '.join(places)}: {reason}" for reason, places in reasons.items())]


def once_line(one: Series, title: str) -> str:
    """Return a measurement that only one run made, as one line."""
    (point,) = one.points
    speed = point.status
    if point.samples_per_second is not None:
        speed = f"{wording.number(point.samples_per_second)} samples/s"
    elif point.step_time_ms is not None:
        speed = f"{wording.number(point.step_time_ms)} ms per step"
    return f"measured once, {speed}: {title}: {point.run}"


def _row(point: Point, name: str) -> Row:
    said = point.verdict or ("first" if point.status == "ok" else point.status)
    return {**asdict(point), "name": name, "when": point.began[:16].replace("T", " "), "said": said}
