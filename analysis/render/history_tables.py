"""The history of runs: a table for each repeated measurement, one line for each other measurement; and its page."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from analysis import wording
from analysis.load import CIRCUMSTANCES
from analysis.metrics.comparison.history import History, Series
from analysis.render.columns import columns
from analysis.render.figure import Figure
from analysis.render.page import Figures, Page, Section, write_page
from analysis.render.tables import Block, Table, write_csv
from analysis.render.training_figures import lines_figure
from analysis.wording import Row

_MOST_LINES = 8


def history_blocks(history: History) -> list[Block]:
    """Return a table per repeated measurement, a line per other one, and a count of the latest verdicts."""
    named = sorted(
        zip(history.series, series_titles(history.series), strict=True), key=lambda one: len(one[0].points) < 2
    )
    newest = [one.points[-1]["verdict"] or "first" for one in history.series]
    tally = ", ".join(f"{newest.count(name)} {name}" for name in dict.fromkeys(newest))
    counted = wording.counted(len(newest), "configuration")
    last = f"{counted}; latest verdicts: {tally}; threshold {100 * history.threshold:g} %"
    return [*(block for one, title in named for block in _series_blocks(one, title)), last]


def write_history_report(history: History, folder: Path) -> list[Path]:
    """Write report.html with its tables and history.csv into a folder; return the files. Raises StorageError."""
    rows = [{**one.row, **point} for one in history.series for point in one.points]
    rows = [{**row, "changed": "; ".join(row["changed"])} for row in rows]
    *blocks, tally = history_blocks(history)
    figures = history_figures(history)
    sections = [
        Section("", [tally], "answer"),
        Section("Trends", [Figures(figures)] if figures else []),
        Section("Configurations", blocks),
        Section("Not read", list(history.problems)),
    ]
    files = {"history.csv": partial(write_csv, rows=rows)}
    return write_page(Page("History of runs", "bertbench history", sections, files), folder)


def history_figures(history: History) -> list[Figure]:
    """Return samples per second by run, a line for each of at most eight configurations of two points or more."""
    lines = {}
    for one in history.series:
        name = f"{wording.place(one.row)}, {wording.implementation(one.row)} {wording.model(one.row)}"
        speeds = enumerate(point["samples_per_second"] for point in one.points)
        good = [(place, speed) for place, speed in speeds if speed]
        if len(good) > 1:
            lines[name] = ([place for place, _ in good], [speed for _, speed in good])
    left = f" The first {_MOST_LINES} of {len(lines)} configurations." if len(lines) > _MOST_LINES else ""
    panel = ("run", "samples/s", dict(list(lines.items())[:_MOST_LINES]), None)
    return [lines_figure("history", "Throughput by run", f"Of every run.{left}", [panel])] if lines else []


def series_titles(series: Sequence[Series]) -> list[str]:
    """Return the title of each series: measurement, machine, and the settings that tell equal ones apart."""
    alike: dict[str, list[Row]] = defaultdict(list)
    for one in series:
        alike[_measured_what(one.row)].append(one.row)
    titles = []
    for one in series:
        what = _measured_what(one.row)
        differing = [name for name in CIRCUMSTANCES if len({str(row.get(name)) for row in alike[what]}) > 1]
        settings = "".join(f", {name.replace('_', ' ')} {one.row.get(name) or 'default'}" for name in differing)
        titles.append(f"{what}{settings}: {one.row['machine']}")
    return titles


def _measured_what(row: Row) -> str:
    if row["kind"] == "measure":
        return f"{wording.implementation(row)} {wording.place(row)}"
    return ", ".join(
        [
            f"{wording.task(row)} {wording.implementation(row)}",
            wording.model(row),
            wording.place(row),
            wording.data(row),
        ]
    )


def run_names(one: Series) -> list[str]:
    """Return a name per point: the last parts of its folder, as many as tell the points apart."""
    folders = [Path(point["run"]).parts for point in one.points]
    for count in range(1, max(map(len, folders)) + 1):
        names = ["/".join(parts[-count:]) for parts in folders]
        if len(set(names)) == len(set(folders)):
            return names
    return [point["run"] for point in one.points]


def _series_blocks(one: Series, title: str) -> list[Block]:
    """Return the table of a measurement, the changes between its runs, and the reasons for verdicts."""
    point = one.points[0]
    if len(one.points) == 1:
        speed, time = point["samples_per_second"], point["step_time_ms"]
        known = f"{wording.number(time)} ms per step" if time else point["status"]
        known = f"{wording.number(speed)} samples/s" if speed else known
        return [f"measured once, {known}: {title}: {point['run']}"]
    names = run_names(one)
    rows: list[dict[str, Any]] = []
    blocks: list[Block] = []
    reasons: dict[str, list[str]] = defaultdict(list)
    for point, name in zip(one.points, names, strict=True):
        verdict = point["verdict"] or ("first" if point["status"] == "ok" else point["status"])
        when = point["began"][:16].replace("T", " ")
        rows.append({**point, "name": name, "when": when, "said": verdict})
        if point["changed"]:
            blocks.append(f"{name}: changed: {'; '.join(point['changed'])}")
        if point["reason"]:
            reasons[f"{point['verdict'] or point['status']}: {point['reason']}"].append(name)
    shown = columns(
        "when name rounds samples_per_second samples_per_second~ step_time_ms time_ratio time_ratio_first said",
        when="started (UTC)", name="run", time_ratio="new/previous time", said="verdict",
    )  # fmt: skip
    blocks += [f"{', '.join(places)}: {reason}" for reason, places in reasons.items()]
    return [Table("history", shown, rows, title), *blocks]
