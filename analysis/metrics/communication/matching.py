"""Which collectives of the ranks are one: then what of each is transfer and what is waiting for the last rank.

A collective cannot transfer before its last rank arrives, so the shortest of its durations is the transfer, and what a
rank has beyond it the wait; the rank with the shortest duration arrived last. That needs no common clock. It holds
where everyone waits for everyone; in an all_to_all it is a lower bound, as ranks may send different amounts. Others
(the root of a broadcast may leave early) are matched for counting and never split.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from analysis.timeline import Timeline, columns, typed

SYNCHRONIZING = ("all_reduce", "all_gather", "reduce_scatter", "barrier", "all_to_all")
"""Collectives in which no rank can end before all have begun."""
STRAGGLER_COLUMNS = columns("rank matched unmatched transfer_ms wait_ms times_last wait_caused_ms")
CLOCK_COLUMNS = columns("rank offset_us spread_us collectives")
_LONGEST_SHIFT = 64


def match_collectives(timelines: Sequence[Timeline]) -> pd.DataFrame:
    """Return one row per matched collective and rank.

    Columns: match (number of the collective), member (place of the timeline), index (row of its `collectives`),
    collective, start and end (of the rank's own clock), duration_ns, transfer_ns and wait_ns (NaN where the kind does
    not split), last (arrived last).

    By group (and its ranks, where the trace lists them) and number in it where the trace has both; else the k-th of the
    same kind, group and size in order of start on every rank. Where ranks have different numbers of those, a shift is
    looked for under which their ends keep the same distance. A set over fewer ranks than its group has is matched among
    those there are.
    """
    table = pd.concat([_keyed(timeline, member) for member, timeline in enumerate(timelines)], ignore_index=True)
    key = table.groupby(["collective", "group", "group_size", "seq", "bytes"], sort=False).ngroup()
    present = table.groupby(key)["member"].transform("nunique")
    # Several groups of one size that the trace does not tell apart are not matched.
    most = present.where(table["group"] != "", len(timelines))
    table = table.assign(key=key, place=table.groupby([key, "member"]).cumcount())
    table = table[(present > 1) & ~table["group_size"].between(1, most - 1)]
    counts = table.groupby(["key", "member"])["index"].transform("size")
    uneven = table["key"].isin(table.loc[counts < counts.groupby(table["key"]).transform("max"), "key"])
    for _, rows in table[uneven].groupby("key"):
        table.loc[rows.index, "place"] += _shifts(rows)
    table = table.assign(match=table.groupby(["key", "place"]).ngroup(), duration_ns=table["end"] - table["start"])
    by_match = table.groupby("match")["duration_ns"]
    table = table.assign(shortest=by_match.transform("min"), longest=by_match.transform("max"))
    table = table[by_match.transform("size") > 1].sort_values(["match", "member"], kind="stable", ignore_index=True)
    splits = table["collective"].isin(SYNCHRONIZING)
    table["transfer_ns"] = table["shortest"].where(splits)
    table["wait_ns"] = table["duration_ns"] - table["transfer_ns"]
    # Of equally short ones the first: one collective has one straggler, and none where nobody waited.
    candidate = splits & (table["duration_ns"] == table["shortest"]) & (table["longest"] > table["shortest"])
    table["last"] = candidate & (candidate.groupby(table["match"]).cumsum() == 1)
    names = ["match", "member", "index", "collective", "start", "end", "duration_ns", "transfer_ns", "wait_ns", "last"]
    return table[names]


def _keyed(timeline: Timeline, member: int) -> pd.DataFrame:
    """Return a rank's collectives with what is equal on all ranks; -2 where bytes tell nothing apart."""
    table = timeline.collectives
    names = {name: f"{name} ({group.listed})" for name, group in timeline.groups.items() if group.listed}
    numbered = (table["group"] != "") & (table["seq"] >= 0)
    # Ranks may give different amounts into an all_to_all.
    alike = numbered | (table["collective"] == "all_to_all")
    columns = table[["collective", "group", "group_size", "start", "end"]].astype({"collective": object})
    return columns.assign(
        group=[names.get(name, name) for name in table["group"].astype(object)],
        seq=table["seq"].where(numbered, -1),
        bytes=table["bytes"].mask(alike, -2),
        index=np.arange(len(table)),
        member=member,
    )


def _shifts(rows: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Return how far the collectives of each rank that has fewer are shifted, of one key: to the steadiest distance."""
    members, ends = rows["member"].to_numpy(), rows["end"].to_numpy()
    counts, shifts = np.bincount(members), np.zeros(len(rows), dtype=np.int64)
    longest = ends[members == counts.argmax()]
    for member in np.flatnonzero((counts > 0) & (counts < counts.max())):
        mine = ends[members == member]
        spreads = []
        for shift in range(min(len(longest) - len(mine), _LONGEST_SHIFT) + 1):
            distance = longest[shift : shift + len(mine)] - mine
            spreads.append(np.abs(distance - np.median(distance)).mean() if len(mine) > 1 else shift)
        shifts[members == member] = np.argmin(spreads)
    return shifts


def stragglers(timelines: Sequence[Timeline], matching: pd.DataFrame) -> pd.DataFrame:
    """Return one row per rank, the one that others waited for longest first: STRAGGLER_COLUMNS.

    matched counts those that split; unmatched ones no other rank has. wait_caused_ms is the mean wait of the other
    ranks in the collectives where this one arrived last.
    """
    split = matching[matching["transfer_ns"].notna()]
    by_match = split.groupby("match")
    others = by_match["wait_ns"].transform("sum") / (by_match["member"].transform("size") - 1)
    sums = split.assign(wait_caused_ns=others.where(split["last"], 0.0)).groupby("member").agg(
        matched=("last", "size"), times_last=("last", "sum"), transfer_ms=("transfer_ns", "sum"),
        wait_ms=("wait_ns", "sum"), wait_caused_ms=("wait_caused_ns", "sum"),
    )  # fmt: skip
    members = range(len(timelines))
    table = sums.reindex(members, fill_value=0)
    table[["transfer_ms", "wait_ms", "wait_caused_ms"]] /= 1e6
    table["rank"], table["unmatched"] = [one.rank for one in timelines], [len(one.collectives) for one in timelines]
    table["unmatched"] -= matching["member"].value_counts().reindex(members, fill_value=0)
    table = table[list(STRAGGLER_COLUMNS)].astype(STRAGGLER_COLUMNS)
    return table.sort_values("wait_caused_ms", ascending=False, kind="stable", ignore_index=True)


def clock_offsets(timelines: Sequence[Timeline], matching: pd.DataFrame) -> pd.DataFrame:
    """Return the offset of each rank's clock from collectives that it and the first rank took part in: CLOCK_COLUMNS.

    Those that end together on all ranks count where there are any; an all_to_all may end at different times. spread_us
    is the median absolute deviation of the differences.
    """
    rows = []
    for member, timeline in enumerate(timelines):
        row: dict[str, Any] = {"rank": timeline.rank}
        apart = np.empty(0, dtype=np.int64)
        for kinds in (("all_to_all",), ("all_gather", "reduce_scatter"), ("all_reduce", "barrier")):
            chosen = matching[matching["collective"].isin(kinds)].set_index("match")
            first, mine = (chosen.loc[chosen["member"] == one, "end"] for one in (0, member))
            if len(common := mine.index.intersection(first.index)):
                apart = (mine.loc[common] - first.loc[common]).to_numpy(dtype=np.int64)
        if len(apart):
            offset = int(np.median(apart))
            row |= {"offset_us": offset / 1e3, "spread_us": np.median(np.abs(apart - offset)) / 1e3}
        rows.append({**row, "collectives": len(apart)})
    return typed(rows, CLOCK_COLUMNS)
