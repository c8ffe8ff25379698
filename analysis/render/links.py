"""Figures, tables and sentences of a report about collectives and projections to more devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis import wording
from analysis.load import LoadedTrial
from analysis.metrics.communication.links import Link, fitted_links, link_rows, residual_rows
from analysis.metrics.communication.projection import project
from analysis.render.figure import CYCLE, Area, Axis, Figure, Line, Marker, Panel, Rule, Series, short_label, size_axis
from analysis.render.link_tables import (
    assumptions,
    by_reason,
    collectives_table,
    link_sentences,
    links_table,
    named,
    projection_table,
)
from analysis.render.page import Block, Details, Gallery, Prose, Section

Row = Mapping[str, Any]

_MARKERS: tuple[Marker, ...] = ("circle", "square", "triangle", "diamond", "down", "plus")
_MOST_LINES = 8
_MOST_CONFIGURATIONS = 4
_PROJECTED = (
    "Simulated, not measured: buckets of gradients are reduced during the measured backward pass, each taking "
    "what the line of the measured all-reduces gives for so many ranks; a step waits for the slowest of the devices. "
    'The interval holds the uncertainty of the line and the variance of the steps. "check" is the same simulation of '
    "the devices that were measured."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkPart:
    """The parts of a report about links between devices."""

    sections: tuple[Section, ...]
    rows: Mapping[str, Sequence[Row]]
    """Collectives, links, their residuals and projections as plain values, by the name of their CSV file."""


def link_part(
    trials: Sequence[LoadedTrial],
    scaling: Sequence[Row],
    project_to: Sequence[int] = (),
    same_links: bool = False,
    no_interference: bool = False,
) -> LinkPart:
    """Return the collectives of a run and the projections to more devices.

    Args:
        trials: all of the run.
        scaling: what scaling.measured_efficiency returned of them.
        project_to: numbers of devices.
        same_links: as metrics.projection.project takes it.
        no_interference: the same.

    Raises:
        UsageError: a number of devices no projection is made to.
    """
    measured = [trial for trial in trials if trial.trial.kind == "comm" and trial.row["status"] == "ok"]
    links = fitted_links(measured)
    by_size = [row for trial in measured for row in trial.row["by_size"]]
    projected = project(trials, project_to, same_links, no_interference=no_interference) if project_to else []
    return LinkPart(
        sections=(
            Section("Projection to more devices", _projection_blocks(projected, scaling)),
            Section("Collectives", _collective_blocks(links, by_size)),
        ),
        rows={
            "collectives": by_size,
            "links": link_rows(links),
            "link_residuals": residual_rows(links),
            "projection": projected,
        },
    )


def _projection_blocks(projected: Sequence[Row], scaling: Sequence[Row]) -> list[Block]:
    if not projected:
        return []
    shown = [row for row in projected if not row["reason"]]
    further = [row for row in shown if row["efficiency"] is not None]
    blocks: list[Block] = [Prose(_PROJECTED, "faint")]
    if further:
        blocks.append(Gallery([projection_figure(further, scaling)]))
    if shown:
        blocks.append(projection_table(shown))
        blocks += [Prose(line, "faint") for line in assumptions(shown)]
    refused = by_reason(projected, _what).items()
    return [*blocks, *(Prose(f"Not projected: {'; '.join(names)}: {reason}", "meaning") for reason, names in refused)]


def _collective_blocks(links: Sequence[Link], by_size: Sequence[Row]) -> list[Block]:
    if not by_size:
        return []
    blocks: list[Block] = [Prose(sentence, "meaning") for sentence in link_sentences(links)]
    if links:
        blocks += [Gallery([links_figure(links)]), links_table(link_rows(links))]
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
        title="Collectives: time by message size",
        caption="Bars: 95 % of the repetitions. The line is latency + bytes / bandwidth; "
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
    """Measured times with the fitted line, and the residuals."""
    points = [point for point in link.points if point.ranks == ranks]
    sizes = [point.size_bytes for point in points]
    low, high = np.array([np.percentile(np.concatenate(point.times_us), (2.5, 97.5)) for point in points]).T
    nodes = f", {link.nodes} nodes" if link.nodes > 1 else ""
    name = short_label(f"{named(link)}, {ranks} ranks{nodes}")
    measured = Line(
        name=name, x=sizes, y=[point.time_us for point in points], low=low, high=high, colour=colour, marker=marker,
        size=4.5, dash="none",
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


def projection_figure(rows: Sequence[Row], scaling: Sequence[Row]) -> Figure:
    """Return measured throughput as full lines, projected throughput as dashes with a band.

    Args:
        rows: projections that were made, at least one.
        scaling: measured scaling, as scaling.measured_efficiency returns it.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(rows, key=lambda row: -int(row["micro_batch_size"])):
        groups.setdefault(_configuration(row), []).append(row)
    one_model = len({wording.model(row) for row in rows}) == 1
    several = len({row["strategy"] for row in rows}) > 1
    rates: list[Series] = []
    efficiencies: list[Series] = [Rule(name="100 %", axis="y", at=100)]
    shown: list[Row] = []
    for (key, members), colour in zip([*groups.items()][:_MOST_CONFIGURATIONS], CYCLE, strict=False):
        members = sorted(members, key=lambda row: int(row["world_size"]))
        shown += members
        measured = [row for row in scaling if row["scaling"] == "weak" and _configuration(row) == key]
        words = [members[0]["implementation"], *([members[0]["strategy"]] if several else [])]
        name = " ".join(words if one_model else [*words, wording.model(members[0])])
        own, shares = _projected(members, measured, f"{name}, batch {wording.batch(members[0])}", colour)
        rates += own
        efficiencies += shares
    sizes = {int(row["world_size"]) for row in shown} | {int(row["base_world_size"]) for row in shown}
    known = {int(row["world_size"]) for row in scaling if _configuration(row) in groups}
    top = max(100 * float(row["efficiency_high"]) for row in shown)
    assumed = next((f" Assumed: {row['assumption']}." for row in shown if row["assumption"]), "")
    model = f"BERT {wording.model(rows[0])}: " if one_model else ""
    return Figure(
        name="projection",
        title="Projection to more devices",
        caption="A PROJECTION, not a measurement: dashes and hollow points are simulated from the measured backward "
        "pass and the line of the measured all-reduces, bands are their 95 % interval; full points were "
        f"measured.{assumed}",
        panels=[
            Panel(
                title=f"{model}throughput, batch per device kept",
                x=_devices(sizes | known),
                y=Axis(label="samples per second", scale="log2", form="number"),
                series=rates,
            ),
            Panel(
                title="relative to the most devices measured",
                x=_devices(sizes),
                y=Axis(label="projected efficiency", unit="%", low=0, high=max(110.0, 1.05 * top)),
                series=efficiencies,
            ),
        ],
        columns=2,
        size=(10.6, 4.0),
        legend_columns=2,
    )


def _devices(sizes: set[int]) -> Axis:
    return Axis(label="devices", scale="log2", ticks=[(float(size), str(size)) for size in sorted(sizes)])


def _configuration(row: Row) -> tuple[Any, ...]:
    batch = ("micro_batch_size", "grad_accum_steps")
    names = ("implementation", "strategy", "preset", "precision", "seq_len", "device", *batch)
    return tuple(row[name] for name in names)


def _projected(
    members: Sequence[Row], known: Sequence[Row], name: str, colour: str
) -> tuple[list[Series], list[Series]]:  # fmt: skip
    """Throughput and efficiency of one configuration."""
    first = members[0]
    base = int(first["base_world_size"])
    # The rate of the base follows from what a projection is relative to.
    start = first["samples_per_second"] * base / first["world_size"] / first["efficiency"]
    points = {int(row["world_size"]): float(row["samples_per_second"]) for row in known} or {base: start}
    sizes = sorted(points)
    measured, projected = short_label(f"measured: {name}"), short_label(f"projected: {name}")
    rates: list[Series] = [
        Line(name=measured, x=sizes, y=[points[size] for size in sizes], colour=colour, marker="circle")
    ]
    shares: list[Series] = []
    for series, field, factor, origin in (
        (rates, "samples_per_second", 1, start), (shares, "efficiency", 100, 1.0),
    ):  # fmt: skip
        x = [base, *(int(row["world_size"]) for row in members)]
        middle, low, high = (
            [factor * origin, *(factor * float(row[f"{field}{side}"]) for row in members)]
            for side in ("", "_low", "_high")
        )
        series.append(Area(name=projected, x=x, low=low, high=high, colour=colour, opacity=0.15, legend=False))
        series.append(Line(name=projected, x=x, y=middle, colour=colour, dash="dashed", width=1.5))
        series.append(
            Line(name=projected, x=x[1:], y=middle[1:], colour=colour, dash="none", marker="circle", size=5.5,
                 hollow=True, legend=False)
        )  # fmt: skip
    shares.append(Line(name=measured, x=[base], y=[100.0], colour=colour, marker="circle", dash="none"))
    return rates, shares


def _what(row: Row) -> str:
    name = f"{row['implementation']} {row['strategy']}" if " " in row["strategy"] else row["implementation"]
    return f"{name} {wording.model(row)} batch {wording.batch(row)} to {row['world_size']} devices"
