"""One window for a page: sentences beside each other are of the same stretch of time, or name theirs."""

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from support import shared_files
from support.kineto_events import event, write
from support.timelines import timeline

from analysis.diagnose import timelines as timeline_findings
from analysis.diagnose.explain import explain, in_window
from analysis.metrics.kernels.utilization import compute_utilization
from analysis.metrics.time.launches import launched_work
from analysis.metrics.time.temporal import iterations, temporal_breakdown
from analysis.readers.kineto import reader as kineto
from analysis.sources import open_sources
from analysis.timeline import Timeline
from bench.cli.main import run

MS = 1_000_000
LAUNCH = "cudaLaunchKernel"


def two_windows(path: Path) -> Path:
    """No step is marked; the GPU works 1000..1500 ms with one gap of 5 ms, the host's ranges span 0..3000 ms."""
    events = [
        event("bertbench:run", 0, 3_000_000, "user_annotation"),
        event("aten::mm", 990_000, 500),
        event("ampere_sgemm_128x64_tn", 1_000_000, 200_000, "kernel", args={"device": 0, "stream": 7}),
        event("ampere_sgemm_128x64_tn", 1_205_000, 295_000, "kernel", args={"device": 0, "stream": 7}),
    ]
    return write(path / "trace-rank0.json", events)


def test_computation_and_running_kernels_are_shares_of_the_same_window(tmp_path: Path) -> None:
    """Kernels run 495 of 500 ms: 99 % in both sentences; of the recording's 3,000 ms it would be 16.5 %."""
    found = {one.name: one for one in explain(open_sources(two_windows(tmp_path)))}
    assert next(iter(found)) == "window"
    assert "500 ms" in found["window"].sentence
    (row,) = found["window"].table.to_dict("records")
    assert (row["window"], row["steps"], row["span_ms"]) == ("work", 0, 500)
    assert found["temporal_breakdown"].sentence.startswith("99.0 % of the time is computation")
    assert found["compute_utilization"].sentence.startswith("The GPU has a kernel running 99.0 % of the time")
    assert "idle 1.0 % of the time" in found["idle_causes"].sentence
    # The range reaches beyond the window: its sentence says so.
    assert "3,000 ms" in found["ranges"].sentence and "whole recording" in found["ranges"].sentence


def test_a_rank_with_two_gpus_is_told_from_the_mean_of_its_gpus() -> None:
    """GPU 0 computes 0..50 of 100 ms, GPU 1 50..100: some GPU always computes, each of them half of the time."""
    made = timeline(steps=[(0, 0, 100 * MS)], kernels=[("sgemm", 7, 0, 50 * MS), ("sgemm", 7, 50 * MS, 100 * MS)])
    made = dataclasses.replace(made, kernels=made.kernels.assign(device=[0, 1]))
    found = {one.name: one for one in timeline_findings.findings([made])}
    assert found["temporal_breakdown"].sentence.startswith("100 % of the time is computation on any of a rank's 2 GPUs")
    assert "50.0 % of the time, the mean of a rank's 2 GPUs" in found["compute_utilization"].sentence


def test_the_window_is_named_once_in_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = two_windows(tmp_path)
    assert run(["analyze", str(path)]) == 0
    text = capsys.readouterr().out
    assert text.count("500 ms") == 1 and "\nWindow of the tables" in f"\n{text}"
    assert run(["analyze", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert found["window"]["rows"][0]["span_ms"] == 500
    assert not [name for name, one in found.items() if name != "window" and "500 ms" in one["sentence"]]


def test_every_span_of_a_page_is_that_of_its_window() -> None:
    """Steps 0..200 ms, work 50..260 ms: 200 ms with the steps, 210 with all work, everywhere alike."""
    made = behind(0, 50, 100)
    for source, span in ((made, 200), (without_steps(made), 210)):
        (window,) = timeline_findings.window_findings([source])
        time, use = temporal_breakdown(source), compute_utilization(source)
        assert time is not None
        assert (window.table["span_ms"].iloc[0], time.span_ns / MS, use.window_ms) == (span, span, span)


def without_steps(made: Timeline) -> Timeline:
    from analysis.sources import Source

    return in_window(Source(path=Path(), timelines=(made,)), "kernels").timelines[0]


def behind(rank: int, delay_ms: int, length_ms: int = 60) -> Timeline:
    """Steps 3 and 4 of 100 ms; each launches one kernel as it begins, which starts `delay_ms` later."""
    starts = [delay_ms * MS, (delay_ms + max(100, length_ms) + (10 if length_ms >= 100 else 0)) * MS]
    return timeline(
        rank,
        steps=[(3, 0, 100 * MS), (4, 100 * MS, 200 * MS)],
        kernels=[("sgemm", 7, start, start + length_ms * MS, key) for key, start in enumerate(starts, start=1)],
        api=[(LAUNCH, 100 * n * MS, 100 * n * MS + 5, n + 1) for n in (0, 1)],
    )


def test_ranks_that_were_given_alike_are_not_called_unlike() -> None:
    """Kernels of 60 ms at 20 and 120 ms on rank 0, at 70 and 170 on rank 1: of the second 30 ms ran in the steps.

    Executed 120 and 90 ms, launched 120 and 120.
    """
    ranks = [behind(0, 20), behind(1, 70)]
    (found,) = [one for one in timeline_findings.findings(ranks) if one.name == "temporal_breakdown"]
    assert found.table["compute_ms"].tolist() == [120, 90]
    assert found.table["launched_compute_ms"].tolist() == [120, 120]
    assert "launched 120 ms" in found.sentence and "90 to 120 ms" in found.sentence and "equal work" in found.sentence
    assert "balance it" not in found.sentence


def test_a_rank_that_was_given_more_is_named_whatever_ran_in_the_steps() -> None:
    """Launched 2 x 60 and 2 x 75 ms; rank 1 starts late, so that 75 + 45 = 120 ms ran in its steps as in rank 0's."""
    ranks = [behind(0, 20), behind(1, 55, 75)]
    (found,) = [one for one in timeline_findings.findings(ranks) if one.name == "temporal_breakdown"]
    assert found.table["compute_ms"].tolist() == [120, 120]
    assert found.table["launched_compute_ms"].tolist() == [120, 150]
    assert "Rank 1 has the most work" in found.sentence


def test_every_step_has_what_it_launched_beside_what_ran_in_it() -> None:
    """Kernels at 70..130 and 170..230: 30 and 30 + 30 ms ran in the steps, each launched 60."""
    table = iterations(behind(1, 70))
    assert table["compute_ms"].tolist() == [30, 60] and table["launched_compute_ms"].tolist() == [60, 60]


def test_marks_of_a_cpu_that_runs_far_ahead_are_not_called_the_time_of_a_step() -> None:
    """Three steps of 10 ms launch 30 ms of computation each, which runs one behind the other until 91 ms."""
    made = timeline(
        steps=[(n, 10 * n * MS, 10 * (n + 1) * MS) for n in range(3)],
        kernels=[("sgemm", 7, (30 * n + 1) * MS, (30 * n + 31) * MS, n + 1) for n in range(3)],
        api=[(LAUNCH, 10 * n * MS, 10 * n * MS + 5, n + 1) for n in range(3)],
    )
    found = {one.name: one for one in timeline_findings.findings([made])}
    assert "steps take 10 ms" in found["iterations"].sentence
    assert "computes 30 ms" in found["iterations"].sentence and "--window kernels" in found["iterations"].sentence
    # Window 0..30 ms: 29 of 90 ms of computation ran in it.
    assert "launched 90 ms" in found["temporal_breakdown"].sentence
    assert "29 ms ran" in found["temporal_breakdown"].sentence
    near = {one.name: one for one in timeline_findings.findings([behind(0, 20)])}
    assert "--window kernels" not in near["iterations"].sentence


def test_launched_work_is_not_known_without_calls_or_steps() -> None:
    made = behind(0, 20)
    bare = timeline(steps=[(3, 0, 100 * MS)], kernels=[("sgemm", 7, 0, MS)])
    assert launched_work(bare) is None and launched_work(without_steps(made)) is None
    ranks = [bare, timeline(1, steps=[(3, 0, 100 * MS)], kernels=[("sgemm", 7, 0, 2 * MS)])]
    (found,) = [one for one in timeline_findings.findings(ranks) if one.name == "temporal_breakdown"]
    assert "launched_compute_ms" not in found.table and "unknown" in found.sentence


@pytest.mark.public
def test_a_public_run_of_alike_ranks_is_not_called_unbalanced() -> None:
    """Megatron with tensor parallelism: each of 8 GPUs is given the same kernels, added up here from the raw events."""
    paths = sorted((shared_files.TRACES / "kineto" / "megatron-8-ranks").glob("*.gz"))
    (found,) = [one for one in timeline_findings.findings(kineto.read_ranks(paths)) if one.name == "temporal_breakdown"]
    by_rank = dict(zip(found.table["rank"], found.table["launched_compute_ms"], strict=True))
    given = {}
    for path in paths:
        document = json.loads(gzip.decompress(path.read_bytes()))
        given[document["distributedInfo"]["rank"]] = launched_by_hand(document["traceEvents"])
    # A sum over kernels; ours is a union, and a few kernels of two streams run at once.
    assert by_rank == {rank: pytest.approx(ms, rel=0.005) for rank, ms in given.items()}
    assert max(given.values()) < 1.02 * min(given.values())
    assert "balance" not in found.sentence and "equal work" in found.sentence


def launched_by_hand(events: list[dict[str, Any]]) -> float:
    """Sum of the kernels, NCCL's apart, whose call lies in a ProfilerStep, in ms."""
    (step,) = [e for e in events if e.get("cat") == "user_annotation" and e["name"].startswith("ProfilerStep")]
    begin, end = float(step["ts"]), float(step["ts"]) + float(step["dur"])
    calls = {
        e["args"]["correlation"]
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver") and begin <= float(e["ts"]) < end
    }
    kernels = [e for e in events if e.get("cat") == "kernel" and "nccl" not in e["name"]]
    return sum(float(e["dur"]) for e in kernels if e["args"]["correlation"] in calls) / 1000
