"""What a trial's profile files become: rows, problems, tables of the run."""

import csv
import json
import sqlite3
from pathlib import Path

import pytest
from support.ncu_csv import raw_page

from analysis.diagnose.answer import without_measurement
from analysis.diagnose.profiles import SUMMARY_FILE, summarize, utilization_by_batch, write_tables
from records.files import write_record
from records.run import RunDirectory, TrialDirectory
from records.trial import Trial

FMA = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_elapsed"
TIME, CYCLES = "gpu__time_duration.sum", "gpc__cycles_elapsed.max"
NCU = raw_page(
    [
        {"ID": 0, "Process ID": 7, "Kernel Name": "gemm", TIME: "3,000", CYCLES: "4,000", FMA: 50},
        {"ID": 1, "Process ID": 7, "Kernel Name": "add", TIME: "1,000", CYCLES: "1,000", FMA: 10},
    ],
    {TIME: "ns", CYCLES: "cycle", FMA: "%"},
)


def trial_of(run: RunDirectory, batch: int, profiler: str, **result: object) -> TrialDirectory:
    trial = Trial(
        kind="profile",
        profiler=profiler,
        micro_batch_size=batch,
        start_iteration=3,
        stop_iteration=5,
        device="cuda",
    )
    directory = run.trial(trial.trial_id)
    directory.profile.mkdir(parents=True)
    write_record(directory.trial_json, trial.to_json())
    write_record(directory.result_json, {"trial_id": trial.trial_id, "status": "ok", "reason": "", **result})
    return directory


def counted(directory: TrialDirectory, batch: int, note: dict[str, object]) -> None:
    folder = directory.profile / "ncu"
    folder.mkdir()
    table = folder / f"batch_{batch}.csv"
    table.write_text(NCU, encoding="utf-8")
    (folder / "collected.json").write_text(json.dumps(note), encoding="utf-8")


def test_core_rows_weight_by_cycles_and_hold_the_time_against_the_unprofiled_window(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    directory = trial_of(run, 16, "ncu", step_time_ms=9.0, profile={"problem": "", "unprofiled_step_time_ms": 0.01})
    counted(directory, 16, {"limit_reached": False, "problems": []})
    opened, rows = summarize(directory)
    (row,) = rows["core"]
    assert opened.source.problems == (), "collected.json is a note of ours, not a trace"
    assert row["fma_percent"] == (4000 * 50 + 1000 * 10) / 5000
    # 3000 ns x 50 % + 1000 ns x 10 % over two steps of 10,000 ns
    assert row["fma_in_window_percent"] == (3000 * 50 + 1000 * 10) / 20000
    assert (row["profiler"], row["start_iteration"], row["stop_iteration"]) == ("ncu", 3, 5)


def test_kernels_that_were_not_counted_leave_the_share_of_the_window_unknown(tmp_path: Path) -> None:
    problem = "counting ended at 2 kernels"
    known = {"problem": "", "unprofiled_step_time_ms": 0.01}
    directory = trial_of(RunDirectory(tmp_path), 16, "ncu", profile=known)
    counted(directory, 16, {"limit_reached": True, "problems": [problem]})
    opened, rows = summarize(directory)
    (row,) = rows["core"]
    assert row["fma_in_window_percent"] is None and row["fma_percent"] is not None
    assert opened.source.problems == (problem,) and problem in row["reason"]


def test_the_table_of_the_run_is_in_order_of_batch_sizes_and_keeps_earlier_ones(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for batch in (16, 2):
        directory = trial_of(run, batch, "ncu", profile={"problem": ""})
        counted(directory, batch, {"problems": []})
        summarize(directory)
    assert write_tables(run) == [tmp_path / "core_utilization.csv"]
    with (tmp_path / "core_utilization.csv").open(encoding="utf-8") as file:
        assert [row["micro_batch_size"] for row in csv.DictReader(file)] == ["2", "16"]


def test_a_missing_or_damaged_profile_is_a_row_with_its_reason_and_not_the_end(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    directory = trial_of(run, 8, "nsys", profile={"problem": "nsys wrote no report", "files": []})
    (row,) = summarize(directory)[1]["compute"]
    assert row["compute_utilization"] is None and row["reason"] == "nsys wrote no report"
    directory = trial_of(run, 4, "nsys", profile={"problem": "", "files": []})
    database = directory.profile / "node0.sqlite"
    with sqlite3.connect(database) as connection:
        connection.execute("create table OTHER (a)")
    opened, rows = summarize(directory)
    assert len(opened.source.problems) == 1 and str(database) in opened.source.problems[0]
    assert rows["compute"][0]["compute_utilization"] is None


def test_utilization_is_the_mean_over_ranks_by_batch_size_and_that_of_cores_comes_first(tmp_path: Path) -> None:
    compute = [
        {"micro_batch_size": batch, "rank": rank, "compute_utilization": share}
        for batch, rank, share in ((8, 0, 0.9), (8, 1, 0.7), (4, 0, 0.5), (2, 0, None))
    ]
    found = utilization_by_batch({"core": [], "compute": compute})
    assert found == {"Compute utilization": {4: 0.5, 8: pytest.approx(0.8)}}
    directory = trial_of(RunDirectory(tmp_path), 8, "torch", profile={"problem": ""})
    write_record(
        directory.profile / SUMMARY_FILE, {"core": [], "compute": [{"trial_id": "a", **row} for row in compute]}
    )
    answer = without_measurement(RunDirectory(tmp_path), [])
    assert [card.label for card in answer.cards] == ["batch 4", "batch 8"] and answer.cards[1].value == "80.0 %"
    cores = {"micro_batch_size": 16, "tensor_percent": 55.43, "fma_percent": 12.28, "fp16_percent": None}
    found = utilization_by_batch({"core": [cores], "compute": compute})
    known = {"Tensor utilization": {16: pytest.approx(0.5543)}, "FMA utilization": {16: pytest.approx(0.1228)}}
    assert found == known
