"""Two recordings held against each other."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from support.refusals import refused
from support.timelines import event, kernel, timeline
from support.timelines import write as write_trace

from analysis.metrics.comparison.traces import compare_traces, trace_diff
from analysis.timeline import LostKernels, Timeline
from bench.cli.main import run
from records.files import write_record
from records.trial import Trial

MS = 1_000_000


def steps_of(kernels: dict[str, tuple[int, int]], steps: int = 3, rank: int = 0, step_ms: int = 1000) -> Timeline:
    """Every step runs each kernel `calls` times for `length` ms; one begins each second."""
    rows = []
    for step in range(steps):
        moment = step * 1000 * MS
        for name, (calls, length) in kernels.items():
            for _ in range(calls):
                rows.append((name, 7, moment, moment + length * MS))
                moment += length * MS
    marks = [(n, n * 1000 * MS, (n * 1000 + step_ms) * MS) for n in range(steps)]
    return timeline(rank, steps=marks, kernels=rows)


def rank(number: int, gemm_ms: int, step_ms: int) -> Timeline:
    return steps_of({"sgemm": (1, gemm_ms), "gelu": (1, 2)}, 3, number, step_ms)


def test_a_steps_time_is_the_slowest_ranks_and_the_largest_change_comes_first() -> None:
    found = compare_traces([rank(0, 10, 60), rank(1, 10, 70)], [rank(0, 25, 84), rank(1, 15, 60)])
    assert (found.per, found.before_ms, found.after_ms) == ("step", 70.0, 84.0)
    assert found.ratio == pytest.approx(1.2) and found.verdict == "slower"
    first = found.kernels.iloc[0]
    assert (first["name"], first["change"]) == ("sgemm", "slower")
    assert first["delta_ms"] == pytest.approx(10.0), "(25 + 15 - 10 - 10) ms over two ranks"
    time = found.time.set_index("time")
    assert time.loc["compute", ["before_ms", "after_ms"]].tolist() == pytest.approx([12, 22])


def test_the_threshold_decides_and_works_both_ways() -> None:
    old, new = [rank(0, 10, 60)], [rank(0, 10, 63)]
    assert compare_traces(old, new, 0.06).verdict == "same"
    assert compare_traces(old, new, 0.04).verdict == "slower"
    assert compare_traces(new, old, 0.04).verdict == "faster"
    with refused("option-value", "--threshold 0"):
        compare_traces(old, new, 0)


def write(path: Path, gemm_us: int) -> Path:
    steps = [event(f"ProfilerStep#{step}", step * 1000, 100 + gemm_us, "user_annotation") for step in range(3)]
    return write_trace(path, [*steps, *(kernel("sgemm<script>", step * 1000, gemm_us) for step in range(3))])


def test_the_command_says_what_changed_and_exits_1_when_slower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = write(tmp_path / "old.json", 100), write(tmp_path / "new.json", 300)
    assert run(["compare", str(old), str(new), "--csv", str(tmp_path / "csv")]) == 1
    assert "sgemm<script>" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "csv").iterdir()} >= {"changed_kernels.csv", "time.csv"}
    assert run(["compare", str(new), str(old), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] == "faster" and said["ratio"] == pytest.approx(0.5)


def profiled(folder: Path, trial: Trial, gemm_us: int) -> Path:
    (folder / "profile").mkdir(parents=True)
    write_record(folder / "trial.json", trial.to_json())
    write(folder / "profile/rank0.json", gemm_us)
    return folder


@pytest.mark.parametrize("given", ["", "trials/a/profile/rank0.json", "trials/a/profile/tensorboard/cycles/rank0.json"])
def test_settings_that_differ_are_named_however_a_profile_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    trial = Trial(kind="profile", profiler="torch", data="/one/squad", data_fingerprint="d", micro_batch_size=8)
    other = dataclasses.replace(trial, data="/two/squad", micro_batch_size=4, profiler_options=("memory",), round=1)
    other = dataclasses.replace(other, threads_per_rank=2)
    profile = profiled(tmp_path / "old/trials/a", trial, 100) / "profile"
    (profile / "tensorboard/cycles").mkdir(parents=True)
    shutil.copy(profile / "rank0.json", profile / "tensorboard/cycles/rank0.json")
    profiled(tmp_path / "new/trials/a", other, 300)
    assert run(["compare", str(tmp_path / "old" / given), str(tmp_path / "new/trials/a"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["differences"] == [
        "micro_batch_size: 8 -> 4", "threads_per_rank: none -> 2", "profiler_options: none -> memory",
    ]  # fmt: skip


BEFORE = {"sgemm": (2, 10), "gelu": (4, 1), "old_kernel": (1, 3), "softmax": (1, 2)}
AFTER = {"sgemm": (2, 16), "gelu": (2, 1), "flash_fwd": (1, 4), "softmax": (1, 2)}


def test_changes_are_per_step_and_the_largest_comes_first() -> None:
    # 2 ranks x 2 steps against 1 rank x 3 steps
    found = trace_diff([steps_of(BEFORE, 2), steps_of(BEFORE, 2, rank=1)], [steps_of(AFTER, 3)])
    assert found["name"].tolist() == ["sgemm", "flash_fwd", "old_kernel", "gelu", "softmax"]
    assert found["delta_ms"].tolist() == pytest.approx([12, 4, -3, -2, 0])
    assert found["change"].tolist() == ["slower", "added", "removed", "faster", "same"]
    rows = found.set_index("name")
    assert rows.loc["sgemm", ["calls_before", "calls_after", "ratio"]].tolist() == [2, 2, 1.6]
    assert rows.loc["gelu", ["calls_before", "calls_after", "ratio"]].tolist() == [4, 2, 0.5]
    assert rows["ratio"].isna().to_dict()["flash_fwd"] and rows.loc["old_kernel", "ratio"] == 0


def test_what_does_not_compare_is_said() -> None:
    gpu, cpu = steps_of({"sgemm": (1, 10)}, 1), timeline(operators=[("aten::mm", 0, 10)])
    with refused("run-mismatch", "the second trace"):
        trace_diff([gpu], [cpu])
    with refused("run-mismatch", "the first trace"):
        trace_diff([cpu], [gpu])
    with refused("trace-without-work", "trace"):
        trace_diff([cpu], [timeline()])
    lost = dataclasses.replace(cpu, problems=(LostKernels("b.json has no kernels: copy it"),))
    with refused("run-mismatch", "b.json has no kernels"):
        compare_traces([gpu], [lost])
    still = timeline(steps=[(0, 5, 5), (1, 9, 9)], kernels=[("gemm", 7, 6, 8)])
    with refused("trace-without-work"):
        compare_traces([still], [still])
