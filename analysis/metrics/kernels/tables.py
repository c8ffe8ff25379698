"""Kernels by family and by name, per rank and over ranks. Times are sums over kernels: two at once count twice.

The window is the marked steps, or the whole trace where none is marked. A kernel is of the window, with all its length,
when it was launched in it; where the launching call is not known, when it begins in it. A GPU may run behind the CPU:
the last step's kernels can end after the step, and kernels from before the recording can run in the first (see
`before_recording`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from analysis.gpu_work import GpuWork, Mask, name_codes, where
from analysis.names import COMMUNICATION, family
from analysis.timeline import Timeline, empty

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
    "min_us": "float64",
    "max_us": "float64",
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


def is_kind(kernels: "pd.DataFrame", *kinds: str) -> Mask:
    """Return which rows of `kernels` are of one of the kinds."""
    return where(*name_codes(kernels["kind"]), lambda kind: kind in kinds)


def is_communication(table: "pd.DataFrame") -> Mask:
    """Return which rows of a table with `name` are communication."""
    return where(*name_codes(table["name"]), communicates)


def communicates(name: str) -> bool:
    """Return whether work of this name is communication."""
    return family(name) == COMMUNICATION


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """How long the kernels of each name of a rank took, those that take most first; n names."""

    names: list[str]
    """Names, n."""
    calls: Numbers
    """How often each ran, shape (n,)."""
    total_ns: Numbers
    """Sum of its durations, shape (n,)."""
    shortest_ns: Numbers
    """Its shortest duration, shape (n,)."""
    longest_ns: Numbers
    """Its longest duration, shape (n,)."""
    window_ns: int


def kernel_times(timeline: Timeline, copies: bool = True, window: Literal["steps", "kernels"] = "steps") -> KernelTimes:
    """Return the time of each kernel name of a rank, without pandas where the timeline does.

    Args:
        timeline: what a reader returned.
        copies: count copies and memsets as names too.
        window: "steps": what the marked steps launched, or all where none is marked; "kernels": all, as Holistic Trace
            Analysis has it.
    """
    work = timeline.work
    kept, window_ns = _all(work) if window == "kernels" else in_window(timeline)
    if not copies:
        kept = kept & ~work.is_kind(*_COPIES)
    codes, length = work.name, work.end - work.start
    if not kept.all():
        codes, length = codes[kept], length[kept]
    calls = np.bincount(codes, minlength=len(work.names))
    shortest = np.full(len(calls), np.iinfo(np.int64).max)
    longest, total = np.zeros(len(calls), dtype=np.int64), np.zeros(len(calls), dtype=np.int64)
    np.minimum.at(shortest, codes, length)
    np.maximum.at(longest, codes, length)
    np.add.at(total, codes, length)
    order = np.argsort(-total, kind="stable")
    order = order[calls[order] > 0]
    names = [work.names[index] for index in order.tolist()]
    return KernelTimes(names, calls[order], total[order], shortest[order], longest[order], window_ns)


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
            "min_us": times.shortest_ns / 1e3,
            "max_us": times.longest_ns / 1e3,
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
    """Return tables of several ranks as one: per name or family mean, least and most over the ranks.

    A rank that does not have a name counts as 0 in the mean and the least: it ran, and the kernel did not.

    Args:
        rows: what kernel_rows or family_rows returned, one per rank.
        by: "name" or "family".

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
    found = pd.DataFrame({"ranks": cells.notna().sum(axis=1)})
    found["calls"] = joined.groupby(keys, sort=False, observed=True)["calls"].sum()
    cells = cells.fillna(0.0)
    found["mean_ms"], found["min_ms"], found["max_ms"] = cells.mean(axis=1), cells.min(axis=1), cells.max(axis=1)
    total = float(cells.to_numpy().sum())
    found["kernel_time_share"] = cells.sum(axis=1) / total if total else np.nan
    found = found.reset_index().sort_values("mean_ms", ascending=False, kind="stable", ignore_index=True)
    return found[columns]


def launching_calls(timeline: Timeline) -> Numbers | None:
    """Return for each row of `kernels` the row of `api` that launched it, -1 unknown; None where no row is known.

    Several rows of one call (a CUDA graph's) have the same. Of calls that share an id the first counts.
    """
    kernels, api = timeline.kernels, timeline.api
    if (
        "correlation_id" not in kernels.columns
        or "correlation_id" not in api.columns
        or not len(kernels)
        or not len(api)
    ):
        return None
    wanted = kernels["correlation_id"].to_numpy()
    found = np.where(wanted > 0, calls_with(api, wanted), -1)
    return found if (found >= 0).any() else None


def calls_with(api: "pd.DataFrame", correlations: Numbers) -> Numbers:
    """Return for each of n correlation ids the row of `api` that has it, the first of several; -1 where none has."""
    have = api["correlation_id"].to_numpy()
    if not len(have):
        return np.full(len(correlations), -1, dtype=np.int64)
    rising = bool((have[1:] > have[:-1]).all())
    order = np.arange(len(have)) if rising else np.argsort(have, kind="stable")
    identifiers = have if rising else have[order]
    place = np.searchsorted(identifiers, correlations).clip(max=len(identifiers) - 1)
    known = (identifiers[place] == correlations) & (correlations >= 0)
    return np.where(known, order[place], -1).astype(np.int64, copy=False)


def in_window(timeline: Timeline) -> tuple[Mask, int]:
    """Return which rows of `kernels` are of the window, and the window's length in ns."""
    work = timeline.work
    if not len(work) or not len(timeline.steps):
        return _all(work)
    moments = work.start
    begin, end = int(timeline.steps["start"].min()), int(timeline.steps["end"].max())
    calls = launching_calls(timeline)
    if calls is None:
        return (moments >= begin) & (moments < end), end - begin
    moments = np.where(calls >= 0, timeline.api["start"].to_numpy(dtype=np.int64)[calls], moments)
    return (moments >= begin) & (moments < end) & ~_early(work, calls), end - begin


def before_recording(timeline: Timeline) -> int:
    """Return how many rows of `kernels` begin in the marked steps but were launched before the calls were recorded.

    Work of one stream runs in the order of its launches. Where more than half of all work is tied to calls, work
    without a call that begins before the first of its stream that has one (of a stream that has none: before the first
    of any) was launched before that, when no call was recorded. It belongs to no step, just as what the last step
    launched belongs to it though it runs later: so the work of each step counts once.
    """
    calls = launching_calls(timeline)
    if calls is None or not len(timeline.steps):
        return 0
    work = timeline.work
    begin, end = int(timeline.steps["start"].min()), int(timeline.steps["end"].max())
    return int((_early(work, calls) & (work.start >= begin) & (work.start < end)).sum())


def _early(work: GpuWork, calls: Numbers) -> Mask:
    """Return which pieces were launched before the recording began, shape (n,); none where most are tied to no call."""
    known = calls >= 0
    if known.all() or 2 * known.sum() <= len(known):
        return np.zeros(len(known), dtype=bool)
    # One number per stream of a device.
    _, streams = np.unique(np.stack([work.device, work.stream]), axis=1, return_inverse=True)
    streams = streams.reshape(-1)
    first = np.full(int(streams.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, streams[known], work.start[known])
    first[first == np.iinfo(np.int64).max] = work.start[known].min()
    early: Mask = ~known & (work.start < first[streams])
    return early


def _all(work: GpuWork) -> tuple[Mask, int]:
    return np.ones(len(work), dtype=bool), int(work.end.max() - work.start.min()) if len(work) else 0
