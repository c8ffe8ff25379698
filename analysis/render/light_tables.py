"""A step broken down: the ceilings, the waterfall, and every part beside its ceiling."""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis import wording
from analysis.load import LoadedTrial
from analysis.metrics.speed_of_light import FLOOR, LOSS
from analysis.render import tables

Row = Mapping[str, Any]


def ceilings_text(row: Row) -> str:
    """Return the measured peak and bandwidth, and how steps and both moved while parts were timed."""
    drift = row["drift"]
    moved = ", ".join(
        f"{name} {100 * drift[name]:+.1f} %" for name in ("steps", "peak", "bandwidth") if drift[name] is not None
    )
    each = " per rank" if int(row["world_size"]) > 1 else ""
    return (
        f"measured peak{each} {wording.flops(row['peak_flops_per_second'])}, memory bandwidth{each} "
        f"{wording.number(row['bandwidth_bytes_per_second'] / 1e9)} GB/s; MFU {wording.percent(row['mfu'])}; "
        f"{row['rounds']} rounds; change from before to after them: {moved or 'unknown'}"
    )


def waterfall_table(rows: Sequence[Row]) -> tables.Table:
    """Return the bars of a waterfall as a table."""

    def name(row: Row) -> str:
        return f"{'+ ' if row['kind'] == LOSS else ''}{row['name']}"

    columns = [
        tables.Column("of the step", name, name, False),
        tables.Column("ms", lambda row: row["ms"], lambda row: _signed(row["ms"])),
        tables.spread("ms", _signed),
        tables.Column("share", lambda row: row["share"], lambda row: f"{100 * row['share']:.1f} %"),
    ]
    return tables.build("waterfall", columns, with_floor(rows))


def with_floor(rows: Sequence[Row]) -> list[Row]:
    """Return the bars with the floor they begin from as a row of its own."""
    begin = [row for row in rows if row["kind"] == FLOOR]
    floor = {"name": "= floor", "kind": "sum", "ms_low": None, "ms_high": None}
    floor |= {key: sum(row[key] for row in begin) for key in ("ms", "share")}
    return [*begin, floor, *(row for row in rows if row["kind"] != FLOOR)]


def _signed(value: Any) -> str:
    """A number that may be below 0, and may be so small that digits say nothing."""
    return f"-{wording.number(-value)}" if value is not None and value < 0 else wording.number(value)


def components_table(rows: Sequence[Row]) -> tables.Table:
    """Return the parts, each with the share of its ceiling that it reaches, as a table."""
    columns = [
        tables.plain("part", "name"),
        tables.plain("shape", "shape"),
        tables.measured("calls", "calls_per_step", wording.count),
        tables.measured("one call ms", "time_ms"),
        tables.spread("time_ms", wording.number),
        tables.measured("in a step ms", "step_ms"),
        tables.measured("floor ms", "floor_ms"),
        tables.Column("rate", lambda row: row["of_ceiling"], _rate),
        tables.measured("of ceiling", "of_ceiling", wording.percent),
    ]
    return tables.build("components", columns, rows)


def _rate(row: Row) -> str:
    if row["flops_per_second"]:
        return wording.flops(row["flops_per_second"])
    return f"{wording.number(row['bytes_per_second'] / 1e9)} GB/s" if row["bytes_per_second"] else wording.UNKNOWN


def light_blocks(trial: LoadedTrial) -> list[tables.Block]:
    """Return everything a trial of kind components says."""
    row = trial.row
    return [
        wording.floor_sentence(row),
        ceilings_text(row),
        waterfall_table(row["waterfall"]),
        components_table(row["components"]),
        *(f"caution: {caution['message']}; {caution['remedy']}" for caution in row["cautions"]),
    ]
