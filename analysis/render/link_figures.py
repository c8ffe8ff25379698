"""The figure of fitted links: time by message size, and its residuals."""

from collections.abc import Sequence

import numpy as np

from analysis.metrics.communication.links import Link
from analysis.render.figure import CYCLE, Axis, Figure, Line, Marker, Panel, Rule, Series, short_label, size_axis
from analysis.render.link_tables import named

_MARKERS: tuple[Marker, ...] = ("circle", "square", "triangle", "diamond", "down", "plus")


_MOST_LINES = 8


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
