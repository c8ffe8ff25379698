"""Figures, tables and sentences of a report about collectives and projections to more devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.load import LoadedTrial
from analysis.metrics.communication.links import Link, fitted_links, link_rows, residual_rows
from analysis.metrics.communication.projection import project
from analysis.render.figure import CYCLE, Axis, Figure, Line, Marker, Panel, Rule, Series, short_label, size_axis
from analysis.render.link_tables import (
    collectives_table,
    links_table,
    named,
    projection_note,
    projection_table,
    refusals,
)
from analysis.render.page import Block, Details, Gallery, Prose, Section

Row = Mapping[str, Any]

_MARKERS: tuple[Marker, ...] = ("circle", "square", "triangle", "diamond", "down", "plus")
_MOST_LINES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkPart:
    """The parts of a report about links between devices."""

    sections: tuple[Section, ...]
    rows: Mapping[str, Sequence[Row]]
    """Collectives, links, their residuals and projections as plain values, by the name of their CSV file."""


def link_part(trials: Sequence[LoadedTrial], project_to: Sequence[int] = ()) -> LinkPart:
    """Return the collectives of a run and the projections to more devices.

    Args:
        trials: all of the run.
        project_to: numbers of devices.
    """
    measured = [trial for trial in trials if trial.trial.kind == "comm" and trial.row["status"] == "ok"]
    links = fitted_links(measured)
    by_size = [row for trial in measured for row in trial.row["by_size"]]
    projected = project(trials, project_to) if project_to else []
    return LinkPart(
        sections=(
            Section("Projection to more devices", _projection_blocks(projected)),
            Section("Collectives", _collective_blocks(links, by_size)),
        ),
        rows={
            "collectives": by_size,
            "links": link_rows(links),
            "link_residuals": residual_rows(links),
            "projection": projected,
        },
    )


def _projection_blocks(projected: Sequence[Row]) -> list[Block]:
    made = [row for row in projected if not row["reason"]]
    blocks: list[Block] = [Prose(projection_note(made), "meaning"), projection_table(made)] if made else []
    return [*blocks, *(Prose(line, "meaning") for line in refusals(projected))]


def _collective_blocks(links: Sequence[Link], by_size: Sequence[Row]) -> list[Block]:
    if not by_size:
        return []
    blocks: list[Block] = [Gallery([links_figure(links)]), links_table(link_rows(links))] if links else []
    return [*blocks, Details(f"{len(by_size)} sizes", [collectives_table(by_size)])]


def links_figure(links: Sequence[Link]) -> Figure:
    """Return time by size with the fitted lines, and their residuals; at least one link."""
    lines = [(link, ranks) for link in links for ranks in link.ranks]
    times: list[Series] = []
    errors: list[Series] = [Rule(name="no error", axis="y", at=0)]
    for number, (link, ranks) in enumerate(lines[:_MOST_LINES]):
        own, off = _link_lines(link, ranks, CYCLE[number % len(CYCLE)], _MARKERS[number % len(_MARKERS)])
        times += own
        errors += off
    left_out = f" The first {_MOST_LINES} of {len(lines)} are shown." if len(lines) > _MOST_LINES else ""
    sizes = size_axis("size", {size for link in links for size in link.sizes})
    return Figure(
        name="collectives",
        title="All-reduce: time by message size",
        caption="The line is latency + bytes / bandwidth; "
        f"residuals that bend tell where another algorithm or protocol begins.{left_out}",
        panels=[
            Panel(
                title="measured (points) and fitted (lines)",
                x=sizes,
                y=Axis(label="time of one operation", unit="µs", scale="log", form="number"),
                series=times,
            ),
            Panel(title="residuals", x=sizes, y=Axis(label="fitted / measured - 1", unit="%"), series=errors),
        ],
        columns=2,
        widths=(1.35, 1),
        size=(10.6, 4.2),
    )


def _link_lines(link: Link, ranks: int, colour: str, marker: Marker) -> tuple[list[Series], list[Series]]:
    points = [point for point in link.points if point.ranks == ranks]
    sizes = [point.size_bytes for point in points]
    name = short_label(f"{named(link)}, {ranks} ranks")
    measured = Line(
        name=name, x=sizes, y=[point.time_us for point in points], colour=colour, marker=marker, size=4.5, dash="none",
    )  # fmt: skip
    if link.reason:
        return [measured], []
    along = np.geomspace(min(sizes), max(sizes), 100)
    fitted = Line(
        name=f"{name}, fitted", x=along, y=[link.time_us(size, ranks) for size in along], colour=colour, width=1.3,
        legend=False,
    )  # fmt: skip
    off = [100 * error for point, error in zip(link.points, link.errors, strict=True) if point.ranks == ranks]
    return [measured, fitted], [Line(name=name, x=sizes, y=off, colour=colour, marker=marker, size=4, width=1)]
