"""The examples of docs/how-to/notebooks.md run as they stand there, on traces made for them."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fake_run import START_NS, step_rows, write_sweep, write_trial
from support.profiles import SAMPLES
from support.refusals import refused
from support.timelines import call, event, kernel, write

import bertbench
from records.run import RunDirectory
from records.schema import RESULT_COLUMNS, STEP_COLUMNS, TELEMETRY_COLUMNS
from records.trial import Trial

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "notebooks.md"
BLOCKS = re.compile(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
"""Each example, with the output that the page shows below it; "" where it shows none."""


def write_trace(folder: Path, rank: int) -> None:
    """Two steps of 1 ms: computation 100 to 500 us of each, an all-reduce from 400 to 600 + 10 x rank us."""
    events = []
    reduction = {"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float", "Group size": 2}
    for begin in (0, 1000):
        events += [
            event(f"ProfilerStep#{begin // 1000}", begin, 1000, "user_annotation"),
            event("bertbench:forward", begin + 10, 300, "user_annotation"),
            event("aten::mm", begin + 20, 100),
            call(begin + 30, 5, begin + 1),
            kernel("sgemm", begin + 100, 400, correlation=begin + 1),
            kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", begin + 400, 200 + 10 * rank, 20, **reduction),
        ]
    write(folder / f"rank{rank}.json", events, distributedInfo={"rank": rank, "world_size": 2})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "traces").mkdir()
    for rank in range(2):
        write_trace(tmp_path / "traces", rank)
    SAMPLES["ncu"](tmp_path / "counters.csv")
    SAMPLES["nccl"](tmp_path / "all_reduce.log")
    write_sweep(tmp_path / "runs/bench", batches=(8,), worlds=(1,), count=30)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_examples_run_and_give_what_they_promise(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = BLOCKS.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) >= 12 and sum(bool(shown) for _, shown in blocks) >= 3
    names: dict[str, Any] = {}
    for number, (block, shown) in enumerate(blocks):
        capsys.readouterr()
        exec(compile(block, f"notebooks.md, example {number + 1}", "exec"), names)
        if shown:
            assert capsys.readouterr().out == shown
    assert [timeline.rank for timeline in names["source"].timelines] == [0, 1]
    # From 500 to 600 us of two steps nothing computes on rank 0.
    assert names["total_ns"](names["exposed"]) == 200_000
    assert len(names["frame"]) == len(names["by_rank"]) == 2 and len(names["steps"]) == 2
    assert len(names["log"].table) == 38 and (folder / "out.json.gz").exists()


def test_a_run_is_given_as_it_was_recorded(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    times = [90.0, 20.0, 10.0, 11.0, 12.0, 13.0]
    trial = Trial(preset="tiny", precision="fp32", world_size=2, start_iteration=2, stop_iteration=6)
    rows = {rank: step_rows([time + rank for time in times], 8) for rank in (0, 1)}
    reading = {"time_ns": START_NS, "device": "cpu", "quantity": "cpu_percent", "value": 50.0}
    write_trial(run, trial, rows, telemetry=[reading])
    failed = write_trial(run, dataclasses.replace(trial, round=1), status="oom", reason="too large")
    damaged = write_trial(run, dataclasses.replace(trial, round=2), rows)
    run.trial(damaged.trial_id).steps_csv(0).write_text("step,start_ns\nx,y\n")
    found = bertbench.load_run(str(tmp_path))
    assert tuple(found.results.columns) == RESULT_COLUMNS
    results = found.results.set_index("trial_id")
    assert results["status"].to_dict() == {
        trial.trial_id: "ok", failed.trial_id: "oom", damaged.trial_id: "damaged"
    }  # fmt: skip
    assert results.loc[failed.trial_id, "reason"] == "too large"
    # The slower rank decides: the median of 11, 12, 13 and 14 ms; 2 x 8 samples a step.
    assert results.loc[trial.trial_id, "step_time_ms"] == pytest.approx(12.5)
    assert results.loc[trial.trial_id, "samples_per_second"] == pytest.approx(16 / 0.0125)
    assert results["step_time_ms"].dtype == np.float64 and results["steps_measured"].dtype == "Int64"
    assert np.isnan(results.loc[failed.trial_id, "step_time_ms"])
    assert list(found.steps.columns) == ["trial_id", "rank", *STEP_COLUMNS, "measured"]
    steps = found.steps
    assert len(steps) == 12 and set(steps["trial_id"]) == {trial.trial_id}
    assert steps[steps["rank"] == 1]["step_time_ms"].tolist() == [time + 1 for time in times]
    assert steps[steps["measured"]]["step"].tolist() == 2 * [2, 3, 4, 5]
    assert list(found.telemetry.columns) == ["trial_id", "node", *TELEMETRY_COLUMNS]
    assert found.telemetry.iloc[0].to_dict() == {"trial_id": trial.trial_id, "node": 0, **reading}
    assert found.problems == ()


def test_what_is_no_run_and_no_trace_is_refused(tmp_path: Path) -> None:
    with refused("path-missing", tmp_path / "nothing", kind=bertbench.BertbenchError):
        bertbench.load_run(tmp_path / "nothing")
    with refused("run-incomplete", tmp_path):
        bertbench.load_run(tmp_path)
    with refused("file-empty", tmp_path):
        bertbench.read_trace(tmp_path)
