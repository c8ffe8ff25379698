"""The launch queue: delays, depth and calls, counted by hand and by brute force."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import shared_files
from support.kineto_events import event, write
from support.profiles import sample
from support.refusals import refused
from support.rights import without_capabilities
from support.timelines import timeline

from analysis.counters import KernelCounters
from analysis.diagnose import communication as communication_findings
from analysis.diagnose import cores as core_findings
from analysis.diagnose import timelines as timeline_findings
from analysis.diagnose.explain import explain
from analysis.metrics.kernels.tables import family_rows
from analysis.metrics.time.idle import idle_causes
from analysis.metrics.time.launches import before_recording, calls_with, launch_queue, launching_calls
from analysis.metrics.time.temporal import iterations
from analysis.readers.kineto import reader as kineto
from analysis.readers.ncu import reader as ncu
from analysis.sources import open_sources
from analysis.timeline import Timeline
from bench.cli.main import run

LAUNCH = "cudaLaunchKernel"


def test_kernels_are_tied_to_calls_by_correlation_and_a_graph_s_share_one() -> None:
    trace = timeline(
        kernels=[("a", 7, 10, 20, 5), ("b", 7, 30, 40, 5), ("c", 7, 50, 60, 99), ("d", 7, 70, 80), ("e", 7, 90, 95, 2)],
        api=[(LAUNCH, 1, 2, 2), ("cudaGraphLaunch", 3, 4, 5), ("cuLaunchKernel", 6, 7, 5)],
    )
    calls = launching_calls(trace)
    assert calls is not None and calls.tolist() == [1, 1, -1, -1, 0]


@pytest.mark.parametrize("largest", [3, 40, 10**6, 2**60])
def test_the_first_call_of_an_id_is_found_however_far_apart_ids_are(largest: int) -> None:
    draw = np.random.default_rng(largest)
    for _ in range(50):
        have = draw.integers(-3, largest, draw.integers(0, 30))
        wanted = np.append(draw.integers(-5, largest, 10), have[::2])
        first = {number: row for row, number in reversed(list(enumerate(have.tolist())))}
        found = calls_with(pd.DataFrame({"correlation_id": have}), wanted)
        assert found.tolist() == [first.get(number, -1) if number > 0 else -1 for number in wanted.tolist()]


def test_ids_of_narrow_columns_are_looked_up_among_wide_ones() -> None:
    ids = pd.DataFrame({"correlation_id": np.arange(2**40, 2**40 + 5)})
    assert calls_with(ids, np.array([1, 2], dtype=np.int32)).tolist() == [-1, -1]
    narrow = pd.DataFrame({"correlation_id": np.arange(100, 120, dtype=np.int8)})
    assert calls_with(narrow, np.array([2**40, 101])).tolist() == [-1, 1]


def test_without_calls_or_ids_nothing_is_tied() -> None:
    kernels = [("a", 7, 10, 20, 5)]
    assert launching_calls(timeline(kernels=kernels)) is launch_queue(timeline(kernels=kernels)) is None
    unrelated = timeline(kernels=kernels, api=[(LAUNCH, 1, 2, 6), ("cudaDeviceSynchronize", 3, 4)])
    assert launching_calls(unrelated) is launch_queue(unrelated) is None


def test_delays_and_depth_by_hand() -> None:
    us = 1000
    trace = timeline(
        steps=[(0, 0, 200 * us), (1, 200 * us, 400 * us)],
        # delays 5, 100, 60 and 20 us; 3, 98, 58 and 8 us after the ends of the calls
        kernels=[(f"k{i}", 7, s * us, (s + 10) * us, i) for i, s in ((1, 5), (2, 110), (3, 120), (4, 230))],
        api=[(LAUNCH, s * us, e * us, i) for i, s, e in ((1, 0, 2), (2, 10, 12), (3, 60, 62), (4, 210, 222))],
    )
    found = launch_queue(trace)
    assert found is not None
    assert (found.kernels, found.matched, found.negative_delays, found.launches_per_step) == (4, 4, 0, 2.0)
    assert found.delay_median_us == pytest.approx(40.0) and found.short_delay_share == 0.5
    # waiting: 0..5 one, 5..10 none, 10..60 one, 60..110 two, 110..120 one, 120..210 none, 210..230 one
    assert found.depth_max == 2 and found.depth_mean == pytest.approx((5 + 50 + 100 + 10 + 20) / 230)
    assert found.empty_share == pytest.approx(95 / 230)


def test_work_that_starts_before_its_call_is_counted_and_never_waits() -> None:
    found = launch_queue(timeline(kernels=[("a", 7, 10, 20, 1)], api=[(LAUNCH, 15, 18, 1)]))
    assert found is not None
    assert (found.negative_delays, found.delay_median_us, found.depth_max, found.launches_per_step) == (1, 0.0, 0, None)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(-5, 40)), min_size=1, max_size=12))
def test_the_depth_agrees_with_counting_at_every_nanosecond(launches: list[tuple[int, int]]) -> None:
    trace = timeline(
        kernels=[(f"k{i}", 7, call + delay, call + delay + 50, i) for i, (call, delay) in enumerate(launches, 1)],
        api=[(LAUNCH, call, call + 1, i) for i, (call, _) in enumerate(launches, 1)],
    )
    found = launch_queue(trace)
    assert found is not None
    waits = [(call, call + delay) for call, delay in launches if delay > 0]
    begin, end = min((call for call, _ in waits), default=0), max((start for _, start in waits), default=0)
    depth = [sum(call <= moment < start for call, start in waits) for moment in range(begin, end)]
    assert found.depth_max == max(depth, default=0)
    assert found.depth_mean == pytest.approx(sum(depth) / max(len(depth), 1))
    assert found.empty_share == pytest.approx(depth.count(0) / len(depth) if depth else 0.0)


def test_work_that_starts_late_on_an_idle_gpu_found_it_waiting() -> None:
    # Each kernel starts 17 us after its call begins and 12 us after it ends. The first and the third are launched when
    # nothing runs; the second, at 10 us, while the first runs from 17 to 60, is not.
    calls = [(LAUNCH, 0, 5_000, 1), (LAUNCH, 10_000, 15_000, 2), (LAUNCH, 90_000, 95_000, 3)]
    kernels = [("a", 7, 17_000, 60_000, 1), ("b", 7, 61_000, 70_000, 2), ("c", 7, 107_000, 120_000, 3)]
    found = launch_queue(timeline(kernels=kernels, api=calls))
    assert found is not None
    assert found.short_delay_share == 0 and found.found_idle_share == pytest.approx(2 / 3)


MS = 1_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"


def deep(rank: int = 0) -> Timeline:
    """Steps of 90 ms; the GPU runs 50 ms behind. A step launches 10 GEMMs of 8 ms and an all-reduce of 26 ms.

    The calls of the step before the first are not recorded; of its 10 GEMMs 5 begin in the first step (at 0, 8, ...
    32 ms), and its all-reduce at 24 ms: 6 kernels that belong to no step of the trace.
    """
    kernels, api = [], []
    for step in (-1, 0, 1, 2):
        for number in range(11):
            place = 100 * (step + 2) + number
            begin = 90 * step + 50 + 8 * number
            length = 8
            if number == 10:
                begin, length = 90 * step + 114, 26
            kernels.append((NCCL if number == 10 else "sgemm", 20 if number == 10 else 7, begin * MS,
                            (begin + length) * MS, place))  # fmt: skip
            if step >= 0:
                api.append(("cudaLaunchKernel", (90 * step + number) * MS, (90 * step + number) * MS + 5000, place))
    return timeline(rank, steps=[(n, 90 * n * MS, 90 * (n + 1) * MS) for n in range(3)], kernels=kernels, api=api)


def test_the_work_of_each_step_counts_once_where_the_gpu_runs_behind() -> None:
    """3 steps x 10 x 8 ms of GEMM and 3 all-reduces of 26 ms."""
    rows = family_rows(deep()).set_index("family")
    assert rows["calls"].to_dict() == {"GEMM": 30, "communication": 3}
    assert rows["total_ms"].to_dict() == {"GEMM": 240, "communication": 78}
    assert before_recording(deep()) == 6
    (said,) = timeline_findings.window_findings([deep(0), deep(1)])
    assert "without 12 that were launched before the recording" in said.sentence


def test_where_most_work_is_tied_to_no_call_what_begins_in_the_window_counts() -> None:
    """Kernels at 0, 10, 20, 30 ms of a step of 40 ms; of the last alone the call is known."""
    trace = timeline(
        steps=[(0, 0, 40 * MS)],
        kernels=[("sgemm", 7, n * 10 * MS, (n * 10 + 5) * MS, n + 1) for n in range(4)],
        api=[("cudaLaunchKernel", 29 * MS, 29 * MS + 5000, 4)],
    )
    assert family_rows(trace)["calls"].tolist() == [4] and before_recording(trace) == 0


def test_an_unknown_call_in_the_middle_is_of_the_window() -> None:
    """The second of three kernels has no call: the first of its stream has, so it was launched after that."""
    trace = timeline(
        steps=[(0, 0, 40 * MS)],
        kernels=[("sgemm", 7, n * 10 * MS, (n * 10 + 5) * MS, n + 1) for n in range(3)],
        api=[("cudaLaunchKernel", at * MS, at * MS + 5000, at + 1) for at in (0, 2)],
    )
    assert family_rows(trace)["calls"].tolist() == [3]


@pytest.mark.public
def test_launched_work_of_a_public_trace_by_brute_force() -> None:
    """Also of ranks 1 and 3, where the GPU still ran a fifth of its kernels from before the recording."""
    for path in sorted((shared_files.TRACES / "kineto" / "dlrm-8-ranks").glob("*.json.gz")):
        events = [one for one in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if one.get("ph") == "X"]
        (step,) = [one for one in events if one["name"].startswith("ProfilerStep") and one["cat"] == "user_annotation"]
        calls = {
            one["args"]["correlation"]: one["ts"] - step["ts"]
            for one in events
            if one["cat"] == "cuda_runtime" and "correlation" in one["args"]
        }
        work = [one for one in events if one["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
        own = [one for one in work if 0 <= calls.get(one["args"]["correlation"], -1) < step["dur"]]
        moments: dict[str, set[int]] = {"compute": set(), "communication": set(), "memory": set()}
        for one in own:
            kind = "communication" if "nccl" in one["name"].lower() else "compute"
            moments[kind if one["cat"] == "kernel" else "memory"] |= set(range(one["ts"], one["ts"] + one["dur"]))
        ((row,),) = (iterations(found).to_dict("records") for found in open_sources(path).timelines)
        for kind, covered in moments.items():
            assert row[f"launched_{kind}_ms"] == pytest.approx(len(covered) / 1e3), (path.name, kind)
        assert row["launched_busy_ms"] == pytest.approx(len(set().union(*moments.values())) / 1e3)
        assert row["launched_kernels"] == sum(one["cat"] == "kernel" for one in own)


def test_without_a_gap_there_is_no_note_on_gaps() -> None:
    """The GPU is busy from -40 to 320 ms, the window is 0 to 270 ms."""
    found = idle_causes(deep())
    assert found is not None and found.idle_ns == 0 and found.reason == ""


def test_copies_and_memsets_are_not_counted_as_kernels() -> None:
    """2 kernels, 3 copies and 1 memset in one step, each with its call."""
    kinds = ["kernel", "memcpy", "memcpy", "kernel", "memset", "memcpy"]
    trace = timeline(
        steps=[(0, 0, 100 * MS)],
        kernels=[(kind, 7, 10 * n * MS, (10 * n + 5) * MS, n + 1, kind) for n, kind in enumerate(kinds)],
        api=[("cudaLaunch", 10 * n * MS - 1000 * (n > 0), 10 * n * MS, n + 1) for n in range(6)],
    )
    queue = launch_queue(trace)
    assert queue is not None and (queue.kernels, queue.matched, queue.launches_per_step) == (2, 2, 2)
    assert iterations(trace)["kernels"].tolist() == [2]


def test_a_bandwidth_says_whether_waiting_is_in_it() -> None:
    trace = timeline(
        0,
        world_size=2,
        steps=[(0, 0, 100 * MS)],
        kernels=[("sgemm", 7, 0, 50 * MS), (NCCL, 20, 50 * MS, 100 * MS, 2)],
        collectives=[("all_reduce", 50 * MS, 100 * MS, 100_000_000, 2, 20, "0", 2, 1)],
    )
    found = {one.name: one.sentence for one in communication_findings.findings([trace])}
    # 100 MB x 2 (2 - 1) / 2 in 50 ms
    assert "2 GB/s" in found["collectives"] and "waiting for other ranks included" in found["collectives"]


def test_nccl_ranges_without_a_kernel_are_no_cpu_run_and_no_communication_time(tmp_path: Path) -> None:
    """Operators that move memory take 10 of 20 ms; an NCCL range of 6 ms is the time to put it into the queue."""
    events = [
        event("ProfilerStep#1", 0, 20_000, "user_annotation"),
        event("aten::copy_", 0, 10_000),
        event("nccl:all_to_all", 12_000, 6_000, "user_annotation"),
    ]
    path = write(tmp_path / "t.json", events, deviceProperties=[{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}])
    found = {one.name: one for one in explain(open_sources(path))}
    row = found["temporal_breakdown"].table.iloc[0]
    assert row["communication_ms"] == 0 and row["compute_ms"] == 10
    assert "no kernel" in found["temporal_breakdown"].sentence
    assert "not recorded" in open_sources(path).problems[0]
    assert "fuse" not in found["operator_families"].sentence


def test_one_rank_on_a_cpu_in_communication_is_not_said_to_wait_for_others() -> None:
    """Computes 15 of 100 ms, communicates 80: idle 5 ms, computing nothing 85 ms."""
    trace = timeline(
        steps=[(0, 0, 100 * MS)],
        operators=[("aten::mm", 0, 10 * MS), ("aten::mm", 95 * MS, 100 * MS)],
        collectives=[("all_reduce", 10 * MS, 90 * MS)],
    )
    found = {one.name: one for one in timeline_findings.findings([trace])}
    assert ", 5.0 % idle" in found["temporal_breakdown"].sentence
    assert "straggler" not in found["idle_causes"].sentence and "80.0 %" in found["idle_causes"].sentence
    assert "idle" not in found["idle_gaps"].title + found["idle_gaps"].sentence


def test_means_over_ranks_name_the_ranks_and_their_range() -> None:
    """Rank 0 computes 90 of 100 ms, rank 1 50: idle 10 and 50 %, 30 % on average."""
    ranks = [timeline(r, steps=[(0, 0, 100 * MS)], kernels=[("sgemm", 7, 0, e * MS)]) for r, e in ((0, 90), (1, 50))]
    found = {one.name: one.sentence for one in timeline_findings.findings(ranks)}
    assert "idle 30.0 % of the time on average over 2 ranks (10.0 to 50.0 %)" in found["idle_causes"]
    assert "(50.0 to 90.0 %)" in found["temporal_breakdown"] and "(10.0 to 50.0 %)" in found["temporal_breakdown"]


@pytest.mark.public
def test_kernels_are_in_the_order_of_the_times_shown_and_without_times_in_none() -> None:
    (path,) = (shared_files.TRACES / "ncu").glob("attention_5-9__bert_torch*")
    table = core_findings.by_kernel(ncu.read(path)).table
    assert table["time_ms"].is_monotonic_decreasing and table["time_ms"].iloc[0] > 0
    (path,) = (shared_files.TRACES / "kineto" / "hta").glob("cupti_profiler*")
    (counted,) = (found for _, found in kineto.read_many([path]) if isinstance(found, KernelCounters))
    for found in (core_findings.by_kernel(counted), core_findings.by_family(counted)):
        assert "unknown" in found.sentence and "0 %" not in found.sentence and "longest" not in found.title


@pytest.mark.parametrize("text", ["[]", '{"traceEvents": []}'])
def test_a_trace_without_any_event_is_refused(tmp_path: Path, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.json").write_text(text)
    assert run(["analyze", str(tmp_path / "t.json")]) == 2
    assert "[file-empty]" in capfd.readouterr().err


def test_a_file_that_is_not_there_is_not_called_damaged(tmp_path: Path) -> None:
    with refused("path-missing", "none.csv") as caught:
        ncu.read(tmp_path / "none.csv")
    assert "damaged" not in str(caught.value)


def test_a_folder_that_may_not_be_entered_is_one_message(tmp_path: Path) -> None:
    shut = tmp_path / "shut"
    shut.mkdir()
    sample("kineto", shut / "t.json")
    other = sample("kineto", tmp_path / "o.json")
    shut.chmod(0o600)
    bounded = without_capabilities()
    code = "import sys; from bench.cli.main import run; print([run([c, *sys.argv[1:2], *m]) for c, m in ("
    code += "('analyze', []), ('allreduce', []), ('report', []), ('perfetto', []), ('results', []), "
    code += "('compare', sys.argv[2:]))])"
    try:
        ended = subprocess.run(
            [*bounded, sys.executable, "-c", code, str(shut), str(other)], capture_output=True, text=True, check=False
        )
    finally:
        shut.chmod(0o700)
    assert ended.stdout.strip() == "[2, 2, 2, 2, 2, 2]", ended.stderr
    assert ended.stderr.count("ermission denied") == 6 and "Traceback" not in ended.stderr
