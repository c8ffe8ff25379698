"""Clocks that are apart by known times; matching with and without numbers. Times are ns."""

import random

import pandas as pd
import pytest
from support.timelines import timeline

from analysis.metrics.communication.matching import clock_offsets, match_collectives, stragglers
from analysis.timeline import Timeline

SPANS = [(1000 * i, 1000 * i + 100 + 37 * (i % 7)) for i in range(20)]


def rank(number: int, spans: list[tuple[int, int]]) -> Timeline:
    return timeline(number, collectives=[("all_reduce", start, end) for start, end in spans])


def shifted(spans: list[tuple[int, int]], by: int, seed: int = 0) -> list[tuple[int, int]]:
    wobble = random.Random(seed)
    return [(start + by, end + by + wobble.randint(-5, 5)) for start, end in spans]


def unmatched(ranks: list[Timeline]) -> list[int]:
    table = stragglers(ranks, match_collectives(ranks))
    return [int(count) for count in table.sort_values("rank")["unmatched"]]


def test_the_offset_of_a_clock_is_the_median_of_the_differences_of_ends() -> None:
    apart = shifted(SPANS, 1_000_000_000_000)
    apart[3] = (apart[3][0], apart[3][1] + 90_000)
    ranks = [rank(0, SPANS), rank(1, apart), rank(2, shifted(SPANS, -777, 2))]
    table = clock_offsets(ranks, match_collectives(ranks))
    assert (table["offset_us"] * 1e3).tolist() == pytest.approx([0, 1_000_000_000_000, -777], abs=3)
    assert table["spread_us"].max() < 0.006 and table["collectives"].tolist() == [20, 20, 20]
    lonely = [rank(0, SPANS), rank(1, [])]
    assert pd.isna(clock_offsets(lonely, match_collectives(lonely))["offset_us"].iloc[1])


def test_numbers_win_over_order() -> None:
    ranks = [
        timeline(n, collectives=[("all_reduce", at, at + 10, 8, -1, -1, "0", 2, seq) for at, seq in calls])
        for n, calls in enumerate([((0, 4), (20, 5)), ((20, 5), (40, 6))])
    ]
    assert match_collectives(ranks)[["member", "index"]].to_numpy().tolist() == [[0, 1], [1, 0]]
    assert unmatched(ranks) == [1, 1]


def test_sizes_kinds_and_groups_keep_collectives_apart_and_what_may_end_early_is_never_split() -> None:
    calls = [("all_reduce", 0, 10, 8), ("all_reduce", 20, 30, 16), ("send_recv", 40, 50, 8)]
    ranks = [timeline(n, collectives=calls) for n in (0, 1)]
    matching = match_collectives(ranks)
    assert len(matching) == 6 and matching.groupby("match")["collective"].nunique().max() == 1
    sent = matching[matching["collective"] == "send_recv"]
    assert sent["transfer_ns"].isna().all() and not sent["last"].any() and unmatched(ranks) == [0, 0]
    ambiguous = [timeline(n, collectives=[("all_reduce", 0, 10, 8, -1, -1, "", 2, -1)]) for n in range(4)]
    assert not len(match_collectives(ambiguous)) and unmatched(ambiguous) == [1] * 4


def test_transfer_and_wait_add_up_to_the_duration() -> None:
    wobble = random.Random(7)
    ranks = [rank(number, [(start - wobble.randint(0, 50), end) for start, end in SPANS]) for number in range(4)]
    rows = match_collectives(ranks)
    assert ((rows["transfer_ns"] + rows["wait_ns"]) == rows["duration_ns"]).all()
    assert (rows.groupby("match")["last"].sum() <= 1).all()
    shortest = [min(r.collectives["end"][i] - r.collectives["start"][i] for r in ranks) for i in range(len(SPANS))]
    assert rows.groupby("match")["transfer_ns"].first().tolist() == shortest
