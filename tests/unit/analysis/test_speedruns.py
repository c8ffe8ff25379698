"""Time to quality: every figure worked by hand from records that are written here, the test held against SciPy's."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from support.commands import document, result
from support.refusals import refused
from support.speedruns import (
    BATCH,
    EVALUATION_MS,
    START_UP_MS,
    STEP_MS,
    TOKENS,
    WATTS,
    write_attempt,
    write_run_curve,
    write_seed,
    write_speedrun,
)

from analysis.metrics.comparison.trainings import SIGNIFICANCE, has_reached, seed_row, summary, welch
from analysis.metrics.statistics import mean_interval, student_tail
from records.files import write_record
from records.schema import SPEEDRUN_COLUMNS
from records.training import TrainRun


def test_a_seed_ends_at_its_first_evaluation_at_or_below_the_target(tmp_path: Path) -> None:
    run = TrainRun(tmp_path)
    write_seed(run, {5: 7.0, 10: 6.5, 15: 6.9, 20: 6.0})
    assert has_reached(run, 6.5) and not has_reached(run, 5.9)
    row = seed_row(3, run, 6.5, price_per_hour=36.0)
    assert (row["seed"], row["status"], row["steps"], row["mlm_loss"]) == (3, "reached", 10, 6.5)
    assert (row["samples"], row["tokens"], row["evaluations"]) == (10 * BATCH, 10 * TOKENS, 2)
    assert row["step_seconds"] == pytest.approx(10 * STEP_MS / 1000), "without evaluations"
    assert row["loop_seconds"] == pytest.approx((10 * STEP_MS + 2 * EVALUATION_MS) / 1000)
    assert row["total_seconds"] == pytest.approx((START_UP_MS + 10 * STEP_MS + 2 * EVALUATION_MS) / 1000)
    assert row["samples_per_second"] == pytest.approx(10 * BATCH / 1.0)
    # The window of the energy ends with the last step that counts: one evaluation lies inside.
    assert row["energy_joules"] == pytest.approx(WATTS * (10 * STEP_MS + EVALUATION_MS) / 1000, rel=0.01)
    assert row["cost"] == pytest.approx(36.0 / 3600 * row["total_seconds"])
    assert set(row) == {*SPEEDRUN_COLUMNS, "unknown", "readings"} and row["unknown"] == {}
    assert [(one["steps"], one["mlm_loss"]) for one in row["readings"]] == [(5, 7.0), (10, 6.5)]
    assert [one["step_seconds"] for one in row["readings"]] == pytest.approx([0.5, 1.0])


def test_a_run_that_was_killed_counts_its_repeated_steps_once_in_training_and_twice_on_the_wall(tmp_path: Path) -> None:
    run = TrainRun(tmp_path)
    write_attempt(run, 0, range(8), {5: 7.0}, step_ms=300)  # the checkpoint of update 5 is the last one
    second = write_attempt(run, 1, range(5, 12), {10: 6.4}, begin_ns=2 * 10**18)
    write_run_curve(run, 12)
    row = seed_row(1, run, 6.5)
    assert (row["status"], row["steps"], row["attempts"], row["evaluations"]) == ("reached", 10, 2, 2)
    assert row["step_seconds"] == pytest.approx(5 * 0.3 + 5 * 0.1)
    first_end = (START_UP_MS + 8 * 300 + EVALUATION_MS + 1000 - 200) / 1000  # its last sensor reading, every 200 ms
    last_start = (START_UP_MS + 5 * STEP_MS + EVALUATION_MS) / 1000
    assert row["total_seconds"] == pytest.approx(first_end + last_start, abs=0.2)
    shutil.rmtree(second.path)
    write_run_curve(run, 8)
    unfinished = seed_row(1, run, 6.5)
    assert unfinished["status"] == "interrupted" and unfinished["reason"] and unfinished["steps"] == 8


def test_a_seed_that_never_reaches_the_target_says_so(tmp_path: Path) -> None:
    run = TrainRun(tmp_path / "a")
    write_seed(run, {5: 7.0, 15: 6.6, 20: 6.7})
    row = seed_row(1, run, 6.5)
    assert (row["status"], row["steps"], row["mlm_loss"]) == ("not reached", 20, 6.7)
    assert "6.6" in row["reason"] and "20 steps" in row["reason"] and row["step_seconds"] == pytest.approx(2.0)
    diverged = TrainRun(tmp_path / "b")
    write_seed(diverged, {5: None, 20: None})
    assert seed_row(1, diverged, 6.5)["status"] == "not reached"
    stopped = TrainRun(tmp_path / "c")
    write_seed(stopped, {5: 7.0}, steps=8, finished=False)
    assert seed_row(1, stopped, 6.5)["status"] == "stopped"
    write_record(stopped.state_json, {"finished": False, "status": "crashed", "reason": "out of luck"})
    assert (seed_row(1, stopped, 6.5)["status"], seed_row(1, stopped, 6.5)["reason"]) == ("crashed", "out of luck")
    assert seed_row(1, TrainRun(tmp_path / "d"), 6.5)["status"] == "not begun"


def test_unknown_numbers_have_a_reason(tmp_path: Path) -> None:
    run = TrainRun(tmp_path)
    write_seed(run, {10: 6.4}, energy=False)
    row = seed_row(1, run, 6.5)
    assert row["energy_joules"] is None and row["unknown"]["energy_joules"] == "no RAPL"
    assert row["cost"] is None and "--price-per-hour" in row["unknown"]["cost"]
    (attempt,) = run.attempts()
    attempt.telemetry_csv(0).unlink()
    row = seed_row(1, run, 6.5, 2.0)
    assert (
        row["total_seconds"] is None and row["unknown"]["total_seconds"] and row["step_seconds"] == pytest.approx(1.0)
    )


def rows_of(*seconds: float | None) -> list[dict[str, Any]]:
    return [
        {"seed": seed, "status": "not reached" if value is None else "reached", "step_seconds": value, "unknown": {}}
        for seed, value in enumerate(seconds)
    ]


def test_the_interval_over_seeds_is_students() -> None:
    found = summary(rows_of(10.0, 12.0, 14.0))
    half = 4.302653 * 2.0 / math.sqrt(3)  # the table's quantile of two degrees of freedom
    assert found["step_seconds"] == pytest.approx({"mean": 12.0, "low": 12.0 - half, "high": 12.0 + half}, rel=1e-4)
    assert (found["seeds"], found["reached"]) == (3, 3)
    assert summary(rows_of(10.0))["step_seconds"] == {"mean": 10.0, "low": None, "high": None}
    part = summary(rows_of(10.0, None, 12.0))
    assert part["step_seconds"] is None and (part["seeds"], part["reached"]) == (3, 2)
    assert "2 of 3" in part["unknown"]["step_seconds"]
    mean, low, high = mean_interval([])
    assert math.isnan(mean) and math.isnan(low) and math.isnan(high)


@pytest.mark.parametrize("degrees", [1.0, 2.0, 3.7, 30.0])
@pytest.mark.parametrize("value", [-4.0, -0.5, 0.0, 1.0, 6.9])
def test_students_tail_is_scipys(degrees: float, value: float) -> None:
    assert student_tail(value, degrees) == pytest.approx(stats.t.sf(value, degrees), rel=1e-3, abs=1e-7)


def test_values_without_spread_decide_by_their_difference() -> None:
    assert [welch([2.0, 2.0], [value] * 2)["p_faster"] for value in (1.0, 2.0, 3.0)] == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("first", "second"),
    [([10.0, 11.0, 12.0], [8.0, 8.1, 8.3]), ([5.0, 9.0], [5.0, 6.0, 7.0, 9.5]), ([1.0, 1.1, 1.2], [1.4, 1.6, 1.3])],
)
def test_welchs_test_is_scipys(first: list[float], second: list[float]) -> None:
    found = welch(first, second)
    reference = stats.ttest_ind(first, second, equal_var=False, alternative="greater")
    assert found["p_faster"] == pytest.approx(reference.pvalue, rel=1e-3)
    assert found["p_slower"] == pytest.approx(1 - reference.pvalue, rel=1e-3)
    low, high = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert (found["saved_low"], found["saved_high"]) == pytest.approx((low, high), rel=1e-3)


SLOW, FAST = {1: 100.0, 2: 102.0, 3: 98.0}, {1: 80.0, 2: 79.0, 3: 81.0}


def test_compare_decides_which_speedrun_is_faster_by_folders_and_by_copies_of_the_record(tmp_path: Path) -> None:
    slow, fast = (write_speedrun(tmp_path / name, seeds) for name, seeds in (("slow", SLOW), ("fast", FAST)))
    record = tmp_path / "record.json"
    shutil.copy(slow.document, record)
    for before in (slow.path, record):
        found = result("compare", before, fast.path)
        assert found.code == 0 and found.document["verdict"] == "faster"
        assert found.document["ratios"]["step_seconds"] == pytest.approx(0.8)
        assert found.document["p_faster"] == pytest.approx(
            stats.ttest_ind([1.0, 1.02, 0.98], [0.8, 0.79, 0.81], equal_var=False, alternative="greater").pvalue,
            rel=1e-2,
        )
        assert found.document["saved_seconds"] == pytest.approx(0.2)
    assert result("compare", fast.path, slow.path).code == 1
    assert document("compare", fast.path, slow.path)["verdict"] == "slower"
    summary_file = tmp_path / "summary.md"
    result("compare", fast.path, slow.path, "--markdown", summary_file)
    assert summary_file.read_text(encoding="utf-8").startswith("### bertbench compare: regression\n")
    assert "same records" in result("compare", fast.path, fast.path).notes[0]


def test_too_few_seeds_or_too_small_a_difference_decide_nothing(tmp_path: Path) -> None:
    slow = write_speedrun(tmp_path / "slow", SLOW)
    few = write_speedrun(tmp_path / "few", {1: 80.0, 2: 79.0})
    near = write_speedrun(tmp_path / "near", {1: 99.0, 2: 97.0, 3: 101.0})
    for other, code in ((few, 4), (near, 4)):
        found = result("compare", slow.path, other.path)
        assert (found.document["verdict"], found.code) == ("cannot decide", code)
    assert document("compare", slow.path, near.path)["p_faster"] > SIGNIFICANCE
    assert "at least 3" in document("compare", slow.path, few.path)["reason"]
    assert result("compare", slow.path, few.path, "--undecided-ok").code == 0


def test_a_run_with_a_seed_that_misses_the_target_is_no_record(tmp_path: Path) -> None:
    slow = write_speedrun(tmp_path / "slow", SLOW)
    never = write_speedrun(tmp_path / "never", FAST, reached=False)
    found = result("compare", slow.path, never.path)
    assert (found.document["verdict"], found.code) == ("not reached", 1) and "seed 1" in found.document["reason"]
    found = result("compare", never.path, slow.path)
    assert (found.document["verdict"], found.code) == ("cannot decide", 4)


def test_speedruns_of_different_targets_or_data_are_refused_and_other_options_too(tmp_path: Path) -> None:
    one = write_speedrun(tmp_path / "one", SLOW)
    easier = write_speedrun(tmp_path / "easier", SLOW, target=6.9)
    with refused("run-mismatch", "target", 6.5, 6.9):
        result("compare", one.path, easier.path)
    other = write_speedrun(tmp_path / "other", SLOW)
    content = json.loads(other.document.read_text())
    write_record(other.document, content | {"data": {**content["data"], "held_out_fingerprint": "cc"}})
    with refused("run-mismatch", "held_out_fingerprint", "bb", "cc"):
        result("compare", one.path, other.path)
    with refused("option-not-applicable", "--threshold"):
        result("compare", one.path, one.path, "--threshold", "0.1")
    with refused("path-missing", tmp_path / "absent"):
        result("compare", one.path, tmp_path / "absent")


def test_settings_that_differ_are_listed(tmp_path: Path) -> None:
    one = write_speedrun(tmp_path / "one", SLOW, precision="fp32")
    two = write_speedrun(tmp_path / "two", FAST, precision="bf16", levers="auto")
    differences = document("compare", one.path, two.path)["differences"]
    assert differences == ["precision: fp32 -> bf16", "levers: not set -> auto"]


RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"


@pytest.mark.parametrize(
    ("a", "b", "verdict", "ratio"),
    [("", "-batch-8", "cannot decide", "0.86"), ("", "-batch-64", "slower", "2.00"),
     ("-batch-8", "-batch-64", "slower", "2.34")],
)  # fmt: skip
def test_the_page_of_records_says_what_its_files_say(a: str, b: str, verdict: str, ratio: str) -> None:
    paths = [RESULTS / f"2026-11-26-speedrun{name}.json" for name in (a, b)]
    found = document("compare", *paths)
    assert found["verdict"] == verdict and f"{found['ratios']['step_seconds']:.2f}" == ratio
    page = (RESULTS / "2026-11-26-speedrun.md").read_text(encoding="utf-8")
    assert ratio in page
    for side in ("a", "b"):
        whole = found[side]
        time, rate = whole["step_seconds"], whole["samples_per_second"]["mean"]
        assert f"{time['mean']:.1f} s" in page and f"{time['low']:.1f} to {time['high']:.1f}" in page
        assert f"{rate:.1f}" in page and f"{whole['loop_seconds']['mean']:.1f} s" in page
        assert f"{whole['total_seconds']['mean']:.1f} s" in page
