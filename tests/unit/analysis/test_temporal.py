"""Computation, communication, copies and idle time, as a whole and by step: by hand and by brute force. Times: ns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.timelines import timeline

from analysis.metrics.time.temporal import (
    Temporal,
    iterations,
    launched_compute_ns,
    running_ns,
    temporal_breakdown,
)
from analysis.timeline import Timeline

MS = 1_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
KINDS = {"gemm": "kernel", "gelu": "kernel", NCCL: "kernel", "Memcpy HtoD": "memcpy", "Memset": "memset"}
SPANS = st.lists(
    st.tuples(st.sampled_from(sorted(KINDS)), st.integers(-20, 60), st.integers(0, 25)), min_size=1, max_size=20
)
NAMES = ("busy", "idle", "compute", "communication", "exposed_communication", "memory", "exposed_memory")


def breakdown(trace: Timeline, **options: object) -> Temporal:
    row = temporal_breakdown(trace, **options)
    assert row is not None
    return row


def work(*rows: tuple[str, int, int]) -> list[tuple[object, ...]]:
    return [(name, 7, start, end, -1, KINDS[name]) for name, start, end in rows]


def test_a_hand_worked_step() -> None:
    rows = [("gemm", 10, 30), ("gelu", 25, 40), (NCCL, 35, 60), ("Memcpy HtoD", 55, 70), ("Memset", 20, 22)]
    trace = timeline(3, steps=[(0, 0, 100)], kernels=work(*rows, ("gemm", 95, 120)))
    row = breakdown(trace)
    # compute 10..40 and 95..100; communication 35..60, of it 35..40 hidden; copies 55..70 and 20..22, alone 60..70
    assert (row.rank, row.window, row.steps, row.span_ns, row.devices) == (3, "steps", 1, 100, 1)
    assert (row.compute_ns, row.communication_ns, row.memory_ns) == (35, 25, 17)
    assert (row.overlapped_communication_ns, row.exposed_communication_ns) == (5, 20)
    assert (row.exposed_memory_ns, row.busy_ns, row.idle_ns) == (10, 65, 35)
    assert row.overlap_share == pytest.approx(0.2)
    whole = breakdown(trace, window="kernels")
    assert (whole.span_ns, whole.compute_ns, whole.window, whole.steps) == (110, 55, "kernels", 0)


@given(SPANS)
def test_every_time_agrees_with_counting_nanoseconds(spans: list[tuple[str, int, int]]) -> None:
    trace = timeline(
        steps=[(1, -10, 20), (2, 20, 50)], kernels=work(*((name, start, start + ns) for name, start, ns in spans))
    )
    row, table = breakdown(trace), iterations(trace)
    covered = {"kernel": set[int](), "comm": set[int](), "memory": set[int]()}
    for name, start, length in spans:
        key = "comm" if name == NCCL else "kernel" if KINDS[name] == "kernel" else "memory"
        covered[key] |= set(range(max(start, -10), min(start + length, 50)))
    k, c, m = covered["kernel"], covered["comm"], covered["memory"]
    assert (row.compute_ns, row.communication_ns, row.memory_ns) == (len(k), len(c), len(m))
    assert (row.overlapped_communication_ns, row.exposed_communication_ns) == (len(k & c), len(c - k))
    assert (row.exposed_memory_ns, row.busy_ns, row.idle_ns) == (len(m - k - c), len(k | c | m), 60 - len(k | c | m))
    assert running_ns(trace, lambda name: name != NCCL) == len(k)
    for name in NAMES:  # steps without gaps add up to the whole
        assert table[f"{name}_ms"].sum() * MS == pytest.approx(getattr(row, f"{name}_ns")), name
    starts = [start for name, start, _ in spans if KINDS[name] == "kernel"]
    assert table["kernels"].tolist() == [sum(-10 <= s < 20 for s in starts), sum(20 <= s < 50 for s in starts)]


def test_on_a_cpu_gloo_is_communication_and_outermost_operators_compute() -> None:
    operators = [("aten::mm", 0, 40), ("aten::add", 10, 20, "main", False), ("aten::mul", 60, 80, "autograd")]
    row = breakdown(timeline(steps=[(0, 0, 100)], operators=operators, collectives=[("all_reduce", 30, 70)]))
    assert (row.compute_ns, row.communication_ns, row.busy_ns, row.on_gpu) == (60, 40, 80, False)
    assert (row.overlapped_communication_ns, row.exposed_communication_ns, row.idle_ns) == (20, 20, 20)
    unmarked = breakdown(timeline(operators=[("aten::mm", 100, 140), ("aten::mul", 160, 190)]))
    assert (unmarked.span_ns, unmarked.compute_ns, unmarked.idle_ns) == (90, 70, 20)
    named = timeline(steps=[(0, 0, 100)], ranges=[("gloo:all_reduce", 10, 30), ("forward", 0, 90)])
    assert breakdown(named).communication_ns == 20


def test_a_step_has_what_it_launched_beside_what_ran_in_it() -> None:
    """Each of two steps of 100 ms launches a kernel of 60 ms; they run 70..130 and 170..230.

    In the steps ran 30 and 30 + 30 ms. The kernels end 30 ms after their steps.
    """
    kernels = [("sgemm", 7, 70 * MS, 130 * MS, 1), ("sgemm", 7, 170 * MS, 230 * MS, 2)]
    api = [("cudaLaunchKernel", 100 * n * MS, 100 * n * MS + 5, n + 1) for n in (0, 1)]
    steps = [(3, 0, 100 * MS), (4, 100 * MS, 200 * MS)]
    trace = timeline(steps=steps, kernels=kernels, api=api)
    table = iterations(trace)
    assert table["compute_ms"].tolist() == [30, 60] and table["launched_compute_ms"].tolist() == [60, 60]
    assert table["behind_ms"].tolist() == [30, 30] and table["kernels"].tolist() == [1, 1]
    assert launched_compute_ns(trace) == 120 * MS
    bare = timeline(steps=steps, kernels=kernels)
    assert launched_compute_ns(bare) is None and iterations(bare)["behind_ms"].isna().all()
