"""Collectives, fitted alpha-beta lines and projections as tables, and the lines as a figure."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis import wording
from analysis.metrics.communication.links import Link, link_rows
from analysis.render import figure
from analysis.render.tables import Block, Table, columns, plain, without_constant
from analysis.wording import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_MARKERS = "os^DvP"
_MOST_LINES = 8


def collectives_table(rows: Sequence[Row]) -> Table:
    """Return the measured collectives by message size."""
    nodes = "nodes" if any(row["nodes"] > 1 for row in rows) else ""
    names = f"collective dtype ranks {nodes} placement size_bytes count time_us time_us~ algbw_gb_s busbw_gb_s wrong"
    return Table("collectives", columns(names), rows)


def links_table(links: Sequence[Link]) -> Table:
    """Return the fitted lines: time = 2 (n - 1) x alpha + 2 (n - 1) / n x bytes / bandwidth for n ranks."""
    rows = link_rows(links)
    names = "nodes sizes alpha_us bandwidth_gb_s median_error largest_error largest_error_bytes"
    shown = [plain("dtype"), plain("ranks"), *columns(names)]
    shown += columns("reason", reason="not fitted because") if any(row["reason"] for row in rows) else []
    return Table("links", shown, rows)


def projection_blocks(rows: Sequence[Row]) -> list[Block]:
    """Return the projections with what the model assumes, then why configurations were not projected."""
    made = [row for row in rows if not row["reason"]]
    refused: dict[str, dict[str, None]] = {}
    for row in rows:
        if row["reason"]:
            name = f"{wording.implementation(row)} {wording.model(row)} batch {wording.batch(row)}{wording.by(row)}"
            refused.setdefault(row["reason"], {})[name] = None
    blocks: list[Block] = []
    if made:
        names = (
            "implementation strategy model batch world_size step_time_ms measured_step_time_ms error "
            "samples_per_second efficiency work_ms all_reduce_ms exposed_ms"
        )
        labels = {"batch": "batch per device", "step_time_ms": "model step ms", "work_ms": "work ms"}
        labels |= {"samples_per_second": "model samples/s", "efficiency": "model efficiency"}
        nodes = wording.counted(max(row["link_nodes"] for row in made), "node")
        note = (
            "A model, not a measurement: equally fast ranks, all-reduces by the alpha-beta line during the measured "
            f"backward pass, links as measured on {nodes}. error is model / measured - 1."
        )
        blocks = [Table("projection", without_constant(columns(names, **labels), made), made), note]
    blocks += [f"not projected: {reason}: {'; '.join(names)}" for reason, names in refused.items()]
    return blocks if rows else ["no measured throughput to project"]


def links_figure(links: Sequence[Link]) -> figure.Figure:
    """Return time by size with the fitted lines, and their residuals; at least one link."""
    lines = [(link, ranks) for link in links for ranks in link.ranks]
    ticks = figure.size_ticks({point.size_bytes for link in links for point in link.points})

    def draw(canvas: "Canvas") -> None:
        times, residuals = canvas.subplots(1, 2, width_ratios=(1.35, 1))
        times.set(title="measured (points) and fitted (lines)", xlabel="size", ylabel="time of one operation (µs)")
        figure.logarithmic(times, "y")
        residuals.set(title="residuals", xlabel="size", ylabel="fitted / measured - 1 (%)")
        for axes in (times, residuals):
            figure.number_ticks(axes, ticks, wording.size)
        figure.rule(residuals, "y", 0, "no error")
        for number, (link, ranks) in enumerate(lines[:_MOST_LINES]):
            pairs = [(point, off) for point, off in zip(link.points, link.errors, strict=True) if point.ranks == ranks]
            sizes = [point.size_bytes for point, _ in pairs]
            where = f" on {link.nodes} nodes" if link.nodes > 1 else ""
            name = figure.short_label(f"all_reduce {link.dtype}{where}, {ranks} ranks")
            colour = figure.CYCLE[number % len(figure.CYCLE)]
            look: dict[str, Any] = {"marker": _MARKERS[number % len(_MARKERS)], "markersize": 4.5}
            figure.curve(times, sizes, [point.time_us for point, _ in pairs], name, colour, linestyle="none", **look)
            if not link.reason:
                along = np.geomspace(min(sizes), max(sizes), 100)
                fitted = [link.time_us(size, ranks) for size in along]
                times.plot(along, fitted, color=figure.COLOURS[colour][0], linewidth=1.3, gid=f"series:{name}")
                figure.curve(residuals, sizes, [100 * off for _, off in pairs], name, colour, linewidth=1, **look)
        figure.legend(canvas, times, residuals)

    left_out = f" The first {_MOST_LINES} of {len(lines)} are shown." if len(lines) > _MOST_LINES else ""
    caption = (
        "The line is latency + bytes / bandwidth; residuals that bend tell where another algorithm or protocol "
        f"begins.{left_out}"
    )
    title = "All-reduce: time by message size"
    return figure.Figure(name="collectives", title=title, caption=caption, draw=draw, size=(10.6, 4.2))
