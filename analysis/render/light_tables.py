"""A step broken down: the ceilings, the waterfall, and every part beside its ceiling."""

from collections.abc import Sequence

from analysis import wording
from analysis.load import LoadedTrial
from analysis.metrics.speed_of_light import FLOOR, LOSS
from analysis.render.columns import columns
from analysis.render.tables import Block, Table, computed
from analysis.wording import Row


def light_blocks(trial: LoadedTrial) -> list[Block]:
    """Return a trial of kind components: the floor, the ceilings, both tables, cautions."""
    row = trial.row
    cautions = [f"caution: {caution['message']}; {caution['remedy']}" for caution in row["cautions"]]
    both = [waterfall_table(row["waterfall"]), components_table(row["components"])]
    return [wording.floor_sentence(row), ceilings_text(row), *both, *cautions]


def ceilings_text(row: Row) -> str:
    """Return the measured peak and bandwidth, and how steps and both moved while parts were timed."""
    drift = {name: row["drift"][name] for name in ("steps", "peak", "bandwidth")}
    moved = ", ".join(f"{name} {wording.signed(value)}" for name, value in drift.items() if value is not None)
    each = " per rank" if int(row["world_size"]) > 1 else ""
    return (
        f"measured peak{each} {wording.flops(row['peak_flops_per_second'])}, memory bandwidth{each} "
        f"{wording.number(row['bandwidth_bytes_per_second'] / 1e9)} GB/s; MFU {wording.percent(row['mfu'])}; "
        f"{row['rounds']} rounds; change from before to after them: {moved or 'unknown'}"
    )


def waterfall_table(rows: Sequence[Row]) -> Table:
    """Return the bars of a waterfall as a table; the floor that they begin from is a row of its own."""
    begin = [row for row in rows if row["kind"] == FLOOR]
    floor = {"name": "= floor", "kind": "sum", **{key: sum(row[key] for row in begin) for key in ("ms", "share")}}
    of_step = computed("of the step", lambda row: f"{'+ ' if row['kind'] == LOSS else ''}{row['name']}")
    rows = [*begin, floor, *(row for row in rows if row["kind"] != FLOOR)]
    return Table("waterfall", [of_step, *columns("ms ms~ share")], rows)


def components_table(rows: Sequence[Row]) -> Table:
    """Return the parts, each with the share of its ceiling that it reaches, as a table."""
    shown = columns("name shape calls_per_step time_ms time_ms~ step_ms floor_ms", name="part")
    rate = computed("rate", _rate, lambda row: row["of_ceiling"])
    return Table("components", [*shown, rate, *columns("of_ceiling")], rows)


def _rate(row: Row) -> str:
    if row["flops_per_second"]:
        return wording.flops(row["flops_per_second"])
    return f"{wording.number(row['bytes_per_second'] / 1e9)} GB/s" if row["bytes_per_second"] else wording.UNKNOWN
