"""Tables of the input: what it can deliver, and what real data cost against made-up ones."""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis import wording
from analysis.render import tables

Row = Mapping[str, Any]


def input_tables(inputs: Sequence[Row], gaps: Sequence[Row]) -> list[tables.Table]:
    """Return the tables that have rows.

    Args:
        inputs: what metrics.input_pipeline.input_ratios returned.
        gaps: what metrics.input_pipeline.synthetic_gaps returned.
    """
    inputs, gaps = sorted(inputs, key=wording.order), sorted(gaps, key=wording.order)
    found = []
    if inputs:
        columns = [
            *_who(),
            tables.recorded("samples_per_second"),
            tables.recorded("tokens_per_second"),
            tables.recorded("shards_read_samples_per_second"),
            tables.measured("training samples/s", "training_samples_per_second"),
            tables.measured("input / training", "throughput_ratio", wording.ratio),
            tables.spread("throughput_ratio", lambda value: f"{value:.2f}"),
            tables.measured("rounds", "rounds", wording.count),
        ]
        found.append(tables.build("input", tables.without_constant_model(columns, inputs), inputs))
    if gaps:
        columns = [
            *_who(),
            tables.measured("real samples/s", "samples_per_second"),
            tables.measured("made-up samples/s", "synthetic_samples_per_second"),
            tables.measured("gap", "gap", signed),
            tables.spread("gap", signed),
            tables.measured("rounds", "rounds", wording.count),
            tables.plain("differs", "decided"),
        ]
        found.append(tables.build("gap", tables.without_constant_model(columns, gaps), gaps))
    return found


def signed(value: Any) -> str:
    """Return a relative difference as a percentage with its sign."""
    return wording.UNKNOWN if value is None else f"{100 * value:+.1f} %"


def input_lines(inputs: Sequence[Row], gaps: Sequence[Row]) -> list[str]:
    """Return the same in sentences, for the terminal."""
    lines = []
    for row in sorted(inputs, key=wording.order):
        place = f"input of {_place(row)}: {wording.number(row['samples_per_second'])} samples/s"
        if row["throughput_ratio"] is not None:
            span = f"{wording.number(row['throughput_ratio_low'])} to {wording.number(row['throughput_ratio_high'])}"
            place += f", {wording.number(row['throughput_ratio'])} times what training takes ({span})"
        if row["shards_read_samples_per_second"] is not None:
            place += (
                f"; compressed shards are read at {wording.number(row['shards_read_samples_per_second'])} samples/s"
            )
        lines.append(place)
    for row in sorted(gaps, key=wording.order):
        verdict = {"yes": "decided", "no": "decided: no difference"}.get(
            row["decided"], f"not decided: {row['reason']}"
        )
        lines.append(
            f"real against made-up data, {_place(row)}: {signed(row['gap'])} samples/s "
            f"({signed(row['gap_low'])} to {signed(row['gap_high'])}), {verdict}"
        )
    return lines


def _who() -> list[tables.Column]:
    return [
        tables.plain("implementation", "implementation"),
        tables.Column("model", wording.model, wording.model, False),
        tables.Column("data", wording.data, wording.data, False),
        tables.plain("strategy", "strategy"),
        tables.Column("devices", lambda row: row["world_size"], wording.devices),
        tables.Column("batch", lambda row: row["micro_batch_size"], wording.batch),
    ]


def _place(row: Row) -> str:
    return f"{row['implementation']} {wording.model(row)} {wording.place(row)}"
