import pytest
from fake_run import rank_record, step_rows

from analysis.metrics.ranks import combine, per_rank


def test_own_work_shows_the_straggler_that_equal_step_times_hide() -> None:
    steps = {
        0: step_rows([100.0] * 10, 8, communication=20.0, data_wait=0.0),
        1: step_rows([100.0] * 10, 8, communication=2.0, data_wait=0.0),
        2: step_rows([100.0] * 10, 8, communication=20.0, data_wait=0.0),
    }
    table = per_rank(steps, {rank: rank_record() for rank in steps}, 0, 10)
    assert [row["straggler"] for row in table] == [False, True, False]
    assert table[1]["work_ms"] == pytest.approx(98) and table[1]["skew"] == pytest.approx(98 / 80 - 1)
    assert table[0]["skew"] == 0


def test_a_single_rank_is_no_straggler() -> None:
    (row,) = per_rank({0: step_rows([100.0] * 5, 8)}, {}, 0, 5)
    assert row["skew"] == 0 and row["straggler"] is False and row["slowest_share"] == 1


def test_combine_spans_from_the_earliest_start_to_the_latest_end() -> None:
    fast, slow = step_rows([100.0], 8), step_rows([150.0], 8)
    slow[0]["start_ns"] += 5_000_000
    (row,) = combine({0: fast, 1: slow})
    assert row["start_ns"] == fast[0]["start_ns"]
    assert row["end_ns"] - row["start_ns"] == 155_000_000
    assert row["samples"] == 16 and row["step_time_ms"] == 150


def test_a_count_that_one_rank_lacks_is_unknown_not_partial() -> None:
    lacking = step_rows([100.0], 8)
    lacking[0]["model_flops"] = None
    (row,) = combine({0: step_rows([100.0], 8), 1: lacking})
    assert row["model_flops"] is None and row["samples"] == 16
