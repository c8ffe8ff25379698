"""Work of each rank by name: kernels and their families, copies by direction, operators of the CPU.

Times are sums over pieces of work: two at once count twice. The window is that of metrics.time.window.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.metrics.time.window import in_window, whole_trace
from analysis.metrics.time.work import work_sets
from analysis.names import family
from analysis.spans import inside_ns
from analysis.timeline import Timeline, empty, typed

if TYPE_CHECKING:
    import pandas as pd


Numbers = npt.NDArray[np.int64]

KERNEL_ROW_COLUMNS = {
    "rank": "Int64",
    "name": "str",
    "family": "str",
    "calls": "int64",
    "total_ms": "float64",
    "mean_us": "float64",
    "kernel_time_share": "float64",
    "window_share": "float64",
}
FAMILY_ROW_COLUMNS = {
    "rank": "Int64",
    "family": "str",
    "calls": "int64",
    "total_ms": "float64",
    "kernel_time_share": "float64",
    "window_share": "float64",
}
_COPIES = ("memcpy", "memset")


class KernelTimes(NamedTuple):
    """How long the kernels of each name of a rank took, those that take most first; n names, arrays of shape (n,)."""

    names: list[str]
    calls: Numbers
    total_ns: Numbers
    window_ns: int


def kernel_times(timeline: Timeline, copies: bool = True, window: Literal["steps", "kernels"] = "steps") -> KernelTimes:
    """Return the time of each kernel name of a rank.

    Args:
        timeline: what a reader returned.
        copies: count copies and memsets as names too.
        window: "steps": what the marked steps launched, or all where none is marked; "kernels": all, as Holistic Trace
            Analysis has it.
    """
    work = timeline.work
    kept, window_ns = whole_trace(work) if window == "kernels" else in_window(timeline)
    if not copies:
        kept = kept & ~work.is_kind(*_COPIES)
    codes, length = work.name[kept].astype(np.intp), (work.end - work.start)[kept]
    calls = np.bincount(codes, minlength=len(work.names))
    total = np.zeros(len(calls), dtype=np.int64)
    np.add.at(total, codes, length)
    order = np.argsort(-total, kind="stable")
    order = order[calls[order] > 0]
    names = [work.names[index] for index in order.tolist()]
    return KernelTimes(names, calls[order], total[order], window_ns)


def kernel_rows(timeline: Timeline, copies: bool = True) -> "pd.DataFrame":
    """Return one row per kernel name of a rank, those that take most first: KERNEL_ROW_COLUMNS.

    Args:
        timeline: what a reader returned.
        copies: count copies and memsets as rows too, in the family "copy".
    """
    import pandas as pd

    times = kernel_times(timeline, copies)
    if not times.names:
        return empty(KERNEL_ROW_COLUMNS)
    everything = int(times.total_ns.sum())
    return pd.DataFrame(
        {
            "rank": pd.array([timeline.rank] * len(times.names), dtype="Int64"),
            "name": times.names,
            "family": [family(name) for name in times.names],
            "calls": times.calls,
            "total_ms": times.total_ns / 1e6,
            "mean_us": times.total_ns / times.calls / 1e3,
            "kernel_time_share": times.total_ns / everything if everything else np.nan,
            "window_share": times.total_ns / times.window_ns if times.window_ns else np.nan,
        }
    )


def family_rows(timeline: Timeline) -> "pd.DataFrame":
    """Return one row per family of kernels of a rank, those that take most first: FAMILY_ROW_COLUMNS.

    Copies and memsets are no kernels; the family "copy" are kernels that copy or convert.
    """
    kernels = kernel_rows(timeline, copies=False)
    if not len(kernels):
        return empty(FAMILY_ROW_COLUMNS)
    sums = ["calls", "total_ms", "kernel_time_share", "window_share"]
    grouped = kernels.groupby(["rank", "family"], dropna=False, sort=False)[sums].sum(min_count=1).reset_index()
    return grouped.sort_values("total_ms", ascending=False, kind="stable", ignore_index=True)


def over_ranks(rows: Sequence["pd.DataFrame"], by: str = "name") -> "pd.DataFrame":
    """Return what kernel_rows or family_rows returned of several ranks as one table, by "name" or "family".

    A rank that does not have a name counts as 0 in the mean and the least: it ran, and the kernel did not.

    Returns:
        name (with by="name"), family, ranks (that have it), calls (of all), mean_ms, min_ms, max_ms, and
        kernel_time_share (of all ranks), longest mean first.
    """
    import pandas as pd

    keys = ["name", "family"] if by == "name" else ["family"]
    columns = [*keys, "ranks", "calls", "mean_ms", "min_ms", "max_ms", "kernel_time_share"]
    filled = [table for table in rows if len(table)]
    if not filled:
        return pd.DataFrame({name: [] for name in columns})
    joined = pd.concat([table.assign(part=index) for index, table in enumerate(filled)])
    cells = joined.groupby([*keys, "part"], sort=False, observed=True)["total_ms"].sum().unstack("part")
    calls, zeros = joined.groupby(keys, sort=False, observed=True)["calls"].sum(), cells.fillna(0.0)
    total = float(zeros.to_numpy().sum())
    table = pd.DataFrame(
        {
            "ranks": cells.notna().sum(axis=1),
            "calls": calls,
            "mean_ms": zeros.mean(axis=1),
            "min_ms": zeros.min(axis=1),
            "max_ms": zeros.max(axis=1),
            "kernel_time_share": zeros.sum(axis=1) / total if total else np.nan,
        }
    ).reindex(cells.index)
    return table.reset_index().sort_values("mean_ms", ascending=False, kind="stable", ignore_index=True)[columns]


COPY_ROW_COLUMNS = {
    "rank": "Int64",
    "direction": "str",
    "host_memory": "str",
    "count": "int64",
    "bytes": "Int64",
    "total_ms": "float64",
    "bandwidth_gb_s": "float64",
    "overlapped_share": "float64",
}
_DIRECTION = re.compile(r"\b([hdap])(?:ost|evice|rray|eer)?to([hdap])", re.IGNORECASE)


def direction(name: str) -> str:
    """Return the direction of a copy by its name: HtoD, DtoH, DtoD, PtoP, HtoH, ..., memset, or "unknown"."""
    if "memset" in name.lower():
        return "memset"
    found = _DIRECTION.search(name)
    return f"{found[1].upper()}to{found[2].upper()}" if found else "unknown"


def host_memory(name: str) -> str:
    """Return "pageable" or "pinned" where the name of a copy says which the CPU's side is, "" where it does not."""
    lower = name.lower()
    return "pageable" if "pageable" in lower else "pinned" if "pinned" in lower else ""


def copy_rows(timeline: Timeline) -> "pd.DataFrame":
    """Return one row per direction and kind of host memory, longest first: COPY_ROW_COLUMNS.

    Of copies and memsets of the window (see window.in_window). bytes is missing where the trace
    does not give every copy's, and bandwidth_gb_s (10^9 bytes per second of copying) with it; overlapped_share is the
    share of the copies' time in which the same rank computed.
    """

    import pandas as pd

    kept = in_window(timeline)[0] & timeline.work.is_kind(*_COPIES)
    if not kept.any():
        return empty(COPY_ROW_COLUMNS)
    copies = timeline.kernels[kept]
    starts, ends = copies["start"].to_numpy(dtype=np.int64), copies["end"].to_numpy(dtype=np.int64)
    names = copies["name"].astype(str)
    table = pd.DataFrame(
        {
            "direction": names.map(direction),
            "host_memory": names.map(host_memory),
            "ns": ends - starts,
            "hidden": inside_ns(work_sets(timeline).compute, starts, ends),
            "bytes": copies["bytes"].to_numpy() if "bytes" in copies.columns else -1,
        }
    )
    rows: list[dict[str, Any]] = []
    for (way, memory), group in table.groupby(["direction", "host_memory"]):
        length = int(group["ns"].sum())
        size = int(group["bytes"].sum()) if (group["bytes"] > 0).all() else None
        rows.append(
            {
                "rank": timeline.rank,
                "direction": way,
                "host_memory": memory,
                "count": len(group),
                "bytes": size,
                "total_ms": length / 1e6,
                "bandwidth_gb_s": size / length if size is not None and length else None,
                "overlapped_share": int(group["hidden"].sum()) / length if length else None,
            }
        )
    rows.sort(key=lambda row: -row["total_ms"])
    return typed(rows, COPY_ROW_COLUMNS)


OPERATOR_ROW_COLUMNS = {"name": "str", "family": "str", "calls": "int64", "self_ns": "int64"}


def operator_rows(timeline: Timeline) -> "pd.DataFrame":
    """Return one row per operator of a rank's marked steps, or of the whole trace where none is marked.

    Returns:
        OPERATOR_ROW_COLUMNS, in order of first appearance: self_ns is the sum over calls, ns.
    """
    table = timeline.operators
    table = table[timeline.inside(table["start"].to_numpy(dtype=np.int64))]
    if not len(table):
        return empty(OPERATOR_ROW_COLUMNS)
    groups = table.groupby("name", sort=False, observed=True)["self_ns"]
    rows = groups.agg(calls="size", self_ns="sum").reset_index()
    rows["name"] = rows["name"].astype(str)
    return rows.assign(family=rows["name"].map(family))[list(OPERATOR_ROW_COLUMNS)]


def operators_over_ranks(timelines: Sequence[Timeline], by: str = "name") -> "pd.DataFrame":
    """Return the operators of all ranks together by "name" or "family", those that take most first.

    Returns:
        name (with by="name"), family, calls, self_ms (own time of all ranks), mean_us (of a call), self_time_share.
    """
    import pandas as pd

    keys = ["name", "family"] if by == "name" else ["family"]
    parts = [rows for timeline in timelines if len(rows := operator_rows(timeline))]
    rows = pd.concat(parts or [empty(OPERATOR_ROW_COLUMNS)])
    sums = rows.groupby(keys, sort=False)[["calls", "self_ns"]].sum().reset_index()
    sums = sums.sort_values("self_ns", ascending=False, kind="stable", ignore_index=True)
    total = int(sums["self_ns"].sum())
    times = {
        "self_ms": sums["self_ns"] / 1e6,
        "mean_us": sums["self_ns"] / sums["calls"] / 1e3,
        "self_time_share": sums["self_ns"] / total if total else np.nan,
    }
    return sums.assign(**times).drop(columns="self_ns")
