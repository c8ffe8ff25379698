"""Which collectives of the ranks are one: then what of each is transfer and what is waiting for the last rank.

A collective cannot transfer before its last rank arrives, so the shortest of its durations is the transfer, and what a
rank has beyond it the wait; the rank with the shortest duration is the one that arrived last, the straggler. Durations
need no common clock. It holds for collectives in which everyone waits for everyone (all_reduce, all_gather,
reduce_scatter, barrier). In an all_to_all ranks may send different amounts: the shortest duration is then a lower bound
of the transfer. The root of a broadcast or reduce, and a sender, may leave early: broadcast, reduce, gather, scatter
and send_recv are matched for counting and never split.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from analysis.spans import Intervals, merged
from analysis.timeline import Timeline, typed

if TYPE_CHECKING:
    import pandas as pd


SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "barrier", "all_to_all")
"""Collectives in which no rank can end before all have begun."""

Key = tuple[str, ...]

STRAGGLER_COLUMNS = {
    "rank": "Int64",
    "matched": "int64",
    "transfer_ms": "float64",
    "wait_ms": "float64",
    "times_last": "int64",
    "wait_caused_ms": "float64",
    "arrival_skew_ms": "float64",
}


@dataclass(frozen=True, slots=True)
class Matching:
    """Collectives that several ranks took part in."""

    members: "pd.DataFrame"
    """One row per matched collective and rank: match (its number), member (place of the timeline), index (row of its
    `collectives`), collective, bytes, start, end (of the rank's own clock), duration_ns, transfer_ns, wait_ns (NaN
    where the kind does not split), last (arrived last)."""
    unmatched: tuple[int, ...]
    """Collectives of each timeline that have no partner."""
    problems: tuple[str, ...]
    """What could not be matched and why, one sentence each."""
    absent: str = ""
    """The problem that ranks of the job were not given, and what that means for times; "" if all were, as far as the
    traces say."""

    def complete(self, member: int) -> bool:
        """Return whether everything that a rank communicates is matched and split."""
        own = self.members["transfer_ns"][self.members["member"] == member]
        return len(own) > 0 and not self.unmatched[member] and bool(own.notna().all())

    def transfer_ns(self, member: int, count: int) -> npt.NDArray[np.float64]:
        """Return the transfer time of each of a timeline's `count` collectives, NaN where it is not known."""
        found = np.full(count, np.nan)
        own = self.members[self.members["member"] == member]
        found[own["index"].to_numpy()] = own["transfer_ns"].to_numpy()
        return found

    def transfer_set(self, member: int) -> Intervals:
        """Return when a rank transfers: the end of each of its collectives, after the wait."""
        own = self.members[(self.members["member"] == member) & self.members["transfer_ns"].notna()]
        ends = own["end"].to_numpy(dtype=np.int64)
        return merged(ends - own["transfer_ns"].to_numpy(dtype=np.int64), ends)


def match_collectives(timelines: Sequence[Timeline]) -> Matching:
    """Return which collectives of the ranks belong together.

    By group (and its ranks, where the trace lists them) and number in it where the trace has both; else the k-th of the
    same kind, group and size in order of start on every rank. Where ranks have different numbers of those, a shift is
    looked for under which their ends keep the same distance. A set over fewer ranks than its group has is matched among
    those there are, and said.
    """
    import pandas as pd

    problems: list[str] = []
    listed = [_by_key(timeline) for timeline in timelines]
    keys = list(dict.fromkeys(key for table in listed for key in table))
    rows: list[tuple[int, int, int]] = []
    number = 0
    for key in keys:
        present = {member: table[key] for member, table in enumerate(listed) if key in table}
        reason = _refused(key, present, len(timelines))
        if reason:
            if reason not in problems:
                problems.append(reason)
            continue
        aligned = _aligned(present, timelines)
        for indices in aligned:
            rows += [(number, member, index) for member, index in indices.items()]
            number += 1
    members = _split(pd.DataFrame(rows, columns=["match", "member", "index"]), timelines)
    counts = np.bincount(members["member"].to_numpy(dtype=np.int64), minlength=len(timelines))
    unmatched = tuple(len(timeline.collectives) - int(counts[i]) for i, timeline in enumerate(timelines))
    absent = _absent(timelines)
    said = (*([absent] if absent else []), *problems, *_without(timelines, unmatched))
    return Matching(members, unmatched, said, absent)


def stragglers(
    timelines: Sequence[Timeline], matching: Matching, offsets_ns: Sequence[int] | None = None
) -> "pd.DataFrame":
    """Return one row per rank, the one that others waited for longest first: STRAGGLER_COLUMNS.

    Args:
        timelines: what readers returned, one per rank.
        matching: of `match_collectives`.
        offsets_ns: what each clock is ahead of the first one's, of `clock_offsets`; without it arrival_skew_ms, the
            mean time by which a rank arrives after the first, is that of durations.

    wait_caused_ms is the mean wait of the other ranks in the collectives where this one arrived last.
    """

    split = matching.members[matching.members["transfer_ns"].notna()]
    clocks = np.asarray(offsets_ns if offsets_ns is not None else np.zeros(len(timelines)), dtype=float)
    rows = []
    sizes = split.groupby("match")["member"].transform("size")
    others = split.groupby("match")["wait_ns"].transform("sum") / (sizes - 1).clip(lower=1)
    if offsets_ns is None:
        late = split.groupby("match")["duration_ns"].transform("max") - split["duration_ns"]
    else:
        arrived = split["start"].astype("float64") - split["start"].min() - clocks[split["member"].to_numpy(dtype=int)]
        late = arrived - arrived.groupby(split["match"]).transform("min")
    for member, timeline in enumerate(timelines):
        own = split["member"] == member
        last = own & split["last"]
        rows.append(
            {
                "rank": timeline.rank,
                "matched": int(own.sum()),
                "transfer_ms": float(split["transfer_ns"][own].sum()) / 1e6,
                "wait_ms": float(split["wait_ns"][own].sum()) / 1e6,
                "times_last": int(last.sum()),
                "wait_caused_ms": float(others[last].sum()) / 1e6,
                "arrival_skew_ms": float(late[own].mean()) / 1e6 if own.any() else None,
            }
        )
    return typed(rows, STRAGGLER_COLUMNS).sort_values(
        "wait_caused_ms", ascending=False, kind="stable", ignore_index=True
    )


def _by_key(timeline: Timeline) -> dict[Key, list[int]]:
    table = timeline.collectives
    names = ("collective", "group", "group_size", "bytes", "seq")
    found: dict[Key, list[int]] = {}
    for index, (kind, group, size, content, seq) in enumerate(zip(*(table[name] for name in names), strict=True)):
        numbered = bool(group) and int(seq) >= 0
        # Ranks may give different amounts into an all_to_all.
        told = f"seq {seq}" if numbered else "" if kind == "all_to_all" else str(content)
        ranks = timeline.groups[str(group)].listed if str(group) in timeline.groups else ""
        key = (str(kind), f"{group} ({ranks})" if ranks else str(group), str(size), told)
        found.setdefault(key, []).append(index)
    return found


def _refused(key: Key, present: dict[int, list[int]], ranks: int) -> str:
    kind, group, size, _ = key
    named = f"{kind} of group {group!r}" if group else kind
    members = int(size)
    if len(present) < 2:
        return ""  # counted as without a partner
    if members > 0 and len(present) > members:
        return (
            f"{named}: {len(present)} ranks have it, but its group has {members}: not matched, as groups are ambiguous"
        )
    if not group and 0 < members < ranks:
        return f"{named} over {members} ranks: not matched, as the trace does not say which of the {ranks} ranks"
    return ""


def _aligned(present: dict[int, list[int]], timelines: Sequence[Timeline]) -> list[dict[int, int]]:
    """Pair the k-th ones; shorter lists are shifted to where the ends keep the steadiest distance."""
    if len(present) < 2:
        return []
    reference = max(present, key=lambda member: len(present[member]))
    ends = {m: timelines[m].collectives["end"].to_numpy(dtype=np.int64)[rows] for m, rows in present.items()}
    aligned: list[dict[int, int]] = [{reference: index} for index in present[reference]]
    for member, rows in present.items():
        if member == reference:
            continue
        surplus = min(len(aligned) - len(rows), 64)

        def spread(shift: int, own: npt.NDArray[np.int64] = ends[member]) -> float:
            distance = ends[reference][shift : shift + len(own)] - own
            return float(np.abs(distance - np.median(distance)).mean()) if len(own) > 1 else float(shift)

        best = min(range(surplus + 1), key=spread) if surplus else 0
        for place, index in enumerate(rows):
            aligned[best + place][member] = index
    return [indices for indices in aligned if len(indices) > 1]


def _split(rows: "pd.DataFrame", timelines: Sequence[Timeline]) -> "pd.DataFrame":
    import pandas as pd

    parts = []
    for member, timeline in enumerate(timelines):
        own = rows[rows["member"] == member]
        values = timeline.collectives[["collective", "bytes", "start", "end"]].iloc[own["index"].to_numpy(dtype=int)]
        parts.append(pd.concat([own.reset_index(drop=True), values.reset_index(drop=True)], axis=1))
    empty_rows = {"collective": "object", "bytes": "int64", "start": "int64", "end": "int64"}
    frame = pd.concat(parts, ignore_index=True) if parts else rows.assign(**{n: [] for n in empty_rows})
    frame = frame.astype({"collective": "object", "match": "int64", "member": "int64", "index": "int64"})
    frame = frame.astype({"bytes": "int64", "start": "int64", "end": "int64"})
    frame["duration_ns"] = (frame["end"] - frame["start"]).astype("float64")
    splits = frame["collective"].isin(SYNCHRONISING)
    shortest = frame.groupby("match")["duration_ns"].transform("min")
    frame["transfer_ns"] = shortest.where(splits)
    frame["wait_ns"] = frame["duration_ns"] - frame["transfer_ns"]
    # Of equally short ones the first: one collective has one straggler, and none where nobody waited.
    longest = frame.groupby("match")["duration_ns"].transform("max")
    candidate = splits & (frame["duration_ns"] == shortest) & (longest > shortest)
    frame["last"] = candidate & (candidate.groupby(frame["match"]).cumsum() == 1)
    return frame.sort_values(["match", "member"], kind="stable", ignore_index=True)


def _absent(timelines: Sequence[Timeline]) -> str:
    sizes = [timeline.world_size for timeline in timelines if timeline.world_size]
    if not sizes or max(sizes) <= len(timelines):
        return ""
    there = sorted(timeline.rank for timeline in timelines if timeline.rank is not None)
    ranks = ", ".join(map(str, there[:16])) + (", ..." if len(there) > 16 else "")
    named = f" (rank{'s'[: len(there) > 1]} {ranks})" if there else ""
    return (
        f"{len(timelines)} of the job's {max(sizes)} ranks were given{named}: waiting for others counts as transfer; "
        "give the folder with all traces"
    )


def _without(timelines: Sequence[Timeline], unmatched: Sequence[int]) -> list[str]:
    total = sum(len(timeline.collectives) for timeline in timelines)
    lost = sum(unmatched)
    if len(timelines) < 2 or not lost:
        return []
    return [f"{lost:,} of {total:,} collectives have no partner on another rank: not split into transfer and wait"]


# In this order of trust; all_to_all may end at different times on ranks that receive different amounts.
_KINDS = (("all_reduce", "barrier"), ("all_gather", "reduce_scatter"), ("all_to_all",))


CLOCK_COLUMNS = {
    "rank": "Int64",
    "offset_us": "float64",
    "spread_us": "float64",
    "p95_us": "float64",
    "collectives": "int64",
    "reason": "str",
}


@dataclass(frozen=True, slots=True)
class ClockOffsets:
    """The clocks of n ranks against that of the first."""

    offsets_ns: tuple[int, ...]
    """What each rank's clock is ahead of the first one's; 0 where it is not known."""
    table: "pd.DataFrame"
    """One row per rank: rank, offset_us (NaN unknown), spread_us (median absolute deviation of the differences), p95_us
    (95th percentile of it), collectives (used), reason (why it is not known, or what to mind)."""


def clock_offsets(timelines: Sequence[Timeline], matching: Matching) -> ClockOffsets:
    """Return the offset of each rank's clock from collectives that it and the first rank took part in.

    Args:
        timelines: what readers returned, one per rank.
        matching: of `match_collectives`.
    """

    offsets: list[int] = []
    rows = []
    for member, timeline in enumerate(timelines):
        differences, reason = _differences(matching, member)
        offset = int(np.median(differences)) if len(differences) else 0
        apart = np.abs(differences - offset)
        offsets.append(offset)
        rows.append(
            {
                "rank": timeline.rank,
                "offset_us": offset / 1e3 if len(differences) else None,
                "spread_us": float(np.median(apart)) / 1e3 if len(differences) else None,
                "p95_us": float(np.percentile(apart, 95)) / 1e3 if len(differences) else None,
                "collectives": len(differences),
                "reason": reason,
            }
        )
    return ClockOffsets(tuple(offsets), typed(rows, CLOCK_COLUMNS))


def _differences(matching: Matching, member: int) -> tuple["np.ndarray[tuple[int], np.dtype[np.int64]]", str]:
    rows = matching.members
    for kinds in _KINDS:
        chosen = rows[rows["collective"].isin(kinds)]
        first = chosen[chosen["member"] == 0].set_index("match")["end"]
        own = chosen[chosen["member"] == member].set_index("match")["end"]
        common = own.index.intersection(first.index)
        if len(common):
            reason = "from all_to_all, which need not end together" if kinds == ("all_to_all",) else ""
            return (own.loc[common] - first.loc[common]).to_numpy(dtype=np.int64), reason
    return np.empty(0, dtype=np.int64), "no collective in common with the first rank: its clock is assumed equal"
