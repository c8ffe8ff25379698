"""The panels of a page: one per finding, with its pictures, what it means, and its table."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.counters import KernelCounters
from analysis.diagnose.explain import counter_endings
from analysis.diagnose.finding import Finding
from analysis.render import tables
from analysis.render.drawing import Picture
from analysis.render.finding_tables import table_of
from analysis.sources import Source

Pictures = dict[str, list[Picture]]


def draw(source: Source, folder: Path, measured: Mapping[str, float] | None = None) -> Pictures:
    """Draw every picture that a source has the numbers for; return them by the name of a finding.

    Args:
        source: what was read.
        folder: where the PNGs go.
        measured: measured ceilings, as roofline takes them.

    Raises:
        StorageError: a picture cannot be written.
    """
    found: Pictures = {}
    if source.timelines:
        _timelines(source, folder, found)
        _communication(source, folder, found)
    for counters, ending in zip(source.counters, counter_endings(source), strict=True):
        _cores(counters, folder, found, ending, measured)
    return found


def _timelines(source: Source, folder: Path, found: Pictures) -> None:
    from analysis.render.timeline_figures import draw_timelines

    found["temporal_breakdown"] = draw_timelines(folder, source.timelines)


def _communication(source: Source, folder: Path, found: Pictures) -> None:
    from analysis.render import communication_figures as figures

    if not any(len(timeline.collectives) for timeline in source.timelines):
        return
    drawings: tuple[tuple[str, str, Callable[..., Path | None], str, str], ...] = (
        (
            "all_reduce_by_rank",
            "communication.png",
            figures.draw_all_reduce_panel,
            "Communication per rank",
            "Overlapped: computation ran meanwhile. Transfer: the shortest duration of a collective over the ranks, "
            "what it takes when nobody waits. Wait: the rest, spent until the last rank came.",
        ),
        (
            "buckets",
            "buckets.png",
            figures.draw_bucket_timeline,
            "Collectives of one step",
            "When each ran on each rank; the exposed part has no computation beside it.",
        ),
        (
            "collectives",
            "bandwidth.png",
            figures.draw_bandwidth,
            "Bus bandwidth by message size",
            "One point per collective. Small messages are bound by latency, large ones by the links' rate.",
        ),
    )
    for finding, file, drawing, title, caption in drawings:
        path = drawing(folder / file, source.timelines)
        if path is not None:
            found.setdefault(finding, []).append(Picture(path, title, caption))


def _cores(
    counters: KernelCounters, folder: Path, found: Pictures, ending: str, measured: Mapping[str, float] | None
) -> None:
    from analysis.metrics.kernels.core_utilization import core_use_by_family
    from analysis.metrics.kernels.roofline import roofline
    from analysis.render import core_figures as figures

    groups = core_use_by_family(counters)
    if any(use.percent is not None for group in groups.values() for use in group.pipes.values()):
        path = figures.draw_core_utilization(folder / f"cores{ending}.png", groups, "kind of work")
        caption = "Share of the highest rate while kernels of this kind run; pale: cycles in which the pipe worked."
        found[f"core_utilization_by_family{ending}"] = [Picture(path, "Use of the cores", caption)]
    lines = roofline(counters, measured)
    if len(lines.kernels) and lines.kernels["achieved_flops"].notna().any():
        path = figures.draw_roofline(folder / f"roofline{ending}.png", lines)
        caption = "Under the slope a kernel waits for memory, under the roof for cores; far below both, for neither."
        found[f"roofline{ending}"] = [Picture(path, "Roofline", caption)]


MOST_ROWS = 200
"""Rows of one table that a page holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One finding on a page."""

    anchor: str
    """Identifier on the page, distinct."""
    title: str
    sentence: str
    """What it means and what to try; "" for nothing."""
    pictures: tuple[Picture, ...]
    """Pictures of it, drawn."""
    table: tables.Table | None
    """Its rows, MOST_ROWS at most; None where it has none."""
    left_out: str
    """How many rows are not shown; "" for none."""


def panels(
    source: Source,
    findings: Sequence[Finding],
    folder: Path,
    prefix: str = "",
    measured: Mapping[str, float] | None = None,
) -> list[Panel]:
    """Draw the pictures of a source and return the panels of its findings, in their order.

    Args:
        source: what was read.
        findings: what `explain` said of it.
        folder: where the PNGs go.
        prefix: begins the anchors, where a page shows several sources.
        measured: measured ceilings, the same that `explain` was given.

    Raises:
        StorageError: a picture cannot be written.
    """
    drawn = draw(source, folder, measured)
    return [_panel(finding, drawn.get(finding.name, ()), prefix) for finding in findings]


def _panel(finding: Finding, pictures: Sequence[Picture], prefix: str) -> Panel:
    left = len(finding.table) - MOST_ROWS
    return Panel(
        anchor=f"{prefix}{finding.name}",
        title=finding.title,
        sentence=finding.sentence,
        pictures=tuple(pictures),
        table=table_of(finding, MOST_ROWS) if len(finding.table) else None,
        left_out=f"{left:,} more rows are in {finding.name}.csv" if left > 0 else "",
    )
