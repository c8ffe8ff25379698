"""Tables and sentences about collectives, fitted alpha-beta lines and projections; output in the form of nccl-tests."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis import wording
from analysis.load import LoadedTrial
from analysis.metrics.communication.links import Link, link_rows
from analysis.render import tables
from analysis.render.terminal import printable
from records.kinds import DTYPES, CollectiveTest

Row = Mapping[str, Any]

_HEADER = (
    "#\n"
    "#{:>12}  {:>12}  {:>8}  {:>6}  {:>6}  {:^33}  {:^33}\n"
    "#{:>12}  {:>12}  {:>8}  {:>6}  {:>6}  {}  {}\n"
    "#{:>12}  {:>12}  {:>8}  {:>6}  {:>6}  {}  {}"
)
_COLUMNS = f"{'time':>9}  {'algbw':>6}  {'busbw':>6}  {'#wrong':>6}"
_UNITS = f"{'(us)':>9}  {'(GB/s)':>6}  {'(GB/s)':>6}  {'':>6}"
_NONE = f"{'N/A':>9}  {'N/A':>6}  {'N/A':>6}  {'N/A':>6}"


def nccl_tests_text(trial: LoadedTrial) -> str:
    """Return a trial of kind comm in the format of nccl-tests. Placements that were not measured are N/A."""
    lines = [*_head(trial), *(_line(trial.trial.precision, pair) for pair in _pairs(trial.row["by_size"]))]
    average = trial.row["avg_busbw_gb_s"] or 0.0
    wrong = int(trial.row["wrong"])
    lines.append(f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
    lines.append(f"# Avg bus bandwidth    : {average:g}")
    return "\n".join(line.rstrip() for text in lines for line in text.split("\n"))


def _head(trial: LoadedTrial) -> Iterator[str]:
    test = CollectiveTest.of(trial.trial)
    yield f"# Collective test starting: {test.name}_perf"
    iterations = "20 ms" if test.iterations is None else str(test.iterations)
    yield (
        f"# nThread 1 nGpus 1 minBytes {test.min_bytes} maxBytes {test.max_bytes} step: {test.factor:g}(factor) warmup "
        f"iters: {test.warmup} iters: {iterations} agg iters: {test.repetitions} validation: 1 graph: 0"
    )
    yield "#"
    yield "# Using devices"
    for rank, record in sorted(trial.ranks.items()):
        place = record.get("place") or {}
        host, name = printable(str(place.get("host", "?"))).replace(" ", "_"), printable(str(place.get("device", "")))
        yield (f"#  Rank {rank:2d} Group  0 Pid {int(place.get('pid', 0)):6d} on {host} device {rank:2d} [0x00] {name}")
    blank = ("", "", "", "", "")
    yield _HEADER.format(
        *blank, "out-of-place", "in-place",
        "size", "count", "type", "redop", "root", _COLUMNS, _COLUMNS,
        "(B)", "(elements)", *blank[:3], _UNITS, _UNITS,
    )  # fmt: skip


def _pairs(rows: Sequence[Row]) -> list[dict[str, Row]]:
    pairs: dict[int, dict[str, Row]] = {}
    for row in rows:
        pairs.setdefault(int(row["size_bytes"]), {})[str(row["placement"])] = row
    return list(pairs.values())


def _line(precision: str, pair: Mapping[str, Row]) -> str:
    row = next(iter(pair.values()))
    name = str(row["collective"])
    redop = "sum" if "reduce" in name else "none"
    root = 0 if name == "broadcast" else -1
    sides = "  ".join(_values(pair.get(side)) for side in ("out_of_place", "in_place"))
    return f" {row['size_bytes']:>12}  {row['count']:>12}  {DTYPES[precision][1]:>8}  {redop:>6}  {root:>6}  {sides}"


def _values(row: Row | None) -> str:
    if row is None or row["algbw_gb_s"] is None:
        return _NONE
    # The time is known to four digits.
    time = float(row["time_us"])
    shown = f"{time:.2f}" if time < 100 else f"{time:.1f}" if time < 1e4 else f"{time:.0f}"
    return f"{shown:>9}  {row['algbw_gb_s']:>6.2f}  {row['busbw_gb_s']:>6.2f}  {row['wrong']:>6d}"


def link_sentences(links: Sequence[Link]) -> list[str]:
    """Return one sentence per fitted line."""
    sentences = []
    for link, row in zip(links, link_rows(links), strict=True):
        head = f"{named(link)}, {' and '.join(map(str, link.ranks))} ranks"
        line = (
            f"time = 2(n-1) x {wording.number(row['alpha_us'])} us + 2(n-1)/n x bytes / "
            f"{wording.number(row['bandwidth_gb_s'])} GB/s; error {wording.percent(row['median_error'])} (median), "
            f"{wording.percent(row['largest_error'])} (largest, at {wording.traffic(row['largest_error_bytes'])})"
        )
        sentences.append(f"{head}: {f'no alpha-beta fit: {link.reason}' if link.reason else line}")
    return sentences


def named(link: Link) -> str:
    """Return the name of a line."""
    return f"all_reduce {link.dtype}{f' on {link.nodes} nodes' if link.nodes > 1 else ''}"


def projection_blocks(rows: Sequence[Row]) -> list[tables.Block]:
    """Return the projections with what the model assumes, then why configurations were not projected."""
    made = [row for row in rows if not row["reason"]]
    blocks: list[tables.Block] = [projection_table(made), projection_note(made)] if made else []
    return [*blocks, *refusals(rows)] if rows else ["no measured throughput to project"]


def projection_note(rows: Sequence[Row]) -> str:
    """Return what the model of the projections assumes; at least one row."""
    nodes = max(row["link_nodes"] for row in rows)
    return (
        "A model, not a measurement: equally fast ranks, all-reduces by the alpha-beta line during the measured "
        f"backward pass, links as measured on {wording.counted(nodes, 'node')}. error is model / measured - 1."
    )


def refusals(rows: Sequence[Row]) -> list[str]:
    """Return one line per reason, with the configurations that were not projected."""
    names: dict[str, dict[str, None]] = {}
    for row in rows:
        if row["reason"]:
            name = f"{row['implementation']} {wording.model(row)} batch {wording.batch(row)} by {row['strategy']}"
            names.setdefault(row["reason"], {})[name] = None
    return [f"not projected: {reason}: {'; '.join(found)}" for reason, found in names.items()]


def collectives_table(rows: Sequence[Row]) -> tables.Table:
    """Return the measured collectives by message size."""
    columns = [
        tables.plain("collective", "collective"),
        tables.plain("dtype", "dtype"),
        tables.measured("ranks", "ranks", wording.count),
        tables.Column("placement", _placement, _placement, False),
        tables.measured("size", "size_bytes", wording.traffic),
        tables.measured("time µs", "time_us"),
        tables.spread("time_us", wording.number),
        tables.measured("algbw GB/s", "algbw_gb_s"),
        tables.measured("busbw GB/s", "busbw_gb_s"),
        tables.measured("wrong", "wrong", wording.count),
    ]
    if any(row["nodes"] > 1 for row in rows):
        columns.insert(3, tables.recorded("nodes"))
    return tables.build("collectives", columns, rows)


def _placement(row: Row) -> str:
    return str(row["placement"]).replace("_", " ")


def links_table(rows: Sequence[Row]) -> tables.Table:
    """Return the fitted lines."""
    columns = [
        tables.plain("dtype", "dtype"),
        tables.plain("ranks", "ranks"),
        tables.recorded("nodes"),
        tables.measured("sizes", "sizes", wording.count),
        tables.measured("alpha µs", "alpha_us"),
        tables.measured("bandwidth GB/s", "bandwidth_gb_s"),
        tables.measured("median error", "median_error", wording.percent),
        tables.measured("largest error", "largest_error", wording.percent),
        tables.measured("at", "largest_error_bytes", wording.traffic),
    ]
    if any(row["reason"] for row in rows):
        columns.append(tables.plain("not fitted because", "reason"))
    return tables.build("links", columns, rows)


def projection_table(rows: Sequence[Row]) -> tables.Table:
    """Return the projections, each configuration first on the measured device counts."""
    columns = [
        tables.plain("implementation", "implementation"),
        tables.plain("strategy", "strategy"),
        tables.Column("model", wording.model, wording.model, False),
        tables.Column("batch per device", lambda row: row["micro_batch_size"], wording.batch),
        tables.measured("devices", "world_size", wording.count),
        tables.measured("model step ms", "step_time_ms"),
        tables.measured("measured step ms", "measured_step_time_ms"),
        tables.measured("error", "error", wording.percent),
        tables.measured("model samples/s", "samples_per_second"),
        tables.measured("model efficiency", "efficiency", wording.percent),
        tables.measured("work ms", "work_ms"),
        tables.measured("all-reduce ms", "all_reduce_ms"),
        tables.measured("exposed ms", "exposed_ms"),
    ]
    return tables.build("projection", tables.without_constant_model(columns, rows) if rows else columns, rows)
