"""What counts as a round of the same measurement: the same notion in points, ratios, scaling and comparisons."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fake_run import ENVIRONMENT, SECOND, noisy_times, step_rows, write_sweep, write_trial

from analysis.diagnose.answer import complete_answers, points
from analysis.load import load_run, measurement
from analysis.metrics.comparison.history import history_of
from analysis.metrics.comparison.ratio import ratio_interval
from analysis.metrics.comparison.runs import compare_runs, ratios_of
from analysis.metrics.scaling import efficiency
from records.files import write_record
from records.run import RunDirectory
from records.trial import Trial

SMALL = {"batches": (8,), "worlds": (1,), "count": 30}


def processes(median: float, count: int, seed: int, between: float = 0.0, within: float = 0.01) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    levels = median * (1 + between * random.standard_normal(count))
    return [level * (1 + within * random.standard_normal(40)) for level in levels]


def test_the_ratio_is_that_of_the_medians_and_its_interval_holds_it() -> None:
    ratio = ratio_interval(processes(100, 3, 1), processes(150, 3, 2))
    assert ratio.value == pytest.approx(1.5, rel=0.02)
    assert ratio.low <= ratio.value <= ratio.high and ratio.high - ratio.low < 0.05


def test_three_rounds_decide_and_two_do_not_where_nothing_else_was_repeated(tmp_path: Path) -> None:
    (three,) = ratios_of(load_run(write_sweep(tmp_path / "three", rounds=3, **SMALL)))
    assert three["decided"] == "yes" and (three["rounds"], three["reference_rounds"]) == (3, 3)
    (two,) = ratios_of(load_run(write_sweep(tmp_path / "two", rounds=2, **SMALL)))
    assert two["decided"] == "cannot decide"


def test_one_round_decides_beyond_the_known_spread_of_the_machine(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, rounds=3, **SMALL)
    base = Trial(preset="mini", precision="bf16", micro_batch_size=16)
    for name, median in (("bertbench", 88.0), ("hf", 228.0)):
        write_trial(run, dataclasses.replace(base, implementation=name), {0: step_rows(noisy_times(median, 30, 7), 16)})
    close = dataclasses.replace(base, micro_batch_size=32)
    for name, median in (("bertbench", 100.0), ("hf", 100.1)):
        write_trial(
            run, dataclasses.replace(close, implementation=name), {0: step_rows(noisy_times(median, 30, 7), 32)}
        )
    found = {row["micro_batch_size"]: row for row in ratios_of(load_run(run))}
    assert found[16]["decided"] == "yes"
    assert found[32]["decided"] == "cannot decide" and "within this machine's run-to-run spread" in found[32]["reason"]


def test_a_failed_side_is_named_instead_of_a_ratio(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, implementations=("bertbench",), **SMALL)
    trial = Trial(preset="mini", precision="bf16", micro_batch_size=8, implementation="hf")
    write_trial(run, trial, status="oom", reason="rank 0: out of memory")
    (row,) = ratios_of(load_run(run))
    assert row["throughput_ratio"] is None and row["reason"] == "hf has no measurement: oom"


def compare(tmp_path: Path, scale: float, rounds: int = 3, **changes: object) -> list[dict]:
    a = write_sweep(tmp_path / "a", rounds=rounds, implementations=("bertbench",), **SMALL)
    b = write_sweep(tmp_path / "b", rounds=rounds, implementations=("bertbench",), scale=scale, **{**SMALL, **changes})
    return compare_runs(a, b)["rows"]


@pytest.mark.parametrize(
    ("scale", "verdict"),
    [(1.2, "regression"), (0.8, "improvement"), (1.0, "no change"), (1.02, "slower"), (0.98, "quicker")],
)
def test_each_verdict_has_its_cause(tmp_path: Path, scale: float, verdict: str) -> None:
    (once,) = compare(tmp_path / "once", 2.0, rounds=1)
    assert once["verdict"] == "cannot decide", "one round per side never fails a build"
    (row,) = compare(tmp_path, scale)
    assert row["verdict"] == verdict, row
    assert row["time_ratio"] == pytest.approx(scale, rel=0.02)
    assert row["throughput_ratio"] == pytest.approx(1 / scale, rel=0.02)
    assert row["time_saved"] == pytest.approx(1 - scale, abs=0.02)


def test_what_ran_and_now_runs_out_of_memory_is_a_regression(tmp_path: Path) -> None:
    a = write_sweep(tmp_path / "a", implementations=("bertbench",), **SMALL)
    b = RunDirectory(tmp_path / "b")
    trial = a.trials()[0].read_trial()
    write_trial(b, trial, status="oom", reason="no memory")
    (row,) = compare_runs(a, b)["rows"]
    assert row["verdict"] == "regression" and "now ends as oom" in row["reason"]
    (back,) = compare_runs(b, a)["rows"]
    assert back["verdict"] == "improvement"


def test_everything_that_does_not_match_is_listed(tmp_path: Path) -> None:
    a = write_sweep(tmp_path / "a", implementations=("bertbench", "hf"), **SMALL)
    b = write_sweep(tmp_path / "b", implementations=("bertbench",), dropout=0.0, **SMALL)
    other = {**ENVIRONMENT, "device_name": "Other CPU", "libraries": {"torch": "2.14.0"}}
    trial = Trial(preset="large", precision="bf16", micro_batch_size=8)
    write_trial(b, trial, {0: step_rows([100.0] * 20, 8)}, environment=other)
    found = compare_runs(a, b)
    (row,) = found["rows"]
    assert "dropout: 0.1 -> 0.0" in row["differences"]
    text = "\n".join(found["differences"])
    assert "Other CPU" in text and "torch: 2.13.0 -> 2.13.0, 2.14.0" in text
    assert "only in" in text and "hf mini" in text and "bertbench large" in text


def test_a_median_beyond_the_threshold_does_not_decide_while_its_interval_reaches_across(tmp_path: Path) -> None:
    runs = []
    for name, medians in (("a", (100.0, 100.0, 100.0)), ("b", (100.0, 110.0, 120.0))):
        run = RunDirectory(tmp_path / name)
        for number, median in enumerate(medians):
            trial = Trial(preset="mini", micro_batch_size=8, round=number)
            write_trial(run, trial, {0: step_rows(noisy_times(median, 30, number), 8)})
        runs.append(run)
    (row,) = compare_runs(*runs)["rows"]
    assert row["time_ratio"] == pytest.approx(1.1, rel=0.02)
    assert row["verdict"] == "cannot decide" and "threshold of 2 %" in row["reason"]
    assert all(f"{100 * (row[end] - 1):+.1f}" in row["reason"] for end in ("time_ratio_low", "time_ratio_high"))


def test_records_that_cannot_be_read_are_no_failure_of_what_they_are_of(tmp_path: Path) -> None:
    whole, cut, empty = (write_sweep(tmp_path / name, implementations=("hf",), **SMALL) for name in ("a", "b", "c"))
    for trial in cut.trials():
        trial.result_json.write_text(trial.result_json.read_text()[:40])
    for trial in empty.trials():
        trial.steps_csv(0).unlink()
    for runs in ((whole, cut), (cut, whole)):
        for row in compare_runs(*runs)["rows"]:
            assert row["verdict"] == "cannot decide" and "result.json" in row["reason"]
    (row,) = compare_runs(empty, whole)["rows"]
    assert row["verdict"] == "cannot decide"


ONE_SHAPE: dict[str, Any] = {"batches": (8,), "worlds": (1,), "count": 20}
OTHERS: list[dict[str, Any]] = [
    {"data_fingerprint": "other"},
    {"data": "synthetic:full"},
    {"start_iteration": 5, "stop_iteration": 15},
    {"seed": 7},
    {"threads_per_rank": 1},
    {"vocab_size": 1000},
    {"max_predictions": 5},
    {"dropout": 0.0},
    {"activation_checkpointing": True},
    {"strategy_options": '{"bucket_mib":5}'},
]


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: next(iter(other)))
def test_other_circumstances_are_no_rounds_of_each_other(tmp_path: Path, other: dict[str, Any]) -> None:
    run = write_sweep(tmp_path, rounds=2, **ONE_SHAPE)
    write_sweep(tmp_path, rounds=1, scale=2.0, **ONE_SHAPE, **other)
    trials = load_run(run)
    found = [point for point in points(trials) if point.row["implementation"] == "bertbench"]
    assert sorted(len(point.trials) for point in found) == [1, 2]
    ratios = ratios_of(trials)
    assert sorted(row["rounds"] for row in ratios) == [1, 2]
    rounds = {measurement(row): row["rounds"] for row in ratios}
    assert all(rounds[measurement(point.row)] == len(point.trials) for point in found)
    assert complete_answers([], found, ratios, "run")[0].cards[-1].label == "throughput relative to hf"


@pytest.mark.parametrize("kind", ["probe", "profile", "input"])
def test_trials_of_other_kinds_are_in_no_number(tmp_path: Path, kind: str) -> None:
    run = write_sweep(tmp_path, rounds=3, worlds=(1, 2), batches=(8,), count=20)
    before = load_run(run)
    expected = [efficiency([trial.row for trial in before]), ratios_of(before), [len(p.trials) for p in points(before)]]
    for world in (1, 2, 4):
        trial = Trial(kind=kind, preset="mini", precision="bf16", micro_batch_size=8, world_size=world)
        write_trial(run, trial, {rank: step_rows(noisy_times(900.0, 20, rank), 8) for rank in range(world)})
    after = load_run(run)
    assert [
        efficiency([trial.row for trial in after]),
        ratios_of(after),
        [len(p.trials) for p in points(after)],
    ] == expected
    rows = compare_runs(run, RunDirectory(run.path))["rows"]
    assert kind == "input" or all(row["rounds_a"] == 3 for row in rows), "input trials are compared with each other"


def test_nothing_is_decided_where_only_one_side_was_disturbed(tmp_path: Path) -> None:
    quiet, busy = (
        write_sweep(tmp_path / name, rounds=3, noise=0.001, implementations=("hf",), **SMALL)
        for name in ("quiet", "busy")
    )
    assert compare_runs(quiet, busy)["rows"][0]["verdict"] == "no change"
    for trial in busy.trials()[:2]:
        write_record(trial.env_json, {**ENVIRONMENT, "load_average": [9.0, 9.0, 9.0]})
    assert {row["verdict"] for row in compare_runs(quiet, busy)["rows"]} == {"cannot decide"}
    assert {row["verdict"] for row in compare_runs(busy, busy)["rows"]} == {"no change"}


def script_run(folder: Path, samples: int | None, step_ms: float, place: str = "a") -> RunDirectory:
    """Three rounds of a script on a day of the folder's name; it shows no samples where they are None."""
    run, day = RunDirectory(folder), int(folder.name, 36) * 86_400 * SECOND
    for number in range(3):
        trial = Trial(kind="measure", implementation="train.py", command=("python", "train.py"), round=number)
        rows = step_rows(noisy_times(step_ms, 30, number, noise=0.001), samples or 1)
        rows = [{**row, "samples": samples, "start_ns": row["start_ns"] + day} for row in rows]
        write_trial(run, trial, {0: rows}, environment={**ENVIRONMENT, "script_folder": place})
    return run


@pytest.mark.parametrize(
    ("old", "new", "verdict", "ratio"),
    [
        ((16, 10.0), (64, 22.4), "improvement", 0.56),  # +78 % samples/s in steps that are 2.24 times as long
        ((16, 10.0), (16, 22.4), "regression", 2.24),
        ((16, 10.0), (None, 10.0), "cannot decide", 1.0),
        ((None, 10.0), (None, 22.4), "regression", 2.24),
    ],
)
def test_steps_with_other_numbers_of_samples_are_judged_by_the_time_per_sample(
    old: tuple[int | None, float], new: tuple[int | None, float], verdict: str, ratio: float, tmp_path: Path
) -> None:
    (row,) = compare_runs(script_run(tmp_path / "a", *old), script_run(tmp_path / "b", *new))["rows"]
    assert row["verdict"] == verdict and row["time_ratio"] == pytest.approx(ratio, rel=0.01)
    (series,) = history_of([RunDirectory(tmp_path / name) for name in "ab"])["series"]
    assert [point["verdict"] for point in series["points"]] == [None, verdict]
