"""Figures, tables and sentences of a report about collectives and projections to more devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.load import LoadedTrial
from analysis.metrics.communication.links import Link, fitted_links, link_rows
from analysis.metrics.communication.projection import project
from analysis.render.link_figures import links_figure
from analysis.render.link_tables import (
    collectives_table,
    links_table,
    projection_note,
    projection_table,
    refusals,
)
from analysis.render.page import Block, Details, Gallery, Prose, Section

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkPart:
    """The parts of a report about links between devices."""

    sections: tuple[Section, ...]
    rows: Mapping[str, Sequence[Row]]
    """Collectives, links and projections as plain values, by the name of their CSV file."""


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
