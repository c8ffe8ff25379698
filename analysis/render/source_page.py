"""The HTML page of a profile that lies outside a run directory: a trace, a folder of ranks, a table, a log."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from analysis import wording
from analysis.diagnose.advice import Advice
from analysis.diagnose.explain import by_weight, counter_endings, to_do
from analysis.diagnose.finding import Finding
from analysis.render import tables
from analysis.render.page import (
    Article,
    Block,
    Callout,
    Details,
    Heading,
    Items,
    Page,
    Section,
    finding_panel,
    report_folder,
    write_page,
)
from analysis.render.tables import Facts
from analysis.render.trace_figures import Figures, trace_figures
from analysis.sources import Source
from analysis.timeline import Timeline

_MOST_FIRST = 6


def source_figures(source: Source, measured: Mapping[str, float] | None = None) -> Figures:
    """Return every figure for which a source has data, by the name of its finding.

    Args:
        source: what was read.
        measured: measured ceilings, as roofline takes them.
    """
    found = trace_figures(source.timelines) if source.timelines else {}
    for counters, ending in zip(source.counters, counter_endings(source), strict=True):
        from analysis.render.kernel_figures import kernel_figures

        found |= kernel_figures(counters, ending, measured)
    return found


def source_panels(
    source: Source,
    findings: Sequence[Finding],
    prefix: str = "",
    folder: str = "",
    measured: Mapping[str, float] | None = None,
) -> list[Article]:
    """Return the panels of the findings of a source, in their order.

    Args:
        source: what was read.
        findings: what `explain` returned.
        prefix: begins the anchors, where a page shows several sources.
        folder: of the figures' files, below that of the page.
        measured: measured ceilings, the same that `explain` was given.
    """
    figures = source_figures(source, measured)
    return [finding_panel(finding, figures.get(finding.name, ()), prefix, folder) for finding in findings]


def write_source_report(source: Source, findings: Sequence[Finding], folder: Path) -> Path:
    """Write report.html, its figures and its CSV tables into a folder; return the page, which holds its figures.

    Args:
        source: what was read.
        findings: what `explain` returned.
        folder: created if missing.

    Raises:
        StorageError: the folder cannot be written.
    """
    with report_folder(folder):
        for finding in findings:
            tables.write_frame(folder / f"{finding.name}.csv", finding.table)
        return write_page(source_page(source, findings), folder)[0]


def source_page(source: Source, findings: Sequence[Finding]) -> Page:
    """Return the page of a source and of its findings."""
    said = [(one.name, one.title, one.sentence) for one in by_weight(findings) if one.sentence]
    answer: list[Block] = ["This profile has no findings."]
    if said:
        answer = [Items(said[:_MOST_FIRST], start=1)]
    if said[_MOST_FIRST:]:
        further = Items(said[_MOST_FIRST:], start=_MOST_FIRST + 1)
        answer.append(Details(f"{len(said) - _MOST_FIRST} more", [further]))
    answer = [*advice_blocks(to_do(source, findings)), *answer]
    read: list[Block] = [Facts(facts(source))]
    if source.problems:
        problems = Items([("", "", problem) for problem in source.problems])
        read += [Heading("Not read or not in the profile"), problems]
    return Page(
        source.path.resolve().name,
        "bertbench profile report",
        [
            Section("Findings", answer, "answer"),
            Section("Input", read),
            Section("Details", source_panels(source, findings)),
        ],
    )


def advice_blocks(advice: Sequence[Advice]) -> list[Block]:
    """Return what to do first, and at most three more."""
    if not advice:
        return []
    first: list[Block] = [advice[0].text]
    if advice[1:]:
        first.append(Items([("", "", one.text) for one in advice[1:]], start=2))
    return [Callout("Do this first", first)]


def facts(source: Source) -> list[tuple[str, str]]:
    """Return facts about the input as (name, value)."""
    rows = [("source", source.path.name), ("kind", ", ".join(source.kinds))]
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
