"""Communication: one table with a row per collective, and its sums by rank, by kind, by process group and by step.

On unions of intervals, as measurement.md defines them: C communication, K computation (time.work.work_sets).
overlapped = |C and K|, exposed = |C minus K|. Times are cut at the window's edges; counts, bytes and bandwidths are of
the collectives that the host launched in the window. Bandwidths are nccl-tests', in 1e9 bytes/s: algbw = bytes / time,
and busbw = algbw x `names.bus_factor`, the rate at which a link has to run (nccl-tests doc/PERFORMANCE.md).
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.metrics.kernels.devices import LinkRates
from analysis.metrics.time.window import collectives_at, step_places, work_time
from analysis.metrics.time.work import device_sets, work_sets
from analysis.names import bus_factor, parallelism
from analysis.spans import Intervals, difference, inside_ns, intersection, merged, total_ns, within
from analysis.timeline import ProcessGroup, Timeline, typed

if TYPE_CHECKING:
    import pandas as pd

COLLECTIVES = {
    "rank": "Int64",
    "collective": "str",
    "group": "str",
    "group_size": "int64",  # -1 unknown
    "bytes": "int64",
    "step": "Int64",  # marked step that launched it
    "counted": "bool",  # launched in the window
    "device": "int64",
    "start_ns": "int64",
    "end_ns": "int64",
    "transfer_ns": "float64",  # NaN where it is not matched
    "exposed_ns": "int64",
}
RANK_COLUMNS = {
    "rank": "Int64",
    "steps": "int64",
    **dict.fromkeys(("window_ms", "compute_ms", "communication_ms", "overlapped_ms", "exposed_ms"), "float64"),
    "exposed_transfer_ms": "float64",  # missing where a collective of the rank is not matched, as ...
    "exposed_wait_ms": "float64",
    **dict.fromkeys(("communication_share", "exposed_share", "overlap_share"), "float64"),
}
_SUMS = {
    "count": "int64",
    "sized": "int64",  # of these, those whose size is known
    "bytes": "Int64",  # of the sized ones
    **dict.fromkeys(("total_ms", "overlapped_ms", "exposed_ms"), "float64"),
    "algbw_gb_s": "float64",  # bytes over durations, waiting for other ranks included, as nccl-tests does
    "busbw_gb_s": "float64",
    "transfer_busbw_gb_s": "float64",  # with the waiting taken off
}
KIND_COLUMNS = {
    "rank": "Int64",
    "collective": "str",
    "group": "str",
    "description": "str",  # of the group, "" unknown
    "parallelism": "str",  # of names.parallelism
    "group_ranks": "str",  # in short: "0-7"
    "group_size": "Int64",
    **_SUMS,
    "link_gb_s": "float64",  # what the bus bandwidth compares with, and ...
    "link_share": "float64",  # ... its share of that, without waiting where it is known
    "link_source": "str",
    "communication_share": "float64",
}
GROUP_COLUMNS = {
    "group": "str",  # the description, or the name where there is none
    "parallelism": "str",
    "groups": "int64",  # sets of ranks with this description
    "group_size": "Int64",
    "traces": "int64",  # of ranks that communicate in it; the rest is means over these
    "count": "float64",
    "bytes": "Int64",
    **dict.fromkeys(("total_ms", "exposed_ms", "algbw_gb_s", "busbw_gb_s", "transfer_busbw_gb_s"), "float64"),
}
BUCKET_COLUMNS = {
    "rank": "Int64",
    "step": "Int64",
    "bucket": "int64",
    "collective": "str",
    "bytes": "Int64",
    **dict.fromkeys(("start_ms", "end_ms", "duration_ms", "wait_ms", "exposed_ms"), "float64"),
}


def communication_window(timeline: Timeline) -> Intervals | None:
    """Return the window as a set: without marked steps, all GPU work and collectives; None for a trace without work."""
    whole, table = work_time(timeline), timeline.collectives
    if whole is not None and timeline.spans is None and len(table):
        return merged([min(whole[0, 0], table["start"].min())], [max(whole[-1, 1], table["end"].max())])
    return whole


def collective_table(timeline: Timeline, matching: "pd.DataFrame | None" = None, member: int = 0) -> "pd.DataFrame":
    """Return one row per collective of a rank, those outside the window too, in order of start: COLLECTIVES.

    Args:
        timeline: what a reader returned.
        matching: which collectives of the ranks belong together, of `match_collectives`.
        member: the timeline's place among those matched.
    """
    import pandas as pd

    table = timeline.collectives
    moments = collectives_at(timeline)
    steps = timeline.steps.sort_values("start", kind="stable")["step"].astype("Int64").array
    starts, ends = (table[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    exposed = ends - starts
    for device in table["device"].unique().tolist():
        here = (table["device"] == device).to_numpy()
        exposed[here] -= inside_ns(_compute(timeline, device), starts[here], ends[here])
    transfers = np.full(len(table), np.nan)
    if matching is not None:
        matched = matching[matching["member"] == member]
        transfers[matched["index"].to_numpy()] = matched["transfer_ns"]
    columns = {name: table[name] for name in ("collective", "group", "group_size", "bytes", "device")}
    frame = pd.DataFrame(columns).assign(
        rank=timeline.rank,
        step=steps.take(step_places(timeline, moments), allow_fill=True),
        counted=timeline.inside(moments),
        start_ns=starts,
        end_ns=ends,
        transfer_ns=transfers,
        exposed_ns=exposed,
    )
    return frame[list(COLLECTIVES)].astype(COLLECTIVES).sort_values("start_ns", kind="stable", ignore_index=True)


def _compute(timeline: Timeline, device: int) -> Intervals:
    """Return when a GPU of several computes; else, and for collectives of CPU threads, when the rank does."""
    return next((one.compute for one in device_sets(timeline) if one.device == device), work_sets(timeline).compute)


def communication_by_rank(timelines: Sequence[Timeline], matching: "pd.DataFrame | None" = None) -> "pd.DataFrame":
    """Return one row per rank, times means over its GPUs: RANK_COLUMNS; a rank without work has no row.

    Args:
        timelines: what readers returned, one per rank.
        matching: of `match_collectives`; it splits the exposed time into transfer and wait.
    """
    rows = []
    for member, timeline in enumerate(timelines):
        whole, sets = communication_window(timeline), device_sets(timeline)
        if whole is None:
            continue
        calls = merged(timeline.collectives["start"], timeline.collectives["end"])
        # A GPU without kernels of communication may have calls of MPI.
        talks = [one.communication if len(one.communication) else calls for one in sets]
        pairs = [(within(talk, whole), within(one.compute, whole)) for talk, one in zip(talks, sets, strict=True)]
        exposed = [difference(communication, compute) for communication, compute in pairs]
        span, total, bare = total_ns(whole), _mean([pair[0] for pair in pairs]), _mean(exposed)
        row = {"rank": timeline.rank, "steps": len(timeline.steps), "window_ms": span / 1e6}
        row |= {"compute_ms": _mean([pair[1] for pair in pairs]) / 1e6, "communication_ms": total / 1e6}
        table = collective_table(timeline, matching, member)
        if len(table) and table["transfer_ns"].notna().all():
            # A collective waits first and transfers last.
            transfers = merged(table["end_ns"] - table["transfer_ns"].astype("int64"), table["end_ns"])
            transfer = _mean([intersection(one, transfers) for one in exposed])
            row |= {"exposed_transfer_ms": transfer / 1e6, "exposed_wait_ms": (bare - transfer) / 1e6}
        rows.append({**row, **_shares(total, bare, span)})
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
    timelines: Sequence[Timeline], matching: "pd.DataFrame | None", keys: Sequence[str]
) -> list[tuple[Timeline, tuple[Any, ...], dict[str, Any]]]:
    """Return (timeline, values of the keys, sums) of every part of the collectives of each rank."""
    found = []
    for member, timeline in enumerate(timelines):
        whole = communication_window(timeline)
        if whole is None or not len(timeline.collectives):
            continue
        table, devices = collective_table(timeline, matching, member), len(device_sets(timeline))
        for values, part in table.groupby(list(keys), sort=False):
            times = []
            for device in part["device"].unique().tolist():
                rows = part[part["device"] == device]
                union = within(merged(rows["start_ns"], rows["end_ns"]), whole)
                times.append((total_ns(union), total_ns(difference(union, _compute(timeline, device)))))
            gpus = devices if part["device"].min() >= 0 else 1
            total, exposed = (round(sum(one) / gpus) for one in zip(*times, strict=True))
            counted = part[part["counted"]]
            if not len(counted) and not total:
                continue
            row = {"total_ms": total / 1e6, **_shares(total, exposed, total_ns(whole)), **_rates(counted)}
            found.append((timeline, values, row))
    return found


def _rates(rows: "pd.DataFrame") -> dict[str, Any]:
    """Return counts, bytes and bandwidths of collectives."""
    durations = (rows["end_ns"] - rows["start_ns"]).to_numpy(dtype=float)
    sizes, transfers = (rows[name].to_numpy(dtype=float) for name in ("bytes", "transfer_ns"))
    kinds = zip(rows["collective"].tolist(), rows["group_size"].tolist(), strict=True)
    factors = np.array([bus_factor(kind, size) for kind, size in kinds], dtype=float)  # NaN where there is none

    def rate(times: Any, weights: Any) -> float | None:
        known = (sizes > 0) & (times > 0) & np.isfinite(weights)
        return float((sizes[known] * weights[known]).sum() / times[known].sum()) if known.any() else None

    return {
        "count": len(rows),
        "sized": int((sizes > 0).sum()),
        "bytes": int(sizes[sizes > 0].sum()) if (sizes > 0).any() else None,
        "algbw_gb_s": rate(durations, np.ones_like(sizes)),
        "busbw_gb_s": rate(durations, factors),
        "transfer_busbw_gb_s": rate(transfers, factors),
    }


def communication_by_kind(
    timelines: Sequence[Timeline], matching: "pd.DataFrame | None" = None, links: LinkRates | None = None
) -> "pd.DataFrame":
    """Return one row per rank, kind of collective and group, those that take most first: KIND_COLUMNS.

    Args:
        timelines: what readers returned, one per rank.
        matching: of `match_collectives`, for transfer_busbw_gb_s.
        links: measured rates of the links; None: published ones only.
    """
    rows = []
    for timeline, (kind, group, size), values in _sums(timelines, matching, ("collective", "group", "group_size")):
        own = _group_of(timeline, str(group), int(size))
        row: dict[str, Any] = {"rank": timeline.rank, "collective": kind, "group": group, **values}
        row |= {"description": own.description, "parallelism": parallelism(own.description)}
        row |= {"group_ranks": own.listed, "group_size": own.size if own.size > 0 else None, "link_source": ""}
        rate = values["busbw_gb_s"] if values["transfer_busbw_gb_s"] is None else values["transfer_busbw_gb_s"]
        if rate is not None:
            link = (links or LinkRates.of()).rate(timeline, str(kind), own, values["bytes"] / values["sized"])
            row |= {} if link is None else {"link_gb_s": link.gb_s, "link_share": rate / link.gb_s}
            row["link_source"] = link.source if link else ""
        rows.append(row)
    return typed(rows, KIND_COLUMNS).sort_values("total_ms", ascending=False, kind="stable", ignore_index=True)


def communication_by_group(timelines: Sequence[Timeline], matching: "pd.DataFrame | None" = None) -> "pd.DataFrame":
    """Return one row per process group of a description, those with most exposed time first: GROUP_COLUMNS.

    Sets of ranks that have the same description, such as the tensor parallel groups of a job, are one row; collectives
    whose group is not known have none. What two groups do at the same time counts for both.
    """
    import pandas as pd

    rows = []
    for timeline, (name,), values in _sums(timelines, matching, ("group",)):
        if name:
            size = int(timeline.collectives["group_size"][timeline.collectives["group"] == name].max())
            own = _group_of(timeline, str(name), size)
            row = {"group": own.label, "parallelism": parallelism(own.description), "own": (own.name, own.ranks)}
            rows.append({**row, "group_size": own.size if own.size > 0 else None, **values})
    if not rows:
        return typed([], GROUP_COLUMNS)
    frame = pd.DataFrame(rows)
    numbers = [name for name in GROUP_COLUMNS if name in _SUMS]
    by_label = frame.astype(dict.fromkeys(numbers, "float64")).groupby("group", sort=False)
    table = by_label[numbers].mean()
    sizes = by_label["group_size"].max().where(by_label["group_size"].nunique() == 1)
    table = table.assign(
        parallelism=by_label["parallelism"].first(),
        groups=by_label["own"].nunique(),
        group_size=sizes,
        traces=by_label.size(),
        bytes=table["bytes"].round(),
    )
    table = table.reset_index()[list(GROUP_COLUMNS)].astype(GROUP_COLUMNS)
    return table.sort_values("exposed_ms", ascending=False, kind="stable", ignore_index=True)


def _group_of(timeline: Timeline, name: str, size: int) -> ProcessGroup:
    """Return a group as the trace lists it, with the size that its collectives have where the list has none."""
    own = timeline.groups.get(name) or ProcessGroup(name)
    return dataclasses.replace(own, size=size) if size > 0 else own


def buckets(timeline: Timeline, matching: "pd.DataFrame | None" = None, member: int = 0) -> "pd.DataFrame":
    """Return the bucket timeline: one row per collective launched in each step in order of start, BUCKET_COLUMNS.

    Where no step is marked the whole trace is one, with step <NA>. Times count from the step's start.

    Args:
        timeline: what a reader returned.
        matching: of `match_collectives`, for wait_ms, which is missing without it.
        member: the timeline's place among those matched.
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

    all_reduce_share is the time in which at least one runs over the time of the steps, of which
    all_reduce_exposed_share is spent without computation beside it, waiting for other ranks included, and
    all_reduce_hidden_share under computation. all_reduce_ms is per step. The names with communication_ say the same of
    all collectives together. profiled_step_ms is what a step took with the profiler, the base of all shares. All are
    missing where no rank has marked steps.
    """
    ranks = communication_by_rank(timelines)
    ranks = ranks[ranks["steps"] > 0]
    if not len(ranks):
        return {"profile_problem": "the profile marks no steps"}
    # All groups together: what two of them do at the same time counts once.
    parts = [
        (values["communication_share"], values["exposed_share"], values["total_ms"] / len(timeline.steps))
        for timeline, (kind,), values in _sums(timelines, None, ("collective",))
        if kind == "all_reduce" and len(timeline.steps)
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
