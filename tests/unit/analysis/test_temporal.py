"""Computation, communication, copies and idle time: public expected values, hand-worked traces and brute force."""

import csv
import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import shared_files
from support.timelines import timeline

from analysis.metrics.time.temporal import (
    Temporal,
    iteration_spread,
    iterations,
    running_ns,
    temporal_breakdown,
    temporal_frame,
)
from analysis.readers.kineto.reader import read
from analysis.timeline import Timeline

TRACES = shared_files.TRACES / "kineto"

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
KINDS = {"gemm": "kernel", "gelu": "kernel", NCCL: "kernel", "Memcpy HtoD": "memcpy", "Memset": "memset"}


def found(trace: Timeline, **options: object) -> Temporal:
    result = temporal_breakdown(trace, **options)
    assert result is not None
    return result


def work(*rows: tuple[str, int, int]) -> list[tuple[object, ...]]:
    return [(name, 7, start, end, -1, KINDS[name]) for name, start, end in rows]


@pytest.mark.public
@pytest.mark.parametrize("folder", ["dlrm-8-ranks", "megatron-8-ranks"])
def test_eight_ranks_agree_with_the_public_values_to_the_microsecond(folder: str) -> None:
    rows = {row["rank"]: row for row in csv.DictReader((TRACES / folder / "expected.csv").open())}
    seen = set()
    for path in sorted((TRACES / folder).glob("*.json.gz")):
        trace = read(path)
        result, row = found(trace, window="kernels"), rows[str(trace.rank)]
        assert len(trace.kernels) == int(row["gpu_events"])
        for name in ("span", "idle", "compute", "communication"):
            assert getattr(result, f"{name}_ns") == round(float(row[f"{name}_us"]) * 1000), name
        assert result.overlap_share is not None
        assert round(100 * result.overlap_share, 1) == float(row["overlap_percent_of_communication"])
        seen.add(str(trace.rank))
    assert seen == set(rows)


@pytest.mark.public
@pytest.mark.parametrize("device", ["h100", "mi300"])
def test_tracelens_gives_the_same_times_when_memsets_are_computation(device: str) -> None:
    (expected,) = (TRACES / "tracelens").glob(f"expected__{device}*gpu_timeline.csv")
    rows = {row["type"]: float(row["time ms"]) for row in csv.DictReader(expected.open())}
    (path,) = (TRACES / "tracelens").glob(f"{device}__*.json.gz")
    result = found(read(path), window="kernels", memset_as_compute=True)
    names = {
        "computation_time": "compute_ns",
        "exposed_comm_time": "exposed_communication_ns",
        "exposed_memcpy_time": "exposed_memory_ns",
        "busy_time": "busy_ns",
        "idle_time": "idle_ns",
        "total_time": "span_ns",
        "total_comm_time": "communication_ns",
        "total_memcpy_time": "memory_ns",
    }
    assert set(rows) == set(names)
    for theirs, ours in names.items():  # theirs are floats of 1.7e15 us: good to a quarter of one
        assert getattr(result, ours) / 1e6 == pytest.approx(rows[theirs], abs=1e-3), theirs


@pytest.mark.public
def test_holistic_trace_analysis_facts_of_rank_0_without_its_last_step() -> None:
    trace = read(TRACES / "hta" / "timeline_analysis__sampled_rank-0.json.gz")
    kept = trace.kernels[trace.kernels["start"] < trace.steps["start"].max()]
    result = found(dataclasses.replace(trace, kernels=kept), window="kernels")
    times = [result.span_ns, result.idle_ns, result.compute_ns, result.busy_ns - result.compute_ns]
    assert [time // 1000 for time in times] == [600_058, 321_378, 106_252, 172_428]
    assert result.overlap_share == pytest.approx(0.1181, abs=5e-5)


def test_a_hand_worked_step() -> None:
    trace = timeline(
        3,
        steps=[(0, 0, 100)],
        kernels=work(
            ("gemm", 10, 30),
            ("gelu", 25, 40),
            (NCCL, 35, 60),
            ("Memcpy HtoD", 55, 70),
            ("Memset", 20, 22),
            ("gemm", 95, 120),
        ),
    )
    result = found(trace)
    # compute 10..40 and 95..100; communication 35..60, of it 35..40 hidden; copies 55..70 and 20..22, alone 60..70
    assert (result.rank, result.window, result.steps, result.span_ns) == (3, "steps", 1, 100)
    assert (result.compute_ns, result.communication_ns, result.memory_ns) == (35, 25, 17)
    assert (result.overlapped_communication_ns, result.exposed_communication_ns) == (5, 20)
    assert (result.exposed_memory_ns, result.busy_ns, result.idle_ns) == (10, 65, 35)
    assert result.overlap_share == pytest.approx(0.2) and result.busy_ns - result.compute_ns == 30
    whole = found(trace, window="kernels")
    assert (whole.span_ns, whole.compute_ns, whole.window, whole.steps) == (110, 55, "kernels", 0)
    assert found(trace, memset_as_compute=True).memory_ns == 15


SPANS = st.lists(
    st.tuples(st.sampled_from(sorted(KINDS)), st.integers(-20, 60), st.integers(0, 25)), min_size=1, max_size=20
)


@given(SPANS)
def test_every_time_agrees_with_counting_nanoseconds(spans: list[tuple[str, int, int]]) -> None:
    rows = work(*((name, start, start + length) for name, start, length in spans))
    result = temporal_breakdown(timeline(steps=[(1, -10, 20), (2, 20, 50)], kernels=rows))
    assert result is not None
    covered = {"kernel": set(), "comm": set(), "memory": set()}
    for name, start, length in spans:
        key = "comm" if name == NCCL else "kernel" if KINDS[name] == "kernel" else "memory"
        covered[key] |= set(range(max(start, -10), min(start + length, 50)))
    k, c, m = covered["kernel"], covered["comm"], covered["memory"]
    assert (result.compute_ns, result.communication_ns, result.memory_ns) == (len(k), len(c), len(m))
    assert (result.overlapped_communication_ns, result.exposed_communication_ns) == (len(k & c), len(c - k))
    assert (result.exposed_memory_ns, result.busy_ns) == (len(m - k - c), len(k | c | m))
    assert result.idle_ns == 60 - len(k | c | m)


@given(SPANS)
def test_the_time_in_which_some_kernels_run_agrees_with_counting_nanoseconds(spans: list[tuple[str, int, int]]) -> None:
    rows = work(*((name, start, start + length) for name, start, length in spans))
    trace = timeline(steps=[(1, -10, 20), (2, 20, 50)], kernels=rows)
    covered = set[int]()
    for name, start, length in spans:
        if KINDS[name] == "kernel" and name != NCCL:
            covered |= set(range(max(start, -10), min(start + length, 50)))
    assert running_ns(trace, lambda name: name != NCCL) == len(covered)


@given(SPANS)
def test_the_steps_of_a_trace_without_gaps_add_up_to_the_whole(spans: list[tuple[str, int, int]]) -> None:
    rows = work(*((name, start, start + length) for name, start, length in spans))
    trace = timeline(steps=[(1, -10, 20), (2, 20, 50)], kernels=rows)
    table, whole = iterations(trace), temporal_breakdown(trace)
    assert whole is not None and table["step"].tolist() == [1, 2]
    for name in ("busy", "idle", "compute", "communication", "exposed_communication", "memory", "exposed_memory"):
        assert table[f"{name}_ms"].sum() == pytest.approx(getattr(whole, f"{name}_ns") / 1e6), name
    starts = [start for name, start, _ in spans if KINDS.get(name, "kernel") == "kernel"]
    assert table["kernels"].tolist() == [
        sum(-10 <= start < 20 for start in starts),
        sum(20 <= start < 50 for start in starts),
    ]


def test_on_a_cpu_gloo_is_communication_and_outermost_operators_compute() -> None:
    trace = timeline(
        steps=[(0, 0, 100)],
        operators=[("aten::mm", 0, 40), ("aten::add", 10, 20, "main", False), ("aten::mul", 60, 80, "autograd")],
        collectives=[("all_reduce", 30, 70)],
    )
    result = found(trace)
    assert (result.compute_ns, result.communication_ns, result.busy_ns, result.on_gpu) == (60, 40, 80, False)
    assert (result.overlapped_communication_ns, result.exposed_communication_ns, result.idle_ns) == (20, 20, 20)


def test_on_a_cpu_a_trace_without_steps_counts_from_the_first_operator_to_the_last() -> None:
    result = found(timeline(operators=[("aten::mm", 100, 140), ("aten::mul", 160, 190)]))
    assert (result.span_ns, result.compute_ns, result.idle_ns) == (90, 70, 20)


def test_communication_that_no_table_lists_is_found_by_name() -> None:
    trace = timeline(steps=[(0, 0, 100)], ranges=[("gloo:all_reduce", 10, 30), ("forward", 0, 90)])
    assert found(trace).communication_ns == 20


def test_a_trace_in_which_nothing_ran_has_no_breakdown() -> None:
    assert temporal_breakdown(timeline()) is None
    assert temporal_breakdown(timeline(kernels=work(("gemm", 5, 5)))) is None


def test_frames_carry_units_and_missing_values() -> None:
    frame = temporal_frame([found(timeline(None, kernels=work(("gemm", 0, 2_000_000))))])
    assert frame["rank"].isna().all() and frame["overlap_share"].isna().all()
    assert frame.loc[0, ["span_ms", "compute_ms", "compute_share", "idle_share"]].tolist() == [2.0, 2.0, 1.0, 0.0]
    assert len(temporal_frame([])) == len(iterations(timeline())) == len(iteration_spread(iterations(timeline()))) == 0


def test_the_spread_is_over_steps() -> None:
    steps = [(index, 1000 * index, 1000 * index + length) for index, length in enumerate([100, 300, 200, 1000, 400])]
    spread = iteration_spread(iterations(timeline(steps=steps, kernels=work(("gemm", 0, 50))))).set_index("quantity")
    row = spread.loc["step_time_ms"]
    assert (row["steps"], row["median"], row["min"], row["max"]) == (5, 300e-6, 100e-6, 1000e-6)
    assert row["p95"] == pytest.approx(np.percentile([100, 300, 200, 1000, 400], 95) / 1e6)
    assert spread.loc["kernels", "max"] == 1
