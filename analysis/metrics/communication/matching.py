"""Which collectives of the ranks are one: then what of each is transfer and what is waiting for the last rank.

A collective cannot transfer before its last rank arrives, so the shortest of its durations is the transfer, and what a
rank has beyond it the wait; the rank with the shortest duration is the one that arrived last, the straggler. Durations
need no common clock. It holds for collectives in which everyone waits for everyone (all_reduce, all_gather,
reduce_scatter, barrier). In an all_to_all ranks may send different amounts: the shortest duration is then a lower bound
of the transfer. The root of a broadcast or reduce, and a sender, may leave early: broadcast, reduce, gather, scatter
and send_recv are matched for counting and never split.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.timeline import Timeline, typed

if TYPE_CHECKING:
    import pandas as pd

SYNCHRONIZING = ("all_reduce", "all_gather", "reduce_scatter", "barrier", "all_to_all")
"""Collectives in which no rank can end before all have begun."""
MEMBER_COLUMNS = {
    "match": "int64",  # number of the collective
    "member": "int64",  # place of the timeline
    "index": "int64",  # row of its `collectives`
    "collective": "str",
    "start": "int64",  # of the rank's own clock
    "end": "int64",
    "duration_ns": "int64",
    "transfer_ns": "float64",  # NaN where the kind does not split
    "wait_ns": "float64",
    "last": "bool",  # arrived last
}
STRAGGLER_COLUMNS = {
    "rank": "Int64",
    "matched": "int64",  # of those that split
    "unmatched": "int64",  # no other rank has them; their waiting is not known
    "transfer_ms": "float64",
    "wait_ms": "float64",
    "times_last": "int64",
    "wait_caused_ms": "float64",  # mean wait of the other ranks in the collectives where this one arrived last
}
CLOCK_COLUMNS = {
    "rank": "Int64",
    "offset_us": "float64",  # what its clock is ahead of the first rank's; NaN unknown
    "spread_us": "float64",  # median absolute deviation of the differences
    "collectives": "int64",  # in common with the first rank
}
_LONGEST_SHIFT = 64

Key = tuple[str, str, int, str]


def match_collectives(timelines: Sequence[Timeline]) -> "pd.DataFrame":
    """Return one row per matched collective and rank: MEMBER_COLUMNS.

    By group (and its ranks, where the trace lists them) and number in it where the trace has both; else the k-th of the
    same kind, group and size in order of start on every rank. Where ranks have different numbers of those, a shift is
    looked for under which their ends keep the same distance. A set over fewer ranks than its group has is matched among
    those there are.
    """
    by_key: dict[Key, dict[int, list[int]]] = {}
    for member, timeline in enumerate(timelines):
        for index, key in enumerate(_keys(timeline)):
            by_key.setdefault(key, {}).setdefault(member, []).append(index)
    ends = [timeline.collectives["end"].to_numpy(dtype=np.int64) for timeline in timelines]
    rows: list[tuple[int, int, int]] = []
    number = 0
    for (_, group, size, _), present in by_key.items():
        # Several groups of one size that the trace does not tell apart are not matched.
        if len(present) < 2 or 0 < size < (len(present) if group else len(timelines)):
            continue
        for indices in _aligned(present, ends):
            rows += [(number, member, index) for member, index in indices.items()]
            number += 1
    return _split(rows, timelines)


def _keys(timeline: Timeline) -> list[Key]:
    table, keys = timeline.collectives, list[Key]()
    names = ("collective", "group", "group_size", "bytes", "seq")
    for kind, group, size, content, seq in zip(*(table[name].tolist() for name in names), strict=True):
        numbered = bool(group) and int(seq) >= 0
        # Ranks may give different amounts into an all_to_all.
        what = f"seq {seq}" if numbered else "" if kind == "all_to_all" else str(content)
        ranks = timeline.groups[str(group)].listed if str(group) in timeline.groups else ""
        keys.append((str(kind), f"{group} ({ranks})" if ranks else str(group), int(size), what))
    return keys


def _aligned(present: dict[int, list[int]], ends: Sequence[npt.NDArray[np.int64]]) -> list[dict[int, int]]:
    """Pair the k-th ones; shorter lists are shifted to where the ends keep the steadiest distance."""
    reference = max(present, key=lambda member: len(present[member]))
    aligned: list[dict[int, int]] = [{reference: index} for index in present[reference]]
    longest = ends[reference][present[reference]]
    for member, rows in present.items():
        if member == reference:
            continue
        own = ends[member][rows]
        best, least = 0, np.inf
        for shift in range(min(len(longest) - len(own), _LONGEST_SHIFT) + 1):
            distance = longest[shift : shift + len(own)] - own
            spread = float(np.abs(distance - np.median(distance)).mean()) if len(own) > 1 else float(shift)
            if spread < least:
                best, least = shift, spread
        for place, index in enumerate(rows):
            aligned[best + place][member] = index
    return [indices for indices in aligned if len(indices) > 1]


def _split(rows: list[tuple[int, int, int]], timelines: Sequence[Timeline]) -> "pd.DataFrame":
    import pandas as pd

    frame = pd.DataFrame(rows, columns=["match", "member", "index"]).astype("int64")
    tables = [one.collectives[["collective", "start", "end"]].reset_index(names="index") for one in timelines]
    values = pd.concat([table.assign(member=member) for member, table in enumerate(tables)], ignore_index=True)
    frame = frame.merge(values.astype({"collective": "object"}), on=["member", "index"], how="left", validate="1:1")
    frame["duration_ns"] = frame["end"] - frame["start"]
    by_match = frame.groupby("match")["duration_ns"]
    shortest, longest = by_match.transform("min"), by_match.transform("max")
    splits = frame["collective"].isin(SYNCHRONIZING)
    frame["transfer_ns"] = shortest.astype("float64").where(splits)
    frame["wait_ns"] = frame["duration_ns"] - frame["transfer_ns"]
    # Of equally short ones the first: one collective has one straggler, and none where nobody waited.
    candidate = splits & (frame["duration_ns"] == shortest) & (longest > shortest)
    frame["last"] = candidate & (candidate.groupby(frame["match"]).cumsum() == 1)
    return frame.sort_values(["match", "member"], kind="stable", ignore_index=True)[list(MEMBER_COLUMNS)]


def stragglers(timelines: Sequence[Timeline], matching: "pd.DataFrame") -> "pd.DataFrame":
    """Return one row per rank, the one that others waited for longest first: STRAGGLER_COLUMNS.

    Args:
        timelines: what readers returned, one per rank.
        matching: of `match_collectives`.
    """
    split = matching[matching["transfer_ns"].notna()]
    by_match = split.groupby("match")
    others = by_match["wait_ns"].transform("sum") / (by_match["member"].transform("size") - 1).clip(lower=1)
    rows = []
    for member, timeline in enumerate(timelines):
        mine = split["member"] == member
        last = mine & split["last"]
        rows.append(
            {
                "rank": timeline.rank,
                "matched": int(mine.sum()),
                "unmatched": len(timeline.collectives) - int((matching["member"] == member).sum()),
                "transfer_ms": split["transfer_ns"][mine].sum() / 1e6,
                "wait_ms": split["wait_ns"][mine].sum() / 1e6,
                "times_last": int(last.sum()),
                "wait_caused_ms": others[last].sum() / 1e6,
            }
        )
    table = typed(rows, STRAGGLER_COLUMNS)
    return table.sort_values("wait_caused_ms", ascending=False, kind="stable", ignore_index=True)


def clock_offsets(timelines: Sequence[Timeline], matching: "pd.DataFrame") -> "pd.DataFrame":
    """Return the offset of each rank's clock from collectives that it and the first rank took part in: CLOCK_COLUMNS.

    Those that end together on all ranks are taken first; an all_to_all may end at different times.
    """
    rows = []
    for member, timeline in enumerate(timelines):
        apart = np.empty(0, dtype=np.int64)
        for kinds in (("all_reduce", "barrier"), ("all_gather", "reduce_scatter"), ("all_to_all",)):
            chosen = matching[matching["collective"].isin(kinds)]
            first, mine = (chosen[chosen["member"] == one].set_index("match")["end"] for one in (0, member))
            common = mine.index.intersection(first.index)
            if len(common):
                apart = (mine.loc[common] - first.loc[common]).to_numpy(dtype=np.int64)
                break
        row: dict[str, Any] = {"rank": timeline.rank, "collectives": len(apart)}
        if len(apart):
            offset = int(np.median(apart))
            row |= {"offset_us": offset / 1e3, "spread_us": np.median(np.abs(apart - offset)) / 1e3}
        rows.append(row)
    return typed(rows, CLOCK_COLUMNS)
