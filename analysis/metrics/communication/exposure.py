"""Communication of each rank: how much there is, how much of it computation hides, at which bandwidth it runs.

On unions of intervals, as measurement.md defines them: C communication, K computation (time.temporal.work_sets).
overlapped = |C and K|, exposed = |C minus K|. Bandwidths are nccl-tests', in 1e9 bytes/s: algbw = bytes / time, and
busbw = algbw x `names.bus_factor`, the rate at which a link has to run (nccl-tests doc/PERFORMANCE.md).
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.metrics.kernels.devices import LinkRates
from analysis.metrics.time.launches import calls_with
from analysis.metrics.time.temporal import Window, WorkSets, window_set, work_sets, work_window
from analysis.names import bus_factor, parallelism
from analysis.spans import Intervals, difference, inside_ns, intersection, merged, total_ns, within
from analysis.timeline import ProcessGroup, Timeline, empty, typed

if TYPE_CHECKING:
    import pandas as pd

    from analysis.metrics.communication.matching import Matching


Numbers = npt.NDArray[np.int64]

_BANDWIDTHS = dict.fromkeys(("algbw_gb_s", "busbw_gb_s", "transfer_busbw_gb_s"), "float64")
_SHARES = dict.fromkeys(("communication_share", "exposed_share", "overlap_share"), "float64")
RANK_COLUMNS = {
    "rank": "Int64",
    "steps": "int64",
    "window_ms": "float64",
    "compute_ms": "float64",
    "communication_ms": "float64",
    "overlapped_ms": "float64",
    "exposed_ms": "float64",
    "exposed_transfer_ms": "float64",
    "exposed_wait_ms": "float64",
    **_SHARES,
}
KIND_COLUMNS = {
    "rank": "Int64",
    "collective": "str",
    "group": "str",
    "description": "str",  # of the group, "" unknown
    "parallelism": "str",  # of names.parallelism
    "group_ranks": "str",  # in short: "0-7"
    "group_size": "Int64",
    "count": "int64",
    "sized": "int64",  # of these, those whose size is known
    "bytes": "Int64",  # of the sized ones
    "total_ms": "float64",
    "overlapped_ms": "float64",
    "exposed_ms": "float64",
    **_BANDWIDTHS,
    "link_gb_s": "float64",  # what the bus bandwidth compares with, and ...
    "link_share": "float64",  # ... its share of that, without waiting where it is known
    "link_source": "str",
    **_SHARES,
}
_MEANS = {
    "count": "float64",
    "bytes": "Int64",
    **dict.fromkeys(("total_ms", "exposed_ms", "exposed_share"), "float64"),
    **_BANDWIDTHS,
}
GROUP_COLUMNS = {
    "group": "str",  # the description, or the name where there is none
    "parallelism": "str",
    "groups": "int64",  # sets of ranks with this description
    "group_size": "Int64",
    "traces": "int64",  # of ranks that communicate in it
    **_MEANS,  # over those ranks
}
BUCKET_COLUMNS = {
    "rank": "Int64",
    "step": "Int64",
    "bucket": "int64",
    "collective": "str",
    "bytes": "Int64",
    "launched_ms": "float64",
    "start_ms": "float64",
    "end_ms": "float64",
    "duration_ms": "float64",
    "wait_ms": "float64",
    "exposed_ms": "float64",
    "compute_after_start_ms": "float64",
}


def communication_by_rank(
    timelines: Sequence[Timeline], matching: "Matching | None" = None, window: Window = "steps"
) -> "pd.DataFrame":
    """Return one row per rank: RANK_COLUMNS; a rank without work has no row.

    Args:
        timelines: what readers returned, one per rank.
        matching: which collectives of the ranks belong together, of `match_collectives`; it splits the exposed time
            into transfer and wait, which are NaN without it and where a collective of the rank is not matched.
        window: "steps": the marked steps, or the whole trace where none is marked; "kernels": the span of GPU work.
    """
    rows = []
    for member, timeline in enumerate(timelines):
        sets = work_sets(timeline)
        bounds = work_window(timeline, sets, window)
        if bounds is None or bounds[1] <= bounds[0]:
            continue
        whole = window_set(timeline, bounds, window)
        computation, communication = (
            within(found, whole) for found in (sets.compute, communication_set(timeline, sets))
        )
        span, total = total_ns(whole), total_ns(communication)
        exposed = difference(communication, computation)
        transfer: float | None = None
        if matching is not None and matching.complete(member):
            transfer = total_ns(intersection(exposed, within(matching.transfer_set(member), whole)))
        rows.append(
            {
                "rank": timeline.rank,
                "steps": len(timeline.steps) if window == "steps" else 0,
                "window_ms": span / 1e6,
                "compute_ms": total_ns(computation) / 1e6,
                "communication_ms": total / 1e6,
                "overlapped_ms": (total - total_ns(exposed)) / 1e6,
                "exposed_ms": total_ns(exposed) / 1e6,
                "exposed_transfer_ms": None if transfer is None else transfer / 1e6,
                "exposed_wait_ms": None if transfer is None else (total_ns(exposed) - transfer) / 1e6,
                "communication_share": total / span,
                "exposed_share": total_ns(exposed) / span,
                "overlap_share": (total - total_ns(exposed)) / total if total else None,
            }
        )
    return typed(rows, RANK_COLUMNS)


def communication_by_kind(
    timelines: Sequence[Timeline], matching: "Matching | None" = None, links: LinkRates | None = None
) -> "pd.DataFrame":
    """Return one row per rank, kind of collective and group, those that take most first: KIND_COLUMNS.

    A collective counts where its middle lies in the window; times are unions. `bytes` is of those whose size is known,
    and bandwidths are theirs: sum of bytes over sum of durations, waiting for other ranks included, as nccl-tests does.
    `transfer_busbw_gb_s` has the waiting taken off.

    Args:
        timelines: what readers returned, one per rank.
        matching: of `match_collectives`, for transfer_busbw_gb_s.
        links: measured rates of the links; None: published ones only.
    """
    rows = []
    for timeline, (kind, group, size), values in _parts(timelines, matching, ("collective", "group", "group_size")):
        own = _group_of(timeline, str(group), int(size))
        row: dict[str, Any] = {"rank": timeline.rank, "collective": kind, "group": group, **values}
        row |= {"description": own.description, "parallelism": parallelism(own.description)}
        row |= {"group_ranks": own.listed, "group_size": own.size if own.size > 0 else None}
        rate = values["busbw_gb_s"] if values["transfer_busbw_gb_s"] is None else values["transfer_busbw_gb_s"]
        link = None
        if rate is not None:
            link = (links or LinkRates.of()).rate(timeline, str(kind), own, values["bytes"] / values["sized"])
        row |= {"link_gb_s": link and link.gb_s, "link_share": link and rate / link.gb_s}
        rows.append({**row, "link_source": link.source if link else ""})
    return typed(rows, KIND_COLUMNS).sort_values("total_ms", ascending=False, kind="stable", ignore_index=True)


def communication_by_group(timelines: Sequence[Timeline], matching: "Matching | None" = None) -> "pd.DataFrame":
    """Return one row per process group of a description, those with most exposed time first: GROUP_COLUMNS.

    Sets of ranks that have the same description, such as the tensor parallel groups of a job, are one row; collectives
    whose group is not known have none. Times are as in `communication_by_kind`: what two groups do at the same time
    counts for both.

    Args:
        timelines: what readers returned, one per rank.
        matching: of `match_collectives`, for transfer_busbw_gb_s.
    """
    found: dict[str, list[tuple[ProcessGroup, dict[str, Any]]]] = {}
    for timeline, (name,), values in _parts(timelines, matching, ("group",)):
        if name:
            size = int(timeline.collectives["group_size"][timeline.collectives["group"] == name].max())
            own = _group_of(timeline, str(name), size)
            found.setdefault(own.label, []).append((own, values))
    rows = []
    for label, members in found.items():
        sizes = {own.size for own, _ in members if own.size > 0}
        means = {}
        for name in _MEANS:
            known = [values[name] for _, values in members if values[name] is not None]
            means[name] = float(np.mean(known)) if known else None
        about = {
            "group": label, "parallelism": parallelism(members[0][0].description),
            "groups": len({(own.name, own.ranks) for own, _ in members}),
            "group_size": sizes.pop() if len(sizes) == 1 else None, "traces": len(members),
        }  # fmt: skip
        rows.append({**about, **means, "bytes": None if means["bytes"] is None else round(means["bytes"])})
    return typed(rows, GROUP_COLUMNS).sort_values("exposed_ms", ascending=False, kind="stable", ignore_index=True)


def _group_of(timeline: Timeline, name: str, size: int) -> ProcessGroup:
    """A group as the trace lists it, with the size that its collectives have where the list has none."""
    own = timeline.groups.get(name) or ProcessGroup(name)
    return dataclasses.replace(own, size=size) if size > 0 else own


def _parts(
    timelines: Sequence[Timeline], matching: "Matching | None", keys: Sequence[str]
) -> Iterator[tuple[Timeline, tuple[Any, ...], dict[str, Any]]]:
    """Yield (timeline, values of the keys, numbers) of every part of the collectives in the window."""
    for member, timeline in enumerate(timelines):
        sets = work_sets(timeline)
        bounds = work_window(timeline, sets)
        if bounds is None or bounds[1] <= bounds[0] or not len(timeline.collectives):
            continue
        table = timeline.collectives
        transfers = None if matching is None else matching.transfer_ns(member, len(table))
        middle = table["start"].to_numpy() + (table["end"].to_numpy() - table["start"].to_numpy()) // 2
        whole = window_set(timeline, bounds)
        inside = np.flatnonzero(inside_ns(whole, middle, middle + 1))
        grouped = table.iloc[inside].groupby(list(keys), observed=True, sort=False)
        for values, place in grouped.indices.items():
            chosen = inside[place]
            row = _numbers(table.iloc[chosen], sets, whole, None if transfers is None else transfers[chosen])
            yield timeline, values if isinstance(values, tuple) else (values,), row


def _numbers(
    part: "pd.DataFrame", sets: WorkSets, whole: Intervals, transfers: npt.NDArray[np.float64] | None
) -> dict[str, Any]:
    span = total_ns(whole)
    union = within(merged(part["start"], part["end"]), whole)
    total, exposed = total_ns(union), total_ns(difference(union, sets.compute))
    durations = (part["end"] - part["start"]).to_numpy(dtype=float)
    sizes = part["bytes"].to_numpy(dtype=float)
    kinds = zip(part["collective"].tolist(), part["group_size"].tolist(), strict=True)
    factors = np.array([bus_factor(kind, size) for kind, size in kinds], dtype=float)  # NaN where there is none

    def rate(times: npt.NDArray[np.float64] | None, weights: npt.NDArray[np.float64]) -> float | None:
        if times is None:
            return None
        known = (sizes > 0) & (times > 0) & np.isfinite(weights)
        return float((sizes[known] * weights[known]).sum() / times[known].sum()) if known.any() else None

    return {
        "count": len(part),
        "sized": int((sizes > 0).sum()),
        "bytes": int(sizes[sizes > 0].sum()) if (sizes > 0).any() else None,
        "total_ms": total / 1e6,
        "overlapped_ms": (total - exposed) / 1e6,
        "exposed_ms": exposed / 1e6,
        "algbw_gb_s": rate(durations, np.ones_like(sizes)),
        "busbw_gb_s": rate(durations, factors),
        "transfer_busbw_gb_s": rate(transfers, factors),
        "communication_share": total / span,
        "exposed_share": exposed / span,
        "overlap_share": (total - exposed) / total if total else None,
    }


def buckets(timeline: Timeline, matching: "Matching | None" = None, member: int = 0) -> "pd.DataFrame":
    """Return the bucket timeline: one row per collective of each step in order of start, BUCKET_COLUMNS.

    A collective belongs to the step in which the host launched it (in which it started, where the launch is not in the
    trace); where no step is marked the whole trace is one, with step <NA>. Times count from the step's start.
    `compute_after_start_ms` is the computation of the step from the collective's start on, overlapping or later: with
    none left, nothing can hide it.

    Args:
        timeline: what a reader returned.
        matching: of `match_collectives`, for wait_ms, which is NaN without it.
        member: the timeline's place among those matched.
    """
    table, sets = timeline.collectives, work_sets(timeline)
    bounds = work_window(timeline, sets)
    if bounds is None or not len(table):
        return empty(BUCKET_COLUMNS)
    starts, ends = (table[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    launched = launch_times(timeline, table["correlation_id"].to_numpy(dtype=np.int64))
    placed = np.where(launched >= 0, launched, starts)
    exposed = ends - starts - inside_ns(sets.compute, starts, ends)
    waits = None if matching is None else (ends - starts) - matching.transfer_ns(member, len(table))
    steps = timeline.steps[["step", "start", "end"]].to_numpy() if len(timeline.steps) else [(None, *bounds)]
    rows = []
    for step, begin, end in steps:
        own = np.flatnonzero((placed >= begin) & (placed < end))
        own = own[np.argsort(starts[own], kind="stable")]
        # The GPU runs behind the host: work of a step may end after its mark.
        horizon = max(int(end), int(ends[own].max()) if len(own) else int(end))
        remaining = inside_ns(sets.compute, starts[own], np.full(len(own), horizon))
        for number, index in enumerate(own.tolist()):
            size = int(table["bytes"].iloc[index])
            rows.append(
                {
                    "rank": timeline.rank,
                    "step": step,
                    "bucket": number,
                    "collective": table["collective"].iloc[index],
                    "bytes": size if size > 0 else None,
                    "launched_ms": (launched[index] - begin) / 1e6 if launched[index] >= 0 else None,
                    "start_ms": (starts[index] - begin) / 1e6,
                    "end_ms": (ends[index] - begin) / 1e6,
                    "duration_ms": (ends[index] - starts[index]) / 1e6,
                    "wait_ms": None if waits is None else waits[index] / 1e6,
                    "exposed_ms": exposed[index] / 1e6,
                    "compute_after_start_ms": remaining[number] / 1e6,
                }
            )
    return typed(rows, BUCKET_COLUMNS)


def exposed_union_ms(timeline: Timeline, rows: "pd.DataFrame") -> float:
    """Return the exposed time of the collectives of one step, ms, each moment once: gloo runs several at a time.

    Args:
        timeline: what a reader returned.
        rows: of one step, of `buckets`.
    """
    if not len(rows):
        return 0.0
    sets = work_sets(timeline)
    bounds = work_window(timeline, sets)
    begin = bounds[0] if bounds is not None else 0
    if rows["step"].notna().any():
        steps = timeline.steps
        begin = int(steps.loc[steps["step"] == rows["step"].iloc[0], "start"].iloc[0])
    starts, ends = (begin + (rows[name] * 1e6).round().astype("int64") for name in ("start_ms", "end_ms"))
    return total_ns(difference(merged(starts, ends), sets.compute)) / 1e6


def launch_times(timeline: Timeline, correlations: Numbers) -> Numbers:
    """Return when the host launched each of n kernels, ns, by correlation id; -1 where the trace does not say."""
    calls = calls_with(timeline.api, correlations)
    begins = np.append(timeline.api["start"].to_numpy(dtype=np.int64), -1)
    return np.where(calls >= 0, begins[calls], -1)


def communication_set(timeline: Timeline, sets: WorkSets) -> Intervals:
    """Return when a rank communicates: its kernels' time; on a GPU without such kernels, that of its calls of MPI."""
    if len(sets.communication):
        return sets.communication
    return merged(timeline.collectives["start"], timeline.collectives["end"])


def all_reduce(timelines: Sequence[Timeline]) -> dict[str, Any]:
    """Return what communication, and all-reduces, are of the profiled steps, as means over the ranks.

    all_reduce_share is the time in which at least one runs over the time of the steps, of which
    all_reduce_exposed_share is spent without computation beside it, waiting for other ranks included, and
    all_reduce_hidden_share under computation. all_reduce_ms is per step. The names with communication_ say the same of
    all collectives together. profiled_step_ms is what a step took with the profiler, the base of all shares. All are
    missing where no rank has marked steps.

    Args:
        timelines: what readers returned, one per rank.
    """
    ranks = communication_by_rank(timelines)
    ranks = ranks[ranks["steps"] > 0]
    if not len(ranks):
        return {"profile_problem": "the profile marks no steps"}
    # All groups together: what two of them do at the same time counts once.
    sums = np.zeros(3)
    for timeline, (kind,), values in _parts(timelines, None, ("collective",)):
        if kind == "all_reduce" and len(timeline.steps):
            per_step = values["total_ms"] / len(timeline.steps)
            sums += values["communication_share"], values["exposed_share"], per_step
    share, bare, time_ms = (sums / len(ranks)).tolist()
    return {
        "communication_share": float(ranks["communication_share"].mean()),
        "communication_exposed_share": float(ranks["exposed_share"].mean()),
        "communication_exposed_ms": float((ranks["exposed_ms"] / ranks["steps"]).mean()),
        "all_reduce_share": share,
        "all_reduce_exposed_share": bare,
        "all_reduce_hidden_share": share - bare,
        "all_reduce_ms": time_ms,
        "profiled_step_ms": float((ranks["window_ms"] / ranks["steps"]).mean()),
        "profiled_steps": int(ranks["steps"].max()),
    }
