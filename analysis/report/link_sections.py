"""What a report says of collectives and of projections: tables, pictures and sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.load import LoadedTrial
from analysis.metrics.links import fitted_links, link_rows, residual_rows
from analysis.metrics.projection import project
from analysis.report import tables
from analysis.report.comm_text import by_reason, link_text
from analysis.report.drawing import Picture
from analysis.report.link_figures import draw_links, draw_projection

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkPart:
    """The parts of a report about links between devices."""

    sentences: tuple[str, ...]
    """What the fitted lines say."""
    link_pictures: tuple[Picture, ...]
    """Measured times and lines."""
    projection_pictures: tuple[Picture, ...]
    """Measured and projected throughput."""
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
        "collectives": _collectives(by_size),
        "links": _links(link_rows(links)),
        "projection": _projection(shown),
    }
    return LinkPart(
        sentences=tuple(link_text(links).splitlines()),
        link_pictures=tuple(draw_links(folder, links)) if links else (),
        projection_pictures=tuple(draw_projection(folder, further, scaling)) if further else (),
        tables={name: table for name, table in built.items() if table.rows},
        refused=tuple(f"{'; '.join(names)}: {reason}" for reason, names in by_reason(projected, _what).items()),
        rows={"collectives": by_size, "links": link_rows(links), "link_residuals": residual_rows(links),
              "projection": projected},
    )  # fmt: skip


def _what(row: Row) -> str:
    name = f"{row['implementation']} {row['strategy']}" if " " in row["strategy"] else row["implementation"]
    return f"{name} {tables.model(row)} batch {tables.batch(row)} to {row['world_size']} devices"


def _collectives(rows: Sequence[Row]) -> tables.Table:
    columns = [
        tables.plain("collective", "collective"),
        tables.plain("dtype", "dtype"),
        tables.measured("ranks", "ranks", tables.count),
        tables.Column("placement", _placement, _placement, False),
        tables.measured("size", "size_bytes", tables.size),
        tables.measured("time µs", "time_us"),
        tables.spread("time_us", tables.number),
        tables.measured("algbw GB/s", "algbw_gb_s"),
        tables.measured("busbw GB/s", "busbw_gb_s"),
        tables.measured("wrong", "wrong", tables.count),
    ]
    if any(row["nodes"] > 1 for row in rows):
        columns.insert(3, tables.recorded("nodes"))
    return tables.build("collectives", columns, rows)


def _placement(row: Row) -> str:
    return str(row["placement"]).replace("_", " ")


def _links(rows: Sequence[Row]) -> tables.Table:
    columns = [
        tables.plain("collective", "collective"),
        tables.plain("dtype", "dtype"),
        tables.Column("placement", _placement, _placement, False),
        tables.plain("ranks", "ranks"),
        tables.recorded("nodes"),
        tables.measured("sizes", "sizes", tables.count),
        tables.measured("alpha µs", "alpha_us"),
        tables.spread("alpha_us", tables.number),
        tables.measured("bandwidth GB/s", "bandwidth_gb_s"),
        tables.spread("bandwidth_gb_s", tables.number),
        tables.measured("median error", "median_error", tables.percent),
        tables.measured("largest error", "largest_error", tables.percent),
        tables.measured("at", "largest_error_bytes", tables.size),
    ]
    if any(row["caution"] for row in rows):
        columns.append(tables.plain("caution", "caution"))
    if any(row["reason"] for row in rows):
        columns.append(tables.plain("no line because", "reason"))
    return tables.build("links", columns, rows)


def _projection(rows: Sequence[Row]) -> tables.Table:
    columns = [
        tables.plain("implementation", "implementation"),
        tables.plain("strategy", "strategy"),
        tables.Column("model", tables.model, tables.model, False),
        tables.Column("batch per device", lambda row: row["micro_batch_size"], tables.batch),
        tables.Column(
            "devices", lambda row: row["world_size"], lambda row: f"{row['base_world_size']} → {row['world_size']}"
        ),
        tables.measured("projected samples/s", "samples_per_second"),
        tables.spread("samples_per_second", tables.number),
        tables.measured("projected step ms", "step_time_ms"),
        tables.measured("own work ms", "work_ms"),
        tables.measured("waiting ms", "waiting_ms"),
        tables.measured("all-reduce ms", "all_reduce_ms"),
        tables.measured("exposed ms", "exposed_ms"),
        tables.measured("efficiency", "efficiency", tables.percent),
        tables.spread("efficiency", tables.percent),
        tables.Column("check", lambda row: row["check_error"], _check),
        tables.plain("assuming", "assumption"),
    ]
    if any(row["measured_samples_per_second"] is not None for row in rows):
        columns.insert(7, tables.measured("measured samples/s", "measured_samples_per_second"))
    return tables.build("projection", tables.without_constant_model(columns, rows) if rows else columns, rows)


def _check(row: Row) -> str:
    return tables.UNKNOWN if row["check_error"] is None else f"{row['check_error']:+.1%}"
