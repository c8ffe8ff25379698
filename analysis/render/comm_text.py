"""Results of collectives as text, in the form of nccl-tests: what reads its logs reads this."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from analysis import wording
from analysis.load import LoadedTrial
from analysis.metrics.communication.links import Link, link_rows
from analysis.render.terminal import printable
from records.collectives import COLLECTIVES, DTYPES, CollectiveTest

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
    """Return one trial of kind comm as nccl-tests prints a test. Placements that were not measured are N/A."""
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


def _pairs(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Mapping[str, Any]]]:
    """Rows of one size together, by placement."""
    pairs: dict[int, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        pairs.setdefault(int(row["size_bytes"]), {})[str(row["placement"])] = row
    return list(pairs.values())


def _line(precision: str, pair: Mapping[str, Mapping[str, Any]]) -> str:
    row = next(iter(pair.values()))
    name = str(row["collective"])
    redop = "sum" if "reduce" in name else "none"
    root = 0 if name == "broadcast" else -1
    sides = "  ".join(_values(pair.get(side)) for side in ("out_of_place", "in_place"))
    return f" {row['size_bytes']:>12}  {row['count']:>12}  {DTYPES[precision][1]:>8}  {redop:>6}  {root:>6}  {sides}"


def _values(row: Mapping[str, Any] | None) -> str:
    if row is None or row["algbw_gb_s"] is None:
        return _NONE
    # Four digits of the time, as many as are known.
    time = float(row["time_us"])
    shown = f"{time:.2f}" if time < 100 else f"{time:.1f}" if time < 1e4 else f"{time:.0f}"
    return f"{shown:>9}  {row['algbw_gb_s']:>6.2f}  {row['busbw_gb_s']:>6.2f}  {row['wrong']:>6d}"


def named(link: Link) -> str:
    """Return a line's name; its placement only where there are two."""
    placement = f" {link.placement.replace('_', ' ')}" if len(COLLECTIVES[link.collective]) > 1 else ""
    return f"{link.collective} {link.dtype}{placement}"


def link_text(links: Sequence[Link]) -> str:
    """Return what the fitted lines say, a line each; empty where there are none."""
    return "\n".join(map(_sentence, links))


def _sentence(link: Link) -> str:
    head = f"{named(link)}, {' and '.join(map(str, link.ranks))} ranks"
    head += f" on {link.nodes} nodes" if link.nodes > 1 else ""
    if link.reason:
        return f"{head}: no alpha-beta line: {link.reason}"
    (row,) = link_rows([link])
    steps, part = {"all_reduce": ("2(n-1) x ", "2(n-1)/n x "), "broadcast": ("", "")}.get(
        link.collective, ("(n-1) x ", "(n-1)/n x ")
    )
    span = {
        name: f"{wording.number(row[name])} "
        f"({wording.interval(row[f'{name}_low'], row[f'{name}_high'], wording.number)})"
        for name in ("alpha_us", "bandwidth_gb_s")
    }
    return (
        f"{head}: time = {steps}{span['alpha_us']} us + {part}bytes / {span['bandwidth_gb_s']} GB/s; off by "
        f"{wording.percent(row['median_error'])} (median), {wording.percent(abs(row['largest_error']))} at "
        f"{wording.size(row['largest_error_bytes'])}{'; caution: ' if row['caution'] else ''}{row['caution']}"
    )


def by_reason(rows: Sequence[Mapping[str, Any]], name: Callable[[Mapping[str, Any]], str]) -> dict[str, list[str]]:
    """Return the names of the projections that were refused, by reason, each once."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        if row["reason"]:
            found.setdefault(row["reason"], {})[name(row)] = None
    return {reason: list(names) for reason, names in found.items()}


def _projection_name(row: Mapping[str, Any]) -> str:
    return (
        f"{row['implementation']} {wording.model(row)} batch {wording.batch(row)} by {row['strategy']}, "
        f"{row['base_world_size']} -> {row['world_size']} devices"
    )


def projection_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what a projection says, a line each, and those that there are not, together where the reason is one."""
    lines = ["projected, not measured:"] if rows else ["no measured throughput that could be projected"]
    for row in rows:
        if row["reason"]:
            continue
        rate = wording.interval(row["samples_per_second_low"], row["samples_per_second_high"], wording.number)
        if row["efficiency"] is None:
            beside = f"measured {wording.number(row['measured_samples_per_second'])}"
        else:
            spread = wording.interval(row["efficiency_low"], row["efficiency_high"], wording.percent)
            beside = f"efficiency {wording.percent(row['efficiency'])} ({spread})"
        check = "" if row["check_error"] is None else f"; its own devices simulated: {row['check_error']:+.1%}"
        assumed = f"; assuming {row['assumption']}" if row["assumption"] else ""
        lines.append(
            f"{_projection_name(row)}: {wording.number(row['samples_per_second'])} samples/s ({rate}), {beside}, "
            f"{wording.number(row['exposed_ms'])} of "
            f"{wording.number(row['all_reduce_ms'])} ms all-reduce exposed{check}{assumed}"
        )
    for reason, names in by_reason(rows, _projection_name).items():
        lines += [f"not projected: {reason}:", *(f"  {name}" for name in names)]
    return "\n".join(lines)
