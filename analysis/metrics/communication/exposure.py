"""Communication: one table with a row per collective, and its sums by rank, by kind and process group, and by step.

On unions of intervals, as docs/explanation/communication.md defines them: C communication, K computation (see
time.window); overlapped = |C and K|, exposed = |C minus K|. Times are cut at the window's edges; counts, bytes and
bandwidths are of the collectives that the host launched in the window. Bandwidths are nccl-tests', in 1e9 bytes/s:
algbw = bytes / time, and busbw = algbw x `names.bus_factor`, the rate at which a link has to run.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.intervals import Intervals, difference, inside_ns, intersection, merged, total_ns
from analysis.metrics.kernels.devices import link_of
from analysis.metrics.time.window import collectives_at, device_sets, steps_at, work_sets, work_time
from analysis.names import bus_factor
from analysis.timeline import ProcessGroup, Timeline, columns, typed

RANK_COLUMNS = columns(
    "rank steps window_ms compute_ms communication_ms overlapped_ms exposed_ms exposed_transfer_ms exposed_wait_ms "
    "communication_share exposed_share overlap_share"
)
# sized: those whose size is known; bytes are of these. algbw and busbw: bytes over durations, waiting for other ranks
# included, as nccl-tests does; transfer_busbw: with the waiting taken off. link: what the bus bandwidth compares with.
KIND_COLUMNS = columns(
    "rank collective group description group_ranks group_size count sized bytes total_ms overlapped_ms "
    "exposed_ms algbw_gb_s busbw_gb_s transfer_busbw_gb_s link_gb_s link_share communication_share"
)
BUCKET_COLUMNS = columns("rank step bucket collective bytes start_ms end_ms duration_ms wait_ms exposed_ms")


def communication_window(timeline: Timeline) -> Intervals | None:
    """Return the window as a set: without marked steps, all GPU work and collectives; None for a trace without work."""
    whole, table = work_time(timeline), timeline.collectives
    if whole is not None and timeline.spans is None and len(table):
        return merged([min(whole[0, 0], table["start"].min())], [max(whole[-1, 1], table["end"].max())])
    return whole


def collective_table(timeline: Timeline, matching: pd.DataFrame | None = None, member: int = 0) -> pd.DataFrame:
    """Return one row per collective of a rank, those outside the window too, in order of start.

    Columns: rank, collective, group, group_size (-1 unknown), bytes, device, step (marked one that launched it),
    counted (launched in the window), start_ns, end_ns, transfer_ns (NaN where it is not matched), exposed_ns.

    The matching is that of `match_collectives`, the member the timeline's place among those matched.
    """
    table = timeline.collectives
    moments = collectives_at(timeline)
    starts, ends = (table[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    exposed = ends - starts
    for device in table["device"].unique().tolist():
        here = (table["device"] == device).to_numpy()
        exposed[here] -= inside_ns(_compute(timeline, device), starts[here], ends[here])
    transfers = pd.Series(np.nan, index=range(len(table)))
    if matching is not None:
        transfers.update(matching[matching["member"] == member].set_index("index")["transfer_ns"])
    frame = table[["collective", "group", "group_size", "bytes", "device"]].assign(
        rank=pd.array([timeline.rank] * len(table), dtype="Int64"),
        step=steps_at(timeline, moments),
        counted=timeline.inside(moments),
        start_ns=starts,
        end_ns=ends,
        transfer_ns=transfers.to_numpy(),
        exposed_ns=exposed,
    )
    return frame.sort_values("start_ns", kind="stable", ignore_index=True)


def _compute(timeline: Timeline, device: int) -> Intervals:
    """Return when a GPU of several computes; else, and for collectives of CPU threads, when the rank does."""
    return next((one.compute for one in device_sets(timeline) if one.device == device), work_sets(timeline).compute)


def communication_by_rank(timelines: Sequence[Timeline], matching: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return one row per rank with work, times means over its GPUs: RANK_COLUMNS.

    The matching of `match_collectives` splits the exposed time into transfer and wait.
    """
    rows = []
    for member, timeline in enumerate(timelines):
        whole, sets = communication_window(timeline), device_sets(timeline)
        if whole is None:
            continue
        table = collective_table(timeline, matching, member)
        calls = merged(table["start_ns"], table["end_ns"])
        # A GPU without kernels of communication may have calls of MPI.
        talks = [intersection(one.communication if len(one.communication) else calls, whole) for one in sets]
        computes = [intersection(one.compute, whole) for one in sets]
        exposed = [difference(*pair) for pair in zip(talks, computes, strict=True)]
        span, total, bare = total_ns(whole), _mean(talks), _mean(exposed)
        row = {"rank": timeline.rank, "steps": len(timeline.steps), "window_ms": span / 1e6}
        row |= {"compute_ms": _mean(computes) / 1e6, "communication_ms": total / 1e6, **_shares(total, bare, span)}
        if len(table) and table["transfer_ns"].notna().all():
            # A collective waits first and transfers last.
            transfers = merged(table["end_ns"] - table["transfer_ns"].astype("int64"), table["end_ns"])
            transfer = _mean([intersection(one, transfers) for one in exposed])
            row |= {"exposed_transfer_ms": transfer / 1e6, "exposed_wait_ms": (bare - transfer) / 1e6}
        rows.append(row)
    return typed(rows, RANK_COLUMNS)


def _mean(parts: Sequence[Intervals]) -> int:
    return round(sum(map(total_ns, parts)) / len(parts))


def _shares(total: int, exposed: int, span: int) -> dict[str, float | None]:
    return {
        "overlapped_ms": (total - exposed) / 1e6,
        "exposed_ms": exposed / 1e6,
        "communication_share": total / span,
        "exposed_share": exposed / span,
        "overlap_share": (total - exposed) / total if total else None,
    }


def _sums(
    timelines: Sequence[Timeline], matching: pd.DataFrame | None, *keys: str
) -> Iterator[tuple[Timeline, dict[str, Any]]]:
    """Yield the sums of every part of the collectives of each rank, with its values of the keys."""
    for member, timeline in enumerate(timelines):
        whole = communication_window(timeline)
        if whole is None or not len(timeline.collectives):
            continue
        table, devices = collective_table(timeline, matching, member), len(device_sets(timeline))
        for values, part in table.groupby(list(keys), sort=False):
            times = []
            for _, rows in part.groupby("device"):
                union = intersection(merged(rows["start_ns"], rows["end_ns"]), whole)
                compute = _compute(timeline, int(rows["device"].iloc[0]))
                times.append((total_ns(union), total_ns(difference(union, compute))))
            gpus = devices if part["device"].min() >= 0 else 1
            total, exposed = (round(sum(one) / gpus) for one in zip(*times, strict=True))
            counted = part[part["counted"]]
            if len(counted) or total:
                row = {"rank": timeline.rank, **dict(zip(keys, values, strict=True)), "total_ms": total / 1e6}
                yield timeline, row | _shares(total, exposed, total_ns(whole)) | _rates(counted)


def _rates(rows: pd.DataFrame) -> dict[str, Any]:
    """Return counts, bytes and bandwidths of collectives."""
    sizes, transfers = (rows[name].to_numpy(dtype=float) for name in ("bytes", "transfer_ns"))
    durations = (rows["end_ns"] - rows["start_ns"]).to_numpy(dtype=float)
    kinds = zip(rows["collective"].tolist(), rows["group_size"].tolist(), strict=True)
    factors = np.array([bus_factor(kind, size) for kind, size in kinds], dtype=float)  # NaN where there is none
    sized = sizes > 0
    row: dict[str, Any] = {"count": len(rows), "sized": int(sized.sum())}
    row["bytes"] = int(sizes[sized].sum()) if sized.any() else None
    rates = {"algbw": (durations, 1.0), "busbw": (durations, factors), "transfer_busbw": (transfers, factors)}
    for name, (times, weights) in rates.items():
        volume = sizes * weights
        known = sized & (times > 0) & np.isfinite(volume)
        row[f"{name}_gb_s"] = float(volume[known].sum() / times[known].sum()) if known.any() else None
    return row


def communication_by_kind(timelines: Sequence[Timeline], matching: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return one row per rank, kind of collective and group, those that take most first: KIND_COLUMNS.

    Bus bandwidths are compared with the published rates of the links.
    """
    rows = []
    for timeline, row in _sums(timelines, matching, "collective", "group", "group_size"):
        group = timeline.groups.get(row["group"]) or ProcessGroup(row["group"])
        if row["group_size"] > 0:
            group = dataclasses.replace(group, size=int(row["group_size"]))
        row |= {"description": group.description, "group_ranks": group.listed}
        row["group_size"] = group.size if group.size > 0 else None
        rate = row["busbw_gb_s"] if row["transfer_busbw_gb_s"] is None else row["transfer_busbw_gb_s"]
        if rate is not None:
            link = link_of(timeline, group)
            if link is not None:
                row |= {"link_gb_s": link, "link_share": rate / link}
        rows.append(row)
    return typed(rows, KIND_COLUMNS).sort_values("total_ms", ascending=False, kind="stable", ignore_index=True)


def buckets(timeline: Timeline, matching: pd.DataFrame | None = None, member: int = 0) -> pd.DataFrame:
    """Return the bucket timeline: one row per collective launched in each step in order of start, BUCKET_COLUMNS.

    Where no step is marked the whole trace is one, with step <NA>. Times count from the step's start. wait_ms needs the
    matching; see `collective_table`.
    """
    whole, table = communication_window(timeline), collective_table(timeline, matching, member)
    if whole is None:
        return typed([], BUCKET_COLUMNS)
    begin = np.full(len(table), int(whole[0, 0]))
    if len(timeline.steps):
        table = table[table["step"].notna()].sort_values("step", kind="stable")
        begin = timeline.steps.set_index("step")["start"].loc[table["step"].astype("int64")].to_numpy()
    lengths = table["end_ns"] - table["start_ns"]
    return table.assign(
        bucket=table.groupby("step", dropna=False, sort=False).cumcount(),
        bytes=table["bytes"].where(table["bytes"] > 0),
        start_ms=(table["start_ns"] - begin) / 1e6,
        end_ms=(table["end_ns"] - begin) / 1e6,
        duration_ms=lengths / 1e6,
        wait_ms=(lengths - table["transfer_ns"]) / 1e6,
        exposed_ms=table["exposed_ns"] / 1e6,
    )[list(BUCKET_COLUMNS)].astype(BUCKET_COLUMNS)


def all_reduce(timelines: Sequence[Timeline]) -> dict[str, Any]:
    """Return what communication, and all-reduces, are of the profiled steps, as means over the ranks.

    Shares are of the time of the steps, times per step; exposed is without computation beside it, waiting for other
    ranks included. profiled_step_ms is what a step took with the profiler, the base of all shares. All are missing
    where no rank has marked steps.
    """
    ranks = communication_by_rank([timeline for timeline in timelines if len(timeline.steps)])
    if not len(ranks):
        return {"profile_problem": "the profile marks no steps"}
    # All groups together: what two of them do at the same time counts once.
    parts = [
        (row["communication_share"], row["exposed_share"], row["total_ms"] / len(timeline.steps))
        for timeline, row in _sums(timelines, None, "collective")
        if row["collective"] == "all_reduce" and len(timeline.steps)
    ]
    share, bare, time_ms = (np.sum(parts, axis=0) if parts else np.zeros(3)).tolist()
    return {
        "communication_share": float(ranks["communication_share"].mean()),
        "communication_exposed_share": float(ranks["exposed_share"].mean()),
        "communication_exposed_ms": float((ranks["exposed_ms"] / ranks["steps"]).mean()),
        "all_reduce_share": share / len(ranks),
        "all_reduce_exposed_share": bare / len(ranks),
        "all_reduce_hidden_share": (share - bare) / len(ranks),
        "all_reduce_ms": time_ms / len(ranks),
        "profiled_step_ms": float((ranks["window_ms"] / ranks["steps"]).mean()),
        "profiled_steps": int(ranks["steps"].max()),
    }
