"""The HTML page of a profile that lies outside a run directory: a trace, a folder of ranks, a table, a log."""

from collections.abc import Sequence
from pathlib import Path

from analysis import wording
from analysis.diagnose.finding import Finding
from analysis.render import tables
from analysis.render.page import render_page
from analysis.render.panels import Panel, panels
from analysis.render.report_folder import report_folder
from analysis.sources import Source
from analysis.timeline import Timeline
from common.atomic import write_text

# Findings by how much they decide.
_FIRST = (
    "temporal_breakdown",
    "idle_causes",
    "idle_gaps",
    "all_reduce_by_rank",
    "stragglers",
    "what_if",
    "kernel_families",
    "operator_families",
    "phases",
    "core_utilization",
    "roofline",
)
_MOST_FIRST = 6


def write_source_report(source: Source, findings: Sequence[Finding], folder: Path) -> Path:
    """Write report.html, its pictures and its CSV tables into a folder; return the page, which holds its pictures.

    Args:
        source: what was read.
        findings: what `explain` said of it.
        folder: made when it is not there.

    Raises:
        StorageError: the folder cannot be written.
    """
    with report_folder(folder):
        return _write(source, findings, folder)


def _write(source: Source, findings: Sequence[Finding], folder: Path) -> Path:
    shown = panels(source, findings, folder)
    for finding in findings:
        tables.write_frame(folder / f"{finding.name}.csv", finding.table)
    said = sorted((panel for panel in shown if panel.sentence), key=_place)
    context = {
        "title": source.path.resolve().name,
        "facts": facts(source),
        "problems": source.problems,
        "panels": shown,
        "first": said[:_MOST_FIRST],
        "further": said[_MOST_FIRST:],
    }
    path = folder / "report.html"
    write_text(path, render_page("source.html", context))
    return path


def _place(panel: Panel) -> int:
    """What decides most comes first; what is not listed, last, in its order."""
    return next((place for place, name in enumerate(_FIRST) if panel.anchor.startswith(name)), len(_FIRST))


def facts(source: Source) -> list[tuple[str, str]]:
    """Return what was read, as (name, value)."""
    rows = [("read from", source.path.name), ("kind", ", ".join(source.kinds))]
    timelines = source.timelines
    if timelines:
        devices = [name for found in timelines for name in found.devices.values()]
        sizes = {found.world_size for found in timelines if found.world_size}
        of = f" of {max(sizes)}" if sizes else ""
        rows.append(("ranks", f"{len(timelines)}{of}"))
        rows.append(("written by", _distinct([found.source for found in timelines])))
        rows.append(("GPUs", _distinct(devices) or "none named"))
        rows.append(("events", wording.count(sum(_events(found) for found in timelines))))
    for counters in source.counters:
        rows.append(("GPU", counters.device_name or "not named"))
        rows.append(("kernels counted", wording.count(len(counters.kernels))))
    rows += [
        ("table", f"{found.title} ({found.source})" if found.source else found.title) for found in source.summaries
    ]
    return [(name, value) for name, value in dict.fromkeys(rows) if value]


def _events(timeline: Timeline) -> int:
    names = ("steps", "operators", "kernels", "ranges", "api")
    return sum(len(getattr(timeline, name)) for name in names)


def _distinct(words: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(word for word in words if word))
