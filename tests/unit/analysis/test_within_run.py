"""Input trials and trials on synthetic batches in a run: ratios, tables; never mixed with training on real data."""

from pathlib import Path
from typing import Any

import pytest
from support.charts import report_page
from support.commands import text
from support.fake_run import noisy_times, step_rows, write_sweep, write_trial

from analysis.diagnose.answer import points, without_measurement
from analysis.load import load_run
from analysis.metrics.comparison.runs import input_ratios
from analysis.render.result_tables import input_tables, results_blocks
from records.run import RunDirectory
from records.trial import Trial

SMALL: dict[str, Any] = {"batches": (8,), "worlds": (1,), "count": 20, "implementations": ("bertbench",)}
REAL = {"data": "/data/books", "data_fingerprint": "abc"}
TWIN = {"data": "synthetic:/data/books", "data_fingerprint": "lengths-def"}
REASON = "input only: nothing was trained"
UNKNOWN = dict.fromkeys(
    ("mfu", "measured_peak_flops", "model_flops_per_second", "peak_memory_bytes", "rank_skew", "forward_ms"), REASON
)


def write_input(run: RunDirectory, rounds: int = 1, samples: int = 8, read: Any = None, **fields: Any) -> None:
    """Input trials of `samples` per step, which takes half a millisecond."""
    for number in range(rounds):
        trial = Trial(**{"kind": "input", "preset": "mini", "round": number, **REAL, **fields})
        nothing = dict.fromkeys(
            ("forward_ms", "backward_ms", "optimizer_ms", "model_flops", "loss", "learning_rate"), None
        )
        times = noisy_times(0.5, 40, number)
        steps = {
            rank: [{**row, **nothing, "data_wait_ms": row["step_time_ms"]} for row in step_rows(times, samples)]
            for rank in range(trial.world_size)
        }
        record = {"unknown": UNKNOWN, "shards_read": read, "seconds": {"draw": 1.0}}
        write_trial(run, trial, steps, ranks=dict.fromkeys(steps, record))


def test_the_input_is_held_against_the_training_on_the_same_data(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, rounds=3, noise=0.001, **SMALL, **REAL)
    write_input(run, rounds=3)
    write_input(run, micro_batch_size=64)
    trials = load_run(run)
    (found, other) = sorted(input_ratios(trials), key=lambda row: int(row["micro_batch_size"]))
    training = next(trial for trial in trials if trial.trial.kind == "throughput").row["samples_per_second"]
    assert found["samples_per_second"] == pytest.approx(8 / 0.5e-3, rel=0.02)
    assert found["throughput_ratio"] == pytest.approx(found["samples_per_second"] / training, rel=0.02)
    assert found["throughput_ratio_low"] < found["throughput_ratio"] < found["throughput_ratio_high"]
    assert (found["rounds"], found["training_rounds"], found["reason"]) == (3, 3, "")
    assert other["throughput_ratio"] is None and "was not measured here" in other["reason"]


def test_what_needs_a_model_is_unknown_with_the_reason(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    write_input(run, world_size=2)
    (trial,) = load_run(run, price_per_hour=2.0)
    for name in UNKNOWN:
        assert trial.row[name] is None and trial.row["unknown"][name] == REASON, name
    assert trial.row["samples_per_second"] > 0 and trial.row["step_time_ms_low"] is not None
    assert {caution["code"] for caution in trial.row["cautions"]}.isdisjoint({"data_wait", "straggler"})
    assert "measured the input pipeline alone" in without_measurement(run, [trial]).headline


def test_terminal_and_report_show_both(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, rounds=3, noise=0.001, **SMALL, **REAL)
    write_sweep(tmp_path, rounds=3, noise=0.001, **SMALL, **TWIN)
    write_input(run, rounds=3)
    trials = load_run(run)
    shown = text(results_blocks([trial.row for trial in trials]))
    assert "bertbench, input only" in shown and "synthetic like books" in shown and "folder books" in shown
    assert [table.name for table in input_tables(input_ratios(trials))] == ["input"]
    assert [point.row["data"] for point in points(trials)] == ["/data/books"], "the answer is about real data"
    page = report_page(run).read_text(encoding="utf-8")
    assert "<h2>Input</h2>" in page and "synthetic like books" in page
    assert "input" in {path.stem for path in (run.report / "tables").iterdir()}
