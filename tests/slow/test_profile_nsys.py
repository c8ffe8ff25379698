"""The real Nsight Systems around a CPU run on two ranks, and the script that sweeps batch sizes under a profiler."""

import csv
import json
import shutil
from importlib import metadata
from pathlib import Path

import pytest
from support.cli import TINY, Cli, bertbench, run_to_end

from analysis.readers.nsys import read
from records.run import RunDirectory

needs_nsys = pytest.mark.skipif(
    shutil.which("nsys") is None or metadata.version("nvtx") != "0.2.11", reason="needs nsys, and nvtx 0.2.11 for it"
)


@pytest.mark.alone
@needs_nsys
def test_two_ranks_under_nsys_give_exactly_the_steps_with_the_times_of_our_clock(cli: Cli) -> None:
    options = ["--batch-sizes", "8", "--profiler", "nsys", "--start", "3", "--stop", "6", "--devices", "2"]
    done = run_to_end(bertbench("profile", "pretrain", *TINY, *options, "--out", cli.out))
    (trial,) = (found for found in RunDirectory(cli.out).trials() if found.read_trial().kind == "profile")
    timelines = read(trial.profile / "node0.sqlite")
    assert sorted(str(timeline.rank) for timeline in timelines) == ["0", "1"]
    for timeline in timelines:
        assert timeline.rank is not None
        assert sorted(timeline.steps["step"]) == [3, 4, 5]
        clock = {row["step"]: row["step_time_ms"] for row in trial.read_steps(timeline.rank)}
        for step, start, end in timeline.steps[["step", "start", "end"]].itertuples(index=False):
            assert (end - start) / 1e6 == pytest.approx(clock[step], rel=0.02), "nsys and our clock agree"
    printed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ") and line.split()]
    wanted = [
        "data",
        "forward",
        "layer.0",
        "layer.0.attention",
        "layer.0.mlp",
        "layer.1",
        "backward",
        "all-reduce",
        "optimizer",
    ]
    assert [name for name in printed if name in wanted] == wanted, "one step's ranges are printed in order"
    names = {path.name for path in trial.profile.iterdir()}
    assert {"node0.nsys-rep", "node0.sqlite", "summary.json"} <= names
    result = json.loads(trial.result_json.read_text(encoding="utf-8"))
    assert result["profile"]["step_time_ratio"] > 0 and result["profile"]["problem"] == ""
    assert cli.processes() == []


def test_the_script_ends_in_one_row_per_batch_size(tmp_path: Path) -> None:
    variables = {"PRESET": "tiny", "PRECISION": "fp32", "SEQ_LEN": "32", "BATCH_SIZES": "2 16"}
    variables |= {"OUT": str(tmp_path / "run"), "CUDA_VISIBLE_DEVICES": ""}
    done = run_to_end(["bash", "profiling/measure_compute_util_pretrain.sh", "torch", 3, 6], **variables)
    rows = list(csv.DictReader((tmp_path / "run/compute_utilization.csv").open(encoding="utf-8")))
    assert [row["micro_batch_size"] for row in rows] == ["2", "16"]
    for row in rows:
        assert 0 < float(row["compute_utilization"]) <= 1
        assert float(row["busy_ms"]) / float(row["window_ms"]) == pytest.approx(float(row["compute_utilization"]))
    assert rows[0]["trial_id"] in done.stdout, "the table is printed at the end"
