"""A step that was opened as a recording ended is none: every figure per step counts the real ones alone."""

from pathlib import Path
from typing import Any

from support.nsys_export import export, nvtx
from support.nsys_export import kernel as nsys_kernel
from support.timelines import call, event, kernel, write

from analysis.metrics.time.idle import launch_queue
from analysis.metrics.time.temporal import iterations, temporal_breakdown
from analysis.readers import nsys
from analysis.readers.kineto import reader as kineto

MS = 1000  # us, as Kineto writes
STEPS = 5


def five_steps() -> list[dict[str, Any]]:
    """Steps 10 to 14 of 100 ms, two kernels of 30 ms launched in each, the GPU 50 ms behind; then step 15.

    Step n begins at 100 (n - 10) ms, launches at 5 and 10 ms, its kernels run at 55..85 and 85..115 ms: 15 ms of every
    second kernel lie in the next step, and the last step's own outlive the recording's last real step by 15 ms.
    """
    events = []
    for number in range(STEPS):
        begin = 100 * MS * number
        events.append(event(f"ProfilerStep#{10 + number}", begin, 100 * MS, "user_annotation"))
        for place in (0, 1):
            key = 2 * number + place + 1
            called = begin + (5 + 5 * place) * MS
            events += [event("aten::mm", called - 50, 100), call(called, 20, key)]
            start = begin + (55 + 30 * place) * MS
            events.append(kernel("ampere_sgemm_128x64_tn", start, 30 * MS, correlation=key))
    end = 100 * MS * STEPS
    events.append(event(f"ProfilerStep#{10 + STEPS}", end, 18, "user_annotation"))
    events.append(event("aten::detach", end + 5, 3))  # not a launch
    return [*events, call(end + 10, 8, 99, "cudaDeviceSynchronize")]


def test_an_empty_last_step_is_left_out_of_every_figure_and_said(tmp_path: Path) -> None:
    trace = kineto.read(write(tmp_path / "trace-rank0.json", five_steps()))
    assert trace.steps["step"].tolist() == [10, 11, 12, 13, 14]
    assert "ProfilerStep#15" not in trace.ranges["name"].tolist()
    (said,) = [text for text in trace.problems if "step" in text]
    assert "step 15 (0.018 ms)" in said
    # 10 launches in 5 steps; with a sixth it would be 1.67. Window 500 ms, of which 10 x 30 - 15 ms compute.
    assert launch_queue([trace])["launches_per_step"].tolist() == [2]
    time = temporal_breakdown(trace)
    assert time is not None and (time.steps, time.span_ns, time.compute_ns) == (5, 500_000_000, 285_000_000)
    assert len(iterations(trace)) == STEPS


def test_on_a_cpu_operators_are_what_a_step_launches(tmp_path: Path) -> None:
    steps = [event(f"ProfilerStep#{n}", 100 * MS * n, 100 * MS, "user_annotation") for n in range(3)]
    last = event("ProfilerStep#3", 300 * MS, 18, "user_annotation")
    work = [event("aten::mm", 100 * MS * n + 5, 50 * MS) for n in range(3)]
    empty = kineto.read(write(tmp_path / "a-rank0.json", [*steps, last, *work]))
    filled = kineto.read(write(tmp_path / "b-rank0.json", [*steps, last, *work, event("aten::mm", 300 * MS + 5, 9)]))
    assert empty.steps["step"].tolist() == [0, 1, 2] and filled.steps["step"].tolist() == [0, 1, 2, 3]
    # Nothing was launched in any: there is nothing to tell them apart by.
    bare = kineto.read(write(tmp_path / "c-rank0.json", [*steps, last]))
    assert len(bare.steps) == 4


def test_an_export_of_nsys_leaves_it_out_too(tmp_path: Path) -> None:
    spans = [nvtx(n * 10**8, (n + 1) * 10**8, f"step {n}") for n in range(3)]
    spans.append(nvtx(3 * 10**8, 3 * 10**8 + 18_000, "step 3"))
    kernels = [nsys_kernel(n * 10**8 + 10**6, n * 10**8 + 2 * 10**6, 0) for n in range(3)]
    (trace,) = nsys.read(export(tmp_path / "export.sqlite", ["sgemm"], nvtx=spans, kernels=kernels))
    assert trace.steps["step"].tolist() == [0, 1, 2] and any("step 3 (0.018 ms)" in said for said in trace.problems)
