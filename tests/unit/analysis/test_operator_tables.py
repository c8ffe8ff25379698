"""Operators of a CPU trace by their own time."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.profiles import sqlite_with
from support.timelines import timeline
from test_kineto_reader import event, write

from analysis.diagnose.explain import explain
from analysis.diagnose.operators import findings, range_findings
from analysis.metrics.kernels.tables import operators_over_ranks
from analysis.metrics.time.ranges import range_rows
from analysis.readers.kineto.reader import read
from analysis.sources import open_sources
from analysis.spans import own_times

MS = 1_000_000


def test_own_time_adds_up_inside_the_steps_alone(tmp_path: Path) -> None:
    events = [
        event("ProfilerStep#3", 0, 1000, "user_annotation"),
        event("aten::linear", 0, 300),
        event("aten::addmm", 50, 200),
        event("aten::mm", 400, 400, tid=2),
        event("aten::mm", 1500, 900),  # after the last step
    ]
    found = operators_over_ranks([read(write(tmp_path / "trace-rank0.json", events))])
    assert list(zip(found["name"], found["calls"], found["self_ms"], strict=True)) == [
        ("aten::mm", 1, 0.4),
        ("aten::addmm", 1, 0.2),
        ("aten::linear", 1, pytest.approx(0.1)),
    ]
    assert found["self_time_share"].tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    families = operators_over_ranks([read(tmp_path / "trace-rank0.json")], "family")
    assert families[["family", "calls"]].to_numpy().tolist() == [["GEMM", 3]]


def test_the_longest_is_named_and_a_gpu_trace_has_its_kernels_instead() -> None:
    cpu = timeline(operators=[("aten::mm", 0, 900), ("aten::gelu", 1000, 1100)])
    families, names = findings([cpu, cpu])
    assert "GEMM takes 90 %" in families.sentence and "aten::mm" in names.sentence
    assert names.table["calls"].tolist() == [2, 2]
    gpu = timeline(operators=[("aten::mm", 0, 900)], kernels=[("sgemm", 7, 0, 10)])
    assert findings([gpu]) == [] == findings([timeline()])


def test_ranges_are_counted_by_name_inside_the_steps() -> None:
    one = timeline(0, steps=[(0, 0, 1000)], ranges=[("a", 0, 300_000), ("b", 10, 20_010), ("a", 2000, 3000)])
    other = timeline(1, ranges=[("a", 0, 100_000)])
    table = range_rows([one, other])
    assert table[["name", "ranks", "count"]].to_numpy().tolist() == [["a", 2, 2], ["b", 1, 1]]
    assert table["total_ms"].tolist() == pytest.approx([0.4, 0.02])
    assert (table.loc[0, "min_ms"], table.loc[0, "max_ms"]) == pytest.approx((0.1, 0.3))
    # In one's steps b (10..20,010) lies within a (0..300,000): a's own are 280,000 and other's 100,000.
    assert table["self_ms"].tolist() == pytest.approx([0.38, 0.02])
    (finding,) = range_findings([one, other])
    assert "a takes the longest, 0.4 ms in 2" in finding.sentence
    assert range_findings([timeline()]) == []


NESTED = [("run", 0, 100, 1), ("train", 10, 90, 1), ("fwd.0", 20, 50, 1), ("bwd.0", 50, 80, 1), ("load", 30, 70, 2)]


def nested_kineto(path: Path) -> Path:
    rows = [event(n, b * 1000, (e - b) * 1000, "user_annotation") | {"tid": thread} for n, b, e, thread in NESTED]
    return write(path / "trace-rank0.json", rows)


def nested_nsys(path: Path) -> Path:
    columns = "start INTEGER, end INTEGER, eventType INTEGER, globalTid INTEGER, text TEXT, domainId INTEGER"
    rows = [(b * MS, e * MS, 59, (40 << 24) | thread, name, 0) for name, b, e, thread in NESTED]
    sqlite_with({"NVTX_EVENTS": (columns, rows)})(path / "export.sqlite")
    return path / "export.sqlite"


@pytest.mark.parametrize("recorded", [nested_kineto, nested_nsys])
def test_nested_ranges_are_counted_once_in_all(tmp_path: Path, recorded: Callable[[Path], Path]) -> None:
    """run 0..100 ms holds train 10..90, which holds fwd 20..50 and bwd 50..80; a loader's thread has 30..70.

    Inclusive 100 + 80 + 30 + 30 + 40 = 280; own times 20 + 20 + 30 + 30 + 40 = 140: 100 of one thread, 40 of the other.
    """
    found = {one.name: one for one in explain(open_sources(recorded(tmp_path)))}["ranges"]
    table = found.table.set_index("name")
    assert table["total_ms"].to_dict() == {"run": 100, "train": 80, "fwd.0": 30, "bwd.0": 30, "load": 40}
    assert table["self_ms"].to_dict() == {"run": 20, "train": 20, "fwd.0": 30, "bwd.0": 30, "load": 40}
    assert "run takes the longest, 100 ms in 1 with all ranges within it" in found.sentence
    assert "cover 140 ms" in found.sentence and "load (40 ms)" in found.sentence and "280" not in found.sentence


def test_ranges_that_reach_out_of_each_other_are_counted_once_too() -> None:
    """Start/end ranges a 0..20, b 2..5, c 4..8: c has 4..8, b 2..4, a the other 14; the sum is 20, their union."""
    made = timeline(ranges=[("a", 0, 20 * MS), ("b", 2 * MS, 5 * MS), ("c", 4 * MS, 8 * MS)])
    assert range_rows([made]).set_index("name")["self_ms"].to_dict() == {"a": 14, "c": 4, "b": 2}


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=12))
def test_own_times_are_those_of_a_clock_that_asks_every_moment(spans: list[tuple[int, int, int]]) -> None:
    """At each tick of a thread the open span that began last has it; of equal starts the shorter one."""
    thread, start, length = (np.array(column, dtype=np.int64) for column in zip(*spans, strict=True))
    end = start + length
    place = np.empty(len(start), dtype=np.int64)
    place[np.lexsort((-end, start, thread))] = np.arange(len(start))
    expected = np.zeros(len(start), dtype=np.int64)
    for tick in range(60):
        for number in (0, 1):
            open_ = [n for n in range(len(start)) if thread[n] == number and start[n] <= tick < end[n]]
            if open_:
                expected[max(open_, key=place.__getitem__)] += 1
    assert own_times(thread, start, end).tolist() == expected.tolist()
