"""Collectives, fitted alpha-beta lines and projections as tables."""

from collections.abc import Sequence

from analysis import wording
from analysis.metrics.communication.links import Link, link_rows
from analysis.render.columns import columns, without_constant
from analysis.render.tables import Block, Table, plain
from analysis.wording import Row


def named(link: Link) -> str:
    """Return the name of a line."""
    return f"all_reduce {link.dtype}{f' on {link.nodes} nodes' if link.nodes > 1 else ''}"


def links_table(links: Sequence[Link]) -> Table:
    """Return the fitted lines: time = 2 (n - 1) x alpha + 2 (n - 1) / n x bytes / bandwidth for n ranks."""
    rows = link_rows(links)
    shown = [plain("dtype"), plain("ranks"), *columns("nodes sizes alpha_us bandwidth_gb_s median_error")]
    shown += columns("largest_error largest_error_bytes")
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
    blocks: list[Block] = [_projection_table(made), _projection_note(made)] if made else []
    blocks += [f"not projected: {reason}: {'; '.join(names)}" for reason, names in refused.items()]
    return blocks if rows else ["no measured throughput to project"]


def _projection_table(rows: Sequence[Row]) -> Table:
    """Return the projections, each configuration first on the measured device counts."""
    names = (
        "implementation strategy model batch world_size step_time_ms measured_step_time_ms error samples_per_second "
        "efficiency work_ms all_reduce_ms exposed_ms"
    )
    shown = columns(names, batch="batch per device", step_time_ms="model step ms", samples_per_second="model samples/s",
                    efficiency="model efficiency", work_ms="work ms")  # fmt: skip
    return Table("projection", without_constant(shown, rows), rows)


def _projection_note(rows: Sequence[Row]) -> str:
    nodes = max(row["link_nodes"] for row in rows)
    return (
        "A model, not a measurement: equally fast ranks, all-reduces by the alpha-beta line during the measured "
        f"backward pass, links as measured on {wording.counted(nodes, 'node')}. error is model / measured - 1."
    )


def collectives_table(rows: Sequence[Row]) -> Table:
    """Return the measured collectives by message size."""
    nodes = "nodes" if any(row["nodes"] > 1 for row in rows) else ""
    names = f"collective dtype ranks {nodes} placement size_bytes count time_us time_us~ algbw_gb_s busbw_gb_s wrong"
    return Table("collectives", columns(names), rows)
