"""The HTML page of the history of runs: trend lines with the commits and versions that changed, and its tables."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from analysis import wording
from analysis.metrics.comparison.history import History, Point, Series
from analysis.render import tables
from analysis.render.figure import Axis, Figure, Line, Panel, Rule, Text, short_label
from analysis.render.figure import Series as Drawn
from analysis.render.history_tables import once_line, repeated_blocks, run_names, series_titles
from analysis.render.page import (
    Article,
    Badge,
    Block,
    Gallery,
    Heading,
    Items,
    Page,
    Section,
    report_folder,
    write_page,
)
from analysis.render.terminal import printable

_MOST_PANELS = 12
"""Most series in one figure; more make further figures."""
_MOST_NAMES = 8
_MOST_CHANGES = 8
"""Most labeled changes in one panel."""
_CHANGE_ROWS = 3
"""Rows for the labels of consecutive changes, so that they do not overlap."""
_ROW_POINTS = 12
_CHANGE_LETTERS = 14
_COMMIT_LETTERS = 7
_TITLE_LETTERS = 62
_VERDICTS = {"regression": "vermilion", "improvement": "green"}


def write_history_report(found: History, folder: Path) -> list[Path]:
    """Write report.html, its figures and history.csv into a folder; return the files, the page first.

    Args:
        found: what `history_of` returned.
        folder: made if it does not exist.

    Raises:
        StorageError: a file cannot be written.
    """
    rows = [{**one.row, **asdict(point)} for one in found.series for point in one.points]
    with report_folder(folder):
        table = folder / "history.csv"
        tables.write_csv(table, [{**row, "changed": "; ".join(row["changed"])} for row in rows])
        page, *others = write_page(history_page(found), folder)
    return [page, table, *others]


def history_page(found: History) -> Page:
    """Return the page: the newest verdicts, the trends, a table per configuration that was measured repeatedly."""
    named = list(zip(found.series, series_titles(found.series), strict=True))
    anchors = {id(one): f"configuration-{number}" for number, one in enumerate(found.series, start=1)}
    repeated = [(one, title) for one, title in named if len(one.points) > 1]
    newest = [(anchors[id(one)], title, _newest(one)) for one, title in _worst_first(repeated)]
    answer: list[Block] = [Heading(_headline(found), "headline"), _badge(found)]
    answer += [Items(newest)] if newest else ["No configuration was measured in two runs: there is no trend yet."]
    figures = history_figures(found)
    return Page(
        "History of runs",
        "bertbench history",
        [
            Section("", answer, "answer"),
            Section("Trends", [Gallery(figures)] if figures else []),
            Section("Configurations", [_article(one, title, anchors[id(one)]) for one, title in repeated]),
            Section("Measured once", _list([once_line(one, title) for one, title in named
                                                  if len(one.points) == 1])),
            Section("Not read", _list(found.problems)),
            Section("Skipped", _list(found.notes)),
        ],
    )  # fmt: skip


def _list(texts: Sequence[str]) -> list[Block]:
    return [Items([("", "", _short_commits(text)) for text in texts])] if texts else []


def _short_commits(text: str) -> str:
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28}\b", r"\1", text)


def _article(one: Series, title: str, anchor: str) -> Article:
    table, *lines = repeated_blocks(one, title)
    return Article("", [table, *_list([line for line in lines if isinstance(line, str)])], anchor)


def _headline(found: History) -> str:
    repeated = [one for one in found.series if len(one.points) > 1]
    slower, threshold = sum(one.regressed for one in repeated), f"{100 * found.threshold:g} %"
    configurations = wording.counted(len(repeated), "configuration")
    if slower:
        return f"The newest run is slower by more than {threshold} in {slower} of {configurations}."
    return f"The newest runs show no regression in {configurations} (threshold {threshold})."


def _badge(found: History) -> Badge:
    verdicts = [one.points[-1].verdict for one in found.series if len(one.points) > 1]
    if found.regressed:
        return Badge("regression")
    doubtful = sum(verdict in ("cannot decide", "slower") for verdict in verdicts)
    if doubtful:
        return Badge(f"not conclusive: {wording.counted(doubtful, 'configuration')}")
    return Badge("no regression", "good") if verdicts else Badge("one run each", "plain")


def _worst_first(named: Sequence[tuple[Series, str]]) -> list[tuple[Series, str]]:
    order = ("regression", "slower", "cannot decide", "no change", "quicker", "improvement")
    return sorted(named, key=lambda item: order.index(item[0].points[-1].verdict or "no change"))


def _newest(one: Series) -> str:
    point = one.points[-1]
    name = run_names(one)[-1]
    change = f"step time {100 * (point.time_ratio - 1):+.1f} %, " if point.time_ratio is not None else ""
    total = f"; {100 * (point.time_ratio_first - 1):+.1f} % since the first run" if point.time_ratio_first else ""
    changed = f"; changed: {_short_commits('; '.join(point.changed))}" if point.changed else ""
    reason = f" ({point.reason})" if point.reason else ""
    return f"{change}{point.verdict}{reason} in {name} of {point.began[:10]}{total}{changed}"


def history_figures(found: History) -> list[Figure]:
    """Return samples per second by run, one panel per series of two points or more, _MOST_PANELS panels a figure."""
    shown = [one for one in found.series if sum(point.samples_per_second is not None for point in one.points) > 1]
    parts = [shown[begin : begin + _MOST_PANELS] for begin in range(0, len(shown), _MOST_PANELS)]
    return [_figure(part, number, len(parts)) for number, part in enumerate(parts, start=1)]


def _figure(shown: Sequence[Series], number: int, parts: int) -> Figure:
    columns = min(2, len(shown))
    return Figure(
        name="history" if number == 1 else f"history-{number}",
        title="Throughput by run" + (f", part {number} of {parts}" if parts > 1 else ""),
        caption="Samples per second of every run, oldest first. Bars: 95 % interval. Vermilion: regression against the "
        "previous run; green: improvement; orange crosses: failed. Dotted lines mark a changed commit, driver or "
        "library.",
        panels=[_panel(one) for one in shown],
        columns=columns,
        size=(10.6, 3.3 * -(-len(shown) // columns) + 0.3),
        legend="",
    )


def _panel(one: Series) -> Panel:
    row = one.row
    lines = (f"{row['task']} {row['implementation']}", f"{wording.model(row)}, {wording.place(row)}")
    if row["kind"] == "measure":
        lines = (str(row["implementation"]), wording.place(row))
    good = [(place, point) for place, point in enumerate(one.points) if point.samples_per_second]
    speeds = [point.samples_per_second or 0.0 for _, point in good]
    top = 1.45 * max(speeds)
    series: list[Drawn] = [
        *_changes(one.points, top),
        Line(name="samples/s", x=[place for place, _ in good], y=speeds, colour="grey", width=1, legend=False),
    ]
    verdicts = dict.fromkeys(point.verdict or "first" for _, point in good)
    for name in sorted(verdicts, key=lambda name: name in _VERDICTS):  # what changed lies above
        own = [(place, point) for place, point in good if (point.verdict or "first") == name]
        series.append(
            Line(
                name=name,
                x=[place for place, _ in own],
                y=[point.samples_per_second for _, point in own],
                low=[point.samples_per_second_low or 0.0 for _, point in own],
                high=[point.samples_per_second_high or 0.0 for _, point in own],
                colour=_VERDICTS.get(name, "blue"),
                dash="none",
                marker="circle",
            )
        )
    failed = [place for place, point in enumerate(one.points) if point.status != "ok"]
    if failed:
        at_foot = [0.0] * len(failed)
        series.append(
            Line(name="failed", x=failed, y=at_foot, colour="orange", dash="none", marker="cross", beyond=True)
        )
    names = run_names(one)
    ticks = [
        (float(place), f"{one.points[place].began[:10]}\n{short_label(names[place])[:14]}")
        for place in range(0, len(one.points), -(-len(one.points) // _MOST_NAMES))
    ]
    return Panel(
        title="\n".join(printable(textwrap.shorten(line, _TITLE_LETTERS, placeholder="…")) for line in lines),
        x=Axis(ticks=ticks, low=-0.5, high=len(one.points) - 0.5, grid=False, small=True),
        y=Axis(label="samples/s", low=0, high=top),
        series=series,
    )


def _changes(points: Sequence[Point], top: float) -> list[Drawn]:
    """A line at every run with another commit or version; labels at all of a few, else where the speed changed."""
    changed = [(place, point) for place, point in enumerate(points) if point.changed]
    labelled = changed
    if len(labelled) > _MOST_CHANGES:
        labelled = [(place, point) for place, point in changed if point.verdict in _VERDICTS][-_MOST_CHANGES:]
    rules: list[Drawn] = [
        Rule(name=short_label(_short_commits("; ".join(point.changed))), axis="x", at=place, dash="dotted")
        for place, point in changed
    ]
    return rules + [
        Text(
            name="change",
            x=place,
            y=top,
            text=change_label(point.changed),
            shift=(0.0, -_ROW_POINTS * (number % _CHANGE_ROWS)),
            align="center",
            upright="top",
            colour="note",
        )
        for number, (place, point) in enumerate(labelled)
    ]


def change_label(changed: Sequence[str]) -> str:
    """Return a short label of changes: the new commit or first changed version, and the number of others."""
    first = next((text for text in changed if text.startswith("commit ")), changed[0])
    name, new = first.split(" ", 1)[0], first.rpartition(" -> ")[2]
    if name == "commit":
        label = new.removesuffix("+")[:_COMMIT_LETTERS] + ("+" if new.endswith("+") else "")
    else:
        label = f"{name} {new}"
    more = f" +{len(changed) - 1}" if len(changed) > 1 else ""
    return short_label(label)[: _CHANGE_LETTERS - len(more)] + more
