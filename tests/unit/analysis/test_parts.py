"""Traces of one rank that were written into several files."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.metrics.time.temporal import temporal_breakdown
from analysis.readers.kineto.reader import read
from analysis.sources import open_sources

BASE = 1_700_000_000_000_000_000


def step(number: int) -> list[dict[str, Any]]:
    """A step of 100 us: 60 us of it a kernel, which an operator in another one launched."""
    at = 1000.0 + 100 * number
    span = {"ph": "X", "pid": 7, "tid": 8}
    return [
        {**span, "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": at, "dur": 100},
        {**span, "cat": "cpu_op", "name": "aten::linear", "ts": at + 1, "dur": 20},
        {**span, "cat": "cpu_op", "name": f"aten::mm_{number % 2}", "ts": at + 2, "dur": 10},
        {**span, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 3, "dur": 2,
         "args": {"correlation": number}},
        {"ph": "X", "cat": "kernel", "name": f"gemm_{number % 2}", "pid": 0, "tid": 7, "ts": at + 20, "dur": 60,
         "args": {"device": 0, "stream": 7, "correlation": number}},
    ]  # fmt: skip


def write(path: Path, events: list[dict[str, Any]], rank: int | None = 3, later_us: int = 0) -> Path:
    """Write events; `later_us` is put into the base of the file's times, as every file of the profiler has its own."""
    events = [{**event, "ts": event["ts"] - later_us} for event in events]
    document: dict[str, Any] = {
        "schemaVersion": 1,
        "traceEvents": events,
        "baseTimeNanoseconds": BASE + later_us * 1000,
    }
    if rank is not None:
        document["distributedInfo"] = {"rank": rank, "world_size": 8}
    path.write_text(json.dumps(document))
    return path


def steps(*numbers: int) -> list[dict[str, Any]]:
    return [event for number in numbers for event in step(number)]


def assert_same_tables(found: Any, expected: Any) -> None:
    for name in ("steps", "operators", "ranges", "api", "kernels", "collectives"):
        one, other = (getattr(timeline, name) for timeline in (found, expected))
        assert one.astype(object).to_dict("records") == other.astype(object).to_dict("records"), name


@pytest.mark.parametrize("rank", [3, None])
def test_a_trace_cut_into_files_is_read_like_the_whole(tmp_path: Path, rank: int | None) -> None:
    whole = read(write(tmp_path / "whole", steps(0, 1, 2, 3, 4, 5), rank))
    paths = [
        write(tmp_path / "z.json", steps(0, 1), rank),
        write(tmp_path / "b.json", steps(4, 5), rank, 300),
        write(tmp_path / "c.json", steps(2, 3), rank, 100),
    ]
    found = open_sources(*paths)
    (joined,) = found.timelines
    assert (joined.rank, joined.window, joined.process) == (rank, None, 7)
    assert found.problems[0].startswith("3 files are parts of")
    assert_same_tables(joined, whole)
    assert isinstance(joined.kernels["name"].dtype, pd.CategoricalDtype)
    assert temporal_breakdown(joined) == temporal_breakdown(whole)


def test_time_between_cycles_of_the_profiler_is_not_idle_time(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a.json", steps(0, 1)), write(tmp_path / "b.json", steps(50, 51), 3, 4000)]
    (joined,) = open_sources(*paths).timelines
    row = temporal_breakdown(joined)
    assert row is not None and (row.steps, row.span_ns, row.busy_ns, row.idle_ns) == (4, 400_000, 240_000, 160_000)


def test_calls_that_a_later_cycle_counts_from_the_start_keep_their_kernels(tmp_path: Path) -> None:
    later = [{**event, "ts": event["ts"] + 900, "name": event["name"].replace("Step#", "Step#1")} for event in step(1)]
    paths = [write(tmp_path / "a.json", steps(0, 1)), write(tmp_path / "b.json", later)]
    (joined,) = open_sources(*paths).timelines
    assert joined.api["correlation_id"].is_unique
    assert joined.kernels["correlation_id"].tolist() == joined.api["correlation_id"].tolist()


def test_rows_that_two_parts_repeat_count_once_and_that_is_said(tmp_path: Path) -> None:
    whole = read(write(tmp_path / "whole", steps(0, 1, 2, 3)))
    paths = [write(tmp_path / "a.json", steps(0, 1, 2)), write(tmp_path / "b.json", steps(1, 2, 3), 3, 200)]
    found = open_sources(*paths)
    (joined,) = found.timelines
    assert_same_tables(joined, whole)
    assert "10 rows" in found.problems[0]


def test_what_only_one_part_records_is_unknown_in_the_other(tmp_path: Path) -> None:
    first = steps(0, 1)
    tied = {"Sequence number": 5, "Fwd thread id": 1}
    for event in first:
        if event["name"] == "aten::mm_0":
            event |= {"name": "aten::mm", "args": {"Input Dims": [[2, 3]], "Input type": ["float"], **tied}}
        elif event["name"] == "aten::mm_1":
            event |= {"name": "autograd::engine::evaluate_function: MmBackward0", "args": tied}
    whole = read(write(tmp_path / "whole", [*first, *steps(2, 3)]))
    (joined,) = open_sources(write(tmp_path / "a.json", first), write(tmp_path / "b.json", steps(2, 3))).timelines
    assert_same_tables(joined, whole)
    types = joined.operators.dtypes[["sequence", "forward_thread"]]
    assert [kind.kind for kind in types] == ["i", "i"] and set(joined.operators["sequence"][4:]) == {-1}


@pytest.mark.parametrize(
    ("events", "rank"),
    [
        (steps(0, 1), 3),  # a copy
        ([{**event, "ts": event["ts"] + 70} for event in steps(0, 1)], 3),  # overlaps without a row in common
        ([{**event, "ts": event["ts"] + 5000} for event in steps(0, 1)], 3),  # a later run begins with step 0 again
        ([{**event, "pid": event["pid"] + 5} for event in steps(2, 3)], 3),  # another process
    ],
)
def test_files_that_are_no_parts_stay_traces_of_their_own(tmp_path: Path, events: Any, rank: int) -> None:
    paths = [write(tmp_path / "a.json", steps(0, 1)), write(tmp_path / "b.json", events, rank)]
    found = open_sources(*paths)
    assert len(found.timelines) == 2 and "do not have distinct ranks" in found.problems[0]


def test_parts_of_two_ranks_become_two_timelines(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{rank}_{number}.json", steps(number), rank) for rank in (0, 1) for number in (0, 1)]
    found = open_sources(*paths)
    assert [(one.rank, len(one.steps)) for one in found.timelines] == [(0, 2), (1, 2)]
