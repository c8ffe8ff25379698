"""What a report says of collectives and of projections: tables, pictures and sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import wording
from analysis.load import LoadedTrial
from analysis.metrics.communication.links import Link, fitted_links, link_rows, residual_rows
from analysis.metrics.communication.projection import project
from analysis.render import tables
from analysis.render.drawing import LINES, STYLE, Picture, canvas, save, short_label
from analysis.render.link_tables import (
    by_reason,
    collectives_table,
    link_sentences,
    links_table,
    named,
    projection_table,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]

_MARKERS = ("o", "s", "^", "D", "v", "P")
_MOST_LINES = 8
_MOST_CONFIGURATIONS = 4
_TICKS = 6
# Letters of 8.5 points in the width of the picture, and those that a handle takes the place of.
_LEGEND_LETTERS, _HANDLE_LETTERS = 150, 8


def draw_links(folder: Path, links: Sequence[Link]) -> list[Picture]:
    """Draw time against size with the fitted lines, and how far each measured time is off. Raises StorageError."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        figure, (times, errors) = canvas(10.6, 4.2, 1, 2, width_ratios=(1.35, 1))
        number = 0
        for link in links:
            for ranks in link.ranks:
                if number < _MOST_LINES:
                    _line(times, errors, link, ranks, number)
                    number += 1
        for axis in (times, errors):
            _sizes_below(axis, links)
        times.set_yscale("log")
        times.yaxis.set_major_formatter(lambda value, _: wording.number(value))
        times.set_ylabel("time of one operation (µs)")
        times.set_title("measured (points) and fitted (lines)")
        errors.axhline(0, color="#9AA5B1", linewidth=1)
        errors.set_ylabel("fitted / measured - 1 (%)")
        errors.set_title("residuals")
        handles, names = times.get_legend_handles_labels()
        beside = min(4, max(1, int(_LEGEND_LETTERS / (max(map(len, names), default=1) + _HANDLE_LETTERS))))
        figure.legend(handles, names, loc="outside upper left", ncols=beside, fontsize=8.5)
        path = folder / "collectives.png"
        save(figure, path)
    left_out = f" The first {_MOST_LINES} of {_count(links)} are shown." if _count(links) > _MOST_LINES else ""
    caption = (
        "Bars: 95 % of the repetitions. The line is latency + bytes / bandwidth; "
        f"residuals that bend tell where another algorithm or protocol begins.{left_out}"
    )
    return [Picture(path, "Collectives: time against size", caption)]


def _count(links: Sequence[Link]) -> int:
    return sum(len(link.ranks) for link in links)


def _line(times: "Axes", errors: "Axes", link: Link, ranks: int, number: int) -> None:
    colour, marker = LINES[number % len(LINES)], _MARKERS[number % len(_MARKERS)]
    points = [point for point in link.points if point.ranks == ranks]
    sizes = [point.size_bytes for point in points]
    measured = np.array([point.time_us for point in points])
    spread = np.array([np.percentile(np.concatenate(point.times_us), (2.5, 97.5)) for point in points])
    nodes = f", {link.nodes} nodes" if link.nodes > 1 else ""
    label = short_label(f"{named(link)}, {ranks} ranks{nodes}")
    bars = [np.maximum(measured - spread[:, 0], 0), np.maximum(spread[:, 1] - measured, 0)]
    times.errorbar(
        sizes, measured, yerr=bars, color=colour, marker=marker, markersize=4.5, linestyle="none", capsize=2,
        label=label,
    )  # fmt: skip
    if link.reason:
        return
    along = np.geomspace(min(sizes), max(sizes), 100)
    times.plot(along, [link.time_us(size, ranks) for size in along], color=colour, linewidth=1.3)
    off = [100 * error for point, error in zip(link.points, link.errors, strict=True) if point.ranks == ranks]
    errors.plot(sizes, off, color=colour, marker=marker, markersize=4, linewidth=1)


def _sizes_below(axis: "Axes", links: Sequence[Link]) -> None:
    sizes = sorted({size for link in links for size in link.sizes})
    powers = np.arange(np.floor(np.log2(sizes[0])), np.ceil(np.log2(sizes[-1])) + 1)
    ticks = 2.0 ** powers[:: max(1, -(-len(powers) // _TICKS))]
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [wording.size(tick) for tick in ticks])
    axis.minorticks_off()
    axis.set_xlabel("size")


def draw_projection(folder: Path, rows: Sequence[Row], scaling: Sequence[Row]) -> list[Picture]:
    """Draw measured throughput with full lines, projected with dashes and a band. Raises StorageError.

    Args:
        folder: where the PNG goes.
        rows: projections that were made.
        scaling: measured scaling, as scaling.measured_efficiency returns it.
    """
    import matplotlib

    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(rows, key=lambda row: -int(row["micro_batch_size"])):
        groups.setdefault(_configuration(row), []).append(row)
    one_model = len({wording.model(row) for row in rows}) == 1
    several = len({row["strategy"] for row in rows}) > 1
    with matplotlib.rc_context(STYLE):
        figure, (rate, efficiency) = canvas(10.6, 4.0, 1, 2)
        for number, (key, members) in enumerate([*groups.items()][:_MOST_CONFIGURATIONS]):
            members = sorted(members, key=lambda row: int(row["world_size"]))
            measured = [row for row in scaling if row["scaling"] == "weak" and _configuration(row) == key]
            words = [members[0]["implementation"]]
            words += [members[0]["strategy"]] if several else []
            name = " ".join(words if one_model else [*words, wording.model(members[0])])
            _curve(rate, efficiency, members, measured, (name, LINES[number]))
        shown = [row for members in [*groups.values()][:_MOST_CONFIGURATIONS] for row in members]
        sizes = {int(row["world_size"]) for row in shown} | {int(row["base_world_size"]) for row in shown}
        known = {int(row["world_size"]) for row in scaling if _configuration(row) in groups}
        for axis, places in ((rate, sorted(sizes | known)), (efficiency, sorted(sizes))):
            axis.set_xscale("log", base=2)
            axis.set_xticks(places, [str(size) for size in places])
            axis.minorticks_off()
            axis.set_xlabel("devices")
        rate.set_yscale("log", base=2)
        rate.yaxis.set_major_formatter(lambda value, _: wording.number(value))
        rate.set_ylabel("samples per second")
        rate.set_title("throughput, batch per device kept")
        if one_model:
            figure.suptitle(f"BERT {wording.model(rows[0])}", fontsize=9.5, x=0.99, ha="right")
        efficiency.axhline(100, color="#9AA5B1", linewidth=1)
        top = max(100 * float(row["efficiency_high"]) for row in shown)
        efficiency.set_ylim(0, max(110.0, 1.05 * top))
        efficiency.set_ylabel("projected efficiency (%)")
        efficiency.set_title("against the most devices measured")
        figure.legend(*rate.get_legend_handles_labels(), loc="outside upper left", ncols=2, fontsize=8.5)
        path = folder / "projection.png"
        save(figure, path)
    assumed = next((f" Assumed: {row['assumption']}." for row in shown if row["assumption"]), "")
    caption = (
        "A PROJECTION, not a measurement: dashes and hollow points are simulated from the measured backward pass and "
        f"the line of the measured all-reduces, bands are their 95 % interval; full points were measured.{assumed}"
    )
    return [Picture(path, "Projection to more devices", caption)]


def _configuration(row: Row) -> tuple[Any, ...]:
    batch = ("micro_batch_size", "grad_accum_steps")
    names = ("implementation", "strategy", "preset", "precision", "seq_len", "device", *batch)
    return tuple(row[name] for name in names)


def _curve(
    rate: "Axes", efficiency: "Axes", members: Sequence[Row], known: Sequence[Row], look: tuple[str, str]
) -> None:  # fmt: skip
    first = members[0]
    name, colour = f"{look[0]}, batch {wording.batch(first)}", look[1]
    base = int(first["base_world_size"])
    # The rate of the base follows from what a projection is relative to.
    start = first["samples_per_second"] * base / first["world_size"] / first["efficiency"]
    points = {int(row["world_size"]): float(row["samples_per_second"]) for row in known} or {base: start}
    points = {size: points[size] for size in sorted(points)}
    rate.plot(
        [*points], [*points.values()], color=colour, marker="o", markersize=5, linewidth=1.8,
        label=short_label(f"measured: {name}"),
    )  # fmt: skip
    sizes = [base, *(int(row["world_size"]) for row in members)]
    for axis, column, factor, origin in ((rate, "samples_per_second", 1, start), (efficiency, "efficiency", 100, 1.0)):
        middle, low, high = (
            [factor * origin, *(factor * float(row[f"{column}{side}"]) for row in members)]
            for side in ("", "_low", "_high")
        )
        axis.fill_between(sizes, low, high, color=colour, alpha=0.15, linewidth=0)
        label = short_label(f"projected: {name}") if axis is rate else None
        axis.plot(sizes, middle, color=colour, linestyle="--", linewidth=1.5, label=label)
        axis.plot(sizes[1:], middle[1:], color=colour, linestyle="none", marker="o", markersize=5.5,
                  markerfacecolor="white")  # fmt: skip
    efficiency.plot([base], [100.0], color=colour, marker="o", markersize=5)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkPart:
    """The parts of a report about links between devices."""

    sentences: tuple[str, ...]
    link_pictures: tuple[Picture, ...]
    projection_pictures: tuple[Picture, ...]
    tables: Mapping[str, tables.Table]
    """collectives, links and projection, where there are any."""
    refused: tuple[str, ...]
    """Why projections that were asked for are not made."""
    rows: Mapping[str, Sequence[Row]]
    """The same as plain values, by the name of their CSV file."""


def link_part(
    trials: Sequence[LoadedTrial],
    scaling: Sequence[Row],
    folder: Path,
    project_to: Sequence[int] = (),
    same_links: bool = False,
) -> LinkPart:
    """Draw and tabulate the collectives of a run, and what they let one say of more devices.

    Args:
        trials: all of the run.
        scaling: what scaling.measured_efficiency returned of them.
        folder: where the PNGs go.
        project_to: numbers of devices.
        same_links: as metrics.projection.project takes it.

    Raises:
        UsageError: a number of devices no projection is made to.
        StorageError: a picture cannot be written.
    """
    measured = [trial for trial in trials if trial.trial.kind == "comm" and trial.row["status"] == "ok"]
    links = fitted_links(measured)
    by_size = [row for trial in measured for row in trial.row["by_size"]]
    projected = project(trials, project_to, same_links) if project_to else []
    shown = [row for row in projected if not row["reason"]]
    further = [row for row in shown if row["efficiency"] is not None]
    built = {
        "collectives": collectives_table(by_size),
        "links": links_table(link_rows(links)),
        "projection": projection_table(shown),
    }
    return LinkPart(
        sentences=tuple(link_sentences(links)),
        link_pictures=tuple(draw_links(folder, links)) if links else (),
        projection_pictures=tuple(draw_projection(folder, further, scaling)) if further else (),
        tables={name: table for name, table in built.items() if table.rows},
        refused=tuple(f"{'; '.join(names)}: {reason}" for reason, names in by_reason(projected, _what).items()),
        rows={"collectives": by_size, "links": link_rows(links), "link_residuals": residual_rows(links),
              "projection": projected},
    )  # fmt: skip


def _what(row: Row) -> str:
    name = f"{row['implementation']} {row['strategy']}" if " " in row["strategy"] else row["implementation"]
    return f"{name} {wording.model(row)} batch {wording.batch(row)} to {row['world_size']} devices"
