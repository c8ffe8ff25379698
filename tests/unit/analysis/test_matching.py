"""Clocks that are apart by known times; matching with and without numbers."""

import random

import pandas as pd
import pytest
from support.timelines import timeline

from analysis.metrics.communication.matching import Matching, clock_offsets, match_collectives, stragglers
from analysis.timeline import Timeline

SPAN = tuple[str, int, int]


def rank(number: int, spans: list[tuple[int, int]], kind: str = "all_reduce", world: int | None = None) -> Timeline:
    return timeline(number, collectives=[(kind, start, end) for start, end in spans], world_size=world)


def shifted(spans: list[tuple[int, int]], by: int, seed: int = 0) -> list[tuple[int, int]]:
    wobble = random.Random(seed)
    return [(start + by, end + by + wobble.randint(-5, 5)) for start, end in spans]


SPANS = [(1000 * i, 1000 * i + 100 + 37 * (i % 7)) for i in range(20)]


def test_the_offset_is_found_and_outliers_do_not_move_it() -> None:
    apart = shifted(SPANS, 1_000_000_000_000)
    apart[3] = (apart[3][0], apart[3][1] + 90_000)
    ranks = [rank(0, SPANS), rank(1, apart), rank(2, shifted(SPANS, -777, 2))]
    found = clock_offsets(ranks, match_collectives(ranks))
    assert found.offsets_ns[0] == 0
    assert found.offsets_ns[1] == pytest.approx(1_000_000_000_000, abs=3)
    assert found.offsets_ns[2] == pytest.approx(-777, abs=3)
    assert found.table["spread_us"].max() < 0.006
    assert found.table["collectives"].tolist() == [20, 20, 20]


def test_a_rank_that_lacks_the_first_collectives_is_shifted_into_place() -> None:
    ranks = [rank(0, SPANS), rank(1, shifted(SPANS[3:], 5_000_000))]
    matching = match_collectives(ranks)
    assert clock_offsets(ranks, matching).offsets_ns[1] == pytest.approx(5_000_000, abs=3)
    assert matching.unmatched == (3, 0)
    pairs = matching.members.pivot(index="match", columns="member", values="index")
    assert (pairs[0] - pairs[1] == 3).all()
    assert "3 of 37 collectives have no partner" in matching.problems[0]


def test_numbers_win_over_order() -> None:
    first = timeline(
        0, collectives=[("all_reduce", 0, 10, 8, -1, -1, "0", 2, 4), ("all_reduce", 20, 30, 8, -1, -1, "0", 2, 5)]
    )
    second = timeline(
        1, collectives=[("all_reduce", 20, 30, 8, -1, -1, "0", 2, 5), ("all_reduce", 40, 50, 8, -1, -1, "0", 2, 6)]
    )
    matching = match_collectives([first, second])
    assert matching.members[["member", "index"]].to_numpy().tolist() == [[0, 1], [1, 0]]
    assert matching.unmatched == (1, 1)


def test_sizes_and_groups_keep_collectives_apart() -> None:
    ranks = [
        timeline(n, collectives=[("all_reduce", 0, 10, 8), ("all_reduce", 20, 30, 16), ("all_gather", 40, 50, 8)])
        for n in (0, 1)
    ]
    matching = match_collectives(ranks)
    assert len(matching.members) == 6 and matching.unmatched == (0, 0)
    assert matching.members.groupby("match")["collective"].nunique().max() == 1


def test_groups_that_cannot_be_told_apart_are_not_matched() -> None:
    ranks = [timeline(n, collectives=[("all_reduce", 0, 10, 8, -1, -1, "", 2, -1)]) for n in range(4)]
    matching = match_collectives(ranks)
    assert not len(matching.members)
    assert "not matched" in matching.problems[0]


def test_missing_ranks_are_said() -> None:
    ranks = [rank(2, SPANS, world=8), rank(5, SPANS, world=8)]
    problem = match_collectives(ranks).problems[0]
    assert "2 of the job's 8 ranks were given (ranks 2, 5)" in problem


def test_send_and_receive_are_matched_and_never_split() -> None:
    ranks = [rank(n, SPANS, kind="send_recv") for n in (0, 1)]
    matching = match_collectives(ranks)
    assert matching.members["transfer_ns"].isna().all()
    assert not matching.complete(0)
    assert not matching.members["last"].any()
    assert stragglers(ranks, matching)["times_last"].sum() == 0


def test_clocks_without_a_common_collective_are_unknown() -> None:
    ranks = [rank(0, SPANS), rank(1, [])]
    found = clock_offsets(ranks, match_collectives(ranks))
    assert found.offsets_ns == (0, 0)
    assert pd.isna(found.table["offset_us"].iloc[1]) and "assumed equal" in found.table["reason"].iloc[1]


def test_transfer_and_wait_add_up_to_the_duration() -> None:
    wobble = random.Random(7)
    ranks = []
    for number in range(4):
        spans = [(start - wobble.randint(0, 50), end) for start, end in SPANS]
        ranks.append(rank(number, spans))
    matching: Matching = match_collectives(ranks)
    rows = matching.members
    assert ((rows["transfer_ns"] + rows["wait_ns"]) == rows["duration_ns"]).all()
    assert (rows.groupby("match")["last"].sum() <= 1).all()
    shortest = [min(r.collectives["end"][i] - r.collectives["start"][i] for r in ranks) for i in range(len(SPANS))]
    assert rows.groupby("match")["transfer_ns"].first().tolist() == shortest
