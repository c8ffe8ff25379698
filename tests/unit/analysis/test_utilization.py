"""Known nanoseconds by hand: every expected number is counted in the comments."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.shared_files import OWN
from support.timelines import event, timeline, write

from analysis.diagnose.explain import explain
from analysis.metrics.time.temporal import (
    CPU_OPERATORS,
    GPU_KERNELS,
    PROFILED_COLUMNS,
    Utilization,
    compute_utilization,
    compute_utilization_rows,
)
from analysis.open import open_sources
from analysis.readers.kineto.reader import read
from analysis.render.tables import write_csv
from analysis.timeline import Timeline


def test_kernels_that_overlap_count_once_and_copies_do_not_count() -> None:
    kernels = [
        ("gemm", 7, 100, 400),
        ("gelu", 8, 300, 500),
        ("ncclDevKernel_AllReduce_Sum_f32", 9, 450, 700),  # 100..700 together, 100..500 without
        ("Memcpy HtoD", 9, 800, 900, -1, "memcpy"),
        ("Memset", 9, 800, 900, -1, "memset"),
    ]
    found = compute_utilization(timeline(1, steps=[(3, 0, 500), (4, 500, 1000)], kernels=kernels))
    assert (found.window_ms, found.busy_ms, found.compute_utilization) == (0.001, 0.0006, pytest.approx(0.6))
    assert found.compute_utilization_without_communication == pytest.approx(0.4)
    assert (found.rank, found.steps, found.devices, found.counted) == (1, 2, 1, GPU_KERNELS)
    assert found.sm_weighted_utilization is None and "no grid size" in found.reason


def test_on_a_cpu_outermost_operators_count_less_the_communication_inside_them(tmp_path: Path) -> None:
    events = [
        event("ProfilerStep#3", 0, 1000, "user_annotation"),
        event("aten::linear", 0, 300),
        event("aten::addmm", 50, 200),  # inside the first: counts once
        event("autograd::engine", 400, 200),  # 400..600, of which 450..550 is communication
        event("c10d::allreduce_", 450, 100),
        event("c10d::barrier", 700, 200),  # outermost, but no computation
    ]
    found = compute_utilization(read(write(tmp_path / "trace-rank1.json", events)))
    assert (found.busy_ms, found.counted, found.devices) == (pytest.approx(0.4), CPU_OPERATORS, None)  # 300 + 200 - 100
    assert found.compute_utilization_without_communication == found.compute_utilization == pytest.approx(0.4)


def test_copies_alone_are_unknown_and_an_empty_trace_too() -> None:
    only_copies = compute_utilization(timeline(kernels=[("Memcpy HtoD", 7, 0, 5, -1, "memcpy")]))
    assert only_copies.compute_utilization is None and "no kernel" in only_copies.reason
    nothing = compute_utilization(timeline())
    assert nothing.window_ms is nothing.compute_utilization is None and "no event" in nothing.reason


def with_grids(kernels: list[tuple[int, int, tuple[int, int, int]]], sms: dict[int, int], end: int = 1000) -> Timeline:
    """Kernels (start, end, grid), in order of their starts, in a window 0..end."""
    made = timeline(steps=[(0, 0, end)], kernels=[("gemm", 7, start, stop) for start, stop, _ in kernels])
    grids = dict(zip(("grid_x", "grid_y", "grid_z"), zip(*(grid for *_, grid in kernels), strict=True), strict=True))
    return dataclasses.replace(made, kernels=made.kernels.assign(**grids), sm_counts=sms)


@pytest.mark.parametrize(
    ("grid", "sms", "reason"),
    [((0, 0, 0), {0: 100}, "1 of 2 kernels have no grid size"), ((5, 1, 1), {}, "the number of SMs of device 0")],
)
def test_an_unknown_grid_or_gpu_leaves_it_unknown_with_a_reason(
    grid: tuple[int, int, int], sms: dict[int, int], reason: str
) -> None:
    found = compute_utilization(with_grids([(0, 100, (5, 1, 1)), (200, 300, grid)], sms))
    assert found.sm_weighted_utilization is None and reason in found.reason
    assert found.compute_utilization == pytest.approx(0.2)


@given(
    st.lists(st.tuples(st.integers(-20, 60), st.integers(0, 40), st.integers(1, 150)), min_size=1, max_size=12),
    st.integers(1, 110),
)
def test_the_weighting_agrees_with_looking_at_every_nanosecond(spans: list[tuple[int, int, int]], sms: int) -> None:
    trace = with_grids(
        [(start, start + length, (blocks, 1, 1)) for start, length, blocks in sorted(spans)], {0: sms}, 50
    )
    area = sum(
        min(sms, sum(min(sms, blocks) for start, length, blocks in spans if start <= t < start + length))
        for t in range(50)
    )
    assert compute_utilization(trace).sm_weighted_utilization == pytest.approx(area / sms / 50)


def test_rows_are_by_rank_with_the_trial_s_fields_in_front(tmp_path: Path) -> None:
    timelines = [timeline(rank, steps=[(1, 0, 400)], kernels=[("gemm", 7, 0, 100)]) for rank in (1, 0)]
    trial = {"trial_id": "abc", "micro_batch_size": 8, "world_size": 2, "preset": "tiny", "status": "ok", "rank": 99}
    rows = compute_utilization_rows(trial, [timeline(None, ranges=[("forward", 0, 5_000_000)]), *timelines])
    assert [row["rank"] for row in rows] == [0, 1, None]
    assert tuple(rows[0]) == (*PROFILED_COLUMNS, *Utilization._fields) and "status" not in rows[0]
    assert (rows[0]["micro_batch_size"], rows[0]["precision"]) == (8, None)
    assert rows[0]["compute_utilization"] == pytest.approx(0.25)
    write_csv(tmp_path / "compute_utilization.csv", rows)
    header, first, *_ = (tmp_path / "compute_utilization.csv").read_text().splitlines()
    assert header.startswith("trial_id,") and header.endswith(",reason") and first.startswith("abc,,,,tiny,")


FILE = OWN / "kineto/sampled-counters.json"


def test_utilization_is_the_mean_over_the_samples_of_each_step() -> None:
    """Five samples in each of four steps; in three of them SMs are active 80 %, tensor pipes 40, 50, 60, 70 %."""
    source = open_sources(FILE)
    first = source.timelines[0].samples.iloc[0]
    assert first["name"] == "sm__cycles_active.avg.pct_of_peak_sustained_elapsed"
    assert (first["device"], first["value"]) == (0, 80.0) and source.problems == ()
    (table,) = (finding.table for finding in explain(source) if finding.name == "sampled_utilization")
    assert table["part"].tolist() == [0, 1, 2, 3] and table["begin_ms"].tolist() == [0, 1, 2, 3]
    assert table["samples"].tolist() == [10] * 4 and table["sm_utilization"].tolist() == pytest.approx([0.48] * 4)
    assert table["tensor_utilization"].tolist() == pytest.approx([0.24, 0.3, 0.36, 0.42])
