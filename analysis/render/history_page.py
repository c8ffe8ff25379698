"""The HTML page of the history of runs: trend lines with the commits and versions that changed, and its tables."""

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from analysis import wording
from analysis.metrics.comparison.history import History, Series
from analysis.render import tables
from analysis.render.figure import Figure
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
from analysis.render.training_figures import lines_figure

_MOST_LINES = 8


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
    """Return samples per second by run, a line for each of at most eight configurations of two points or more."""
    lines = {}
    for one in found.series:
        row = one.row
        name = f"{wording.place(row)}, {row['implementation']} {wording.model(row)}"
        good = [(place, point.samples_per_second) for place, point in enumerate(one.points) if point.samples_per_second]
        if len(good) > 1:
            lines[name] = ([place for place, _ in good], [speed for _, speed in good])
    left = f" The first {_MOST_LINES} of {len(lines)} configurations." if len(lines) > _MOST_LINES else ""
    panel = ("run", "samples/s", dict(list(lines.items())[:_MOST_LINES]), None)
    return [lines_figure("history", "Throughput by run", f"Of every run.{left}", [panel])] if lines else []
