"""Work of each rank by name: kernels and their families, copies by direction, operators of the CPU.

Times are sums over pieces of work: two at once count twice. The window is that of metrics.time.window.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from analysis.intervals import inside_ns
from analysis.metrics.time.window import Numbers, in_window, is_kernel, work_sets
from analysis.names import family
from analysis.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd


class KernelTimes(NamedTuple):
    """How long the kernels of each name of a rank took, those that take most first; n names, arrays of shape (n,)."""

    names: list[str]
    calls: Numbers
    total_ns: Numbers
    window_ns: int


def kernel_times(timeline: Timeline, copies: bool = True, window: Literal["steps", "kernels"] = "steps") -> KernelTimes:
    """Return the time of each kernel name of a rank, of copies and memsets too; the window as in `work_time`."""
    work = timeline.work
    kept, window_ns = in_window(timeline, window)
    if not copies:
        kept = kept & is_kernel(timeline)
    codes, length = work.name[kept].astype(np.intp), (work.end - work.start)[kept]
    calls = np.bincount(codes, minlength=len(work.names))
    total = np.zeros(len(calls), dtype=np.int64)
    np.add.at(total, codes, length)
    order = np.argsort(-total, kind="stable")
    order = order[calls[order] > 0]
    names = [work.names[index] for index in order.tolist()]
    return KernelTimes(names, calls[order], total[order], window_ns)


def kernel_rows(timeline: Timeline, copies: bool = True) -> "pd.DataFrame":
    """Return one row per kernel name of a rank, those that take most first: rank, name, family, calls, total_ms,
    mean_us, kernel_time_share and window_share; with `copies` copies and memsets too, in the family "copy"."""
    import pandas as pd

    times = kernel_times(timeline, copies)
    columns = {
        "rank": timeline.rank,
        "name": times.names,
        "family": [family(name) for name in times.names],
        "calls": times.calls,
        "total_ms": times.total_ns / 1e6,
        "mean_us": times.total_ns / times.calls / 1e3,
        "kernel_time_share": times.total_ns / (times.total_ns.sum() or np.nan),
        "window_share": times.total_ns / (times.window_ns or np.nan),
    }
    return pd.DataFrame(columns).astype({"rank": "Int64", "name": "str", "family": "str"})


def over_ranks(rows: "Sequence[pd.DataFrame]", by: str = "name") -> "pd.DataFrame":
    """Return kernel_rows of several ranks as one table, by "name" or "family", those that take most first.

    A rank that does not have a name counts as 0 in the mean and the least: it ran, and the kernel did not. Columns:
    name (with by="name"), family, ranks (that have it), calls (of all), mean_ms, min_ms, max_ms, kernel_time_share (of
    all ranks).
    """
    import pandas as pd

    keys = ["name", "family"] if by == "name" else ["family"]
    filled = [table for table in rows if len(table)]
    if not filled:
        return pd.DataFrame()
    each = pd.concat([table.assign(part=index) for index, table in enumerate(filled)])
    cells = each.groupby([*keys, "part"], sort=False)["total_ms"].sum().unstack("part")
    zeros = cells.fillna(0.0)
    columns = {
        "ranks": cells.notna().sum(axis=1),
        "calls": each.groupby(keys, sort=False)["calls"].sum(),
        "mean_ms": zeros.mean(axis=1),
        "min_ms": zeros.min(axis=1),
        "max_ms": zeros.max(axis=1),
        "kernel_time_share": zeros.sum(axis=1) / (zeros.to_numpy().sum() or np.nan),
    }
    table = pd.DataFrame(columns).reindex(cells.index).reset_index()
    return table.sort_values("mean_ms", ascending=False, kind="stable", ignore_index=True)


_DIRECTION = re.compile(r"\b([hdap])(?:ost|evice|rray|eer)?to([hdap])", re.IGNORECASE)


def direction(name: str) -> str:
    """Return the direction of a copy by its name: HtoD, DtoH, DtoD, PtoP, HtoH, ..., memset, or "unknown"."""
    match = _DIRECTION.search(name)
    named = f"{match[1].upper()}to{match[2].upper()}" if match else "unknown"
    return "memset" if "memset" in name.lower() else named


def copy_rows(timeline: Timeline) -> "pd.DataFrame":
    """Return one row per direction and kind of host memory of the copies and memsets in the window, longest first.

    Columns: rank, direction, host_memory ("pageable", "pinned", "" unknown), count, bytes (missing where the trace does
    not give every copy's), total_ms, bandwidth_gb_s (10^9 bytes per second of copying), overlapped_share (of their
    time, in which the rank computed).
    """
    import pandas as pd

    copies = timeline.kernels[in_window(timeline)[0] & ~is_kernel(timeline)]
    if not len(copies):
        return pd.DataFrame()
    starts, ends = (copies[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    names = copies["name"].astype(str)
    size = copies["bytes"].where(copies["bytes"] > 0) if "bytes" in copies.columns else pd.Series(np.nan, copies.index)
    each = pd.DataFrame(
        {
            "direction": names.map(direction),
            "host_memory": names.str.lower().str.extract("(pageable|pinned)", expand=False).fillna(""),
            "ns": ends - starts,
            "hidden": inside_ns(work_sets(timeline).compute, starts, ends),
            "bytes": size.astype("Int64"),
        }
    )
    groups = each.groupby(["direction", "host_memory"])
    rows = groups.agg(count=("ns", "size"), bytes=("bytes", "sum"), total_ms=("ns", "sum"), hidden=("hidden", "sum"))
    rows["bytes"] = rows["bytes"].where(groups["bytes"].count() == rows["count"])
    length = rows["total_ms"].where(rows["total_ms"] > 0)
    rows["bandwidth_gb_s"] = (rows["bytes"].astype("Float64") / length).astype("float64")
    rows["overlapped_share"], rows["total_ms"] = rows.pop("hidden") / length, rows["total_ms"] / 1e6
    rows = rows.reset_index().sort_values("total_ms", ascending=False, kind="stable", ignore_index=True)
    rows.insert(0, "rank", pd.Series(timeline.rank, rows.index, dtype="Int64"))
    return rows


def operator_rows(timeline: Timeline) -> "pd.DataFrame":
    """Return name, family, calls and self_ns of the operators of a rank's window, in order of first appearance."""
    table = timeline.operators
    table = table[timeline.inside(table["start"].to_numpy(dtype=np.int64))]
    groups = table.groupby(table["name"].astype(str), sort=False)["self_ns"]
    rows = groups.agg(calls="size", self_ns="sum").reset_index()
    return rows.assign(family=rows["name"].map(family))[["name", "family", "calls", "self_ns"]]


def operators_over_ranks(timelines: Sequence[Timeline], by: str = "name") -> "pd.DataFrame":
    """Return the operators of all ranks together by "name" or "family", those that take most first: name (with
    by="name"), family, calls, self_ms (own time of all ranks), mean_us (of a call), self_time_share."""
    import pandas as pd

    keys = ["name", "family"] if by == "name" else ["family"]
    rows = pd.concat([operator_rows(timeline) for timeline in timelines])
    sums = rows.groupby(keys, sort=False)[["calls", "self_ns"]].sum().reset_index()
    sums = sums.sort_values("self_ns", ascending=False, kind="stable", ignore_index=True)
    times = {
        "self_ms": sums["self_ns"] / 1e6,
        "mean_us": sums["self_ns"] / sums["calls"] / 1e3,
        "self_time_share": sums["self_ns"] / (sums["self_ns"].sum() or np.nan),
    }
    return sums.assign(**times).drop(columns="self_ns")
