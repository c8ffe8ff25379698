"""Many runs over time: their order, what each is held against, and what is told of it."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import fake_run
from support.charts import titles, values
from support.commands import result, text
from support.fake_run import ENVIRONMENT, SECOND, START_NS, noisy_times, step_rows, write_sweep, write_trial
from support.refusals import refused

from analysis.load import load_run
from analysis.metrics.comparison.history import History, history_of
from analysis.render.history_tables import history_figures
from analysis.sources import runs_below
from records.run import RunDirectory
from records.trial import Trial

DAY_NS = 86_400 * SECOND
ONE = {"implementations": ("bertbench",), "batches": (16,), "worlds": (1,), "rounds": 3}


@pytest.fixture
def on_day(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Writes a run whose first step began on a day."""

    def write(name: str, day: int, **options: Any) -> RunDirectory:
        monkeypatch.setattr(fake_run, "START_NS", START_NS + day * DAY_NS)
        return write_sweep(tmp_path / "runs" / name, **{**ONE, **options})

    return write


def changed(run: RunDirectory, **fields: Any) -> None:
    for trial in run.trials():
        trial.env_json.write_text(json.dumps({**ENVIRONMENT, "schema_version": 1, **fields}))


def only(found: History) -> Any:
    (series,) = found.series
    return series


def test_runs_stand_by_time_whatever_their_names_and_each_is_held_against_the_one_before(on_day: Any) -> None:
    runs = [on_day("a", 3, scale=1.2), on_day("b", 1), on_day("c", 2, scale=1.001)]
    found = history_of(runs)
    points = only(found).points
    assert [Path(point["run"]).name for point in points] == ["b", "c", "a"]
    # 1_700_000_000 s of Unix time is 2023-11-14 22:13:20 UTC.
    assert [point["began"] for point in points] == [f"2023-11-{day}T22:13:20Z" for day in (15, 16, 17)]
    assert [point["verdict"] for point in points] == [None, "no change", "regression"]
    assert points[0]["time_ratio"] is None and points[0]["time_ratio_first"] is None
    assert points[1]["time_ratio"] == pytest.approx(1.001, abs=0.005)
    assert points[2]["time_ratio"] == pytest.approx(1.2 / 1.001, rel=0.01)
    assert points[2]["time_ratio_first"] == pytest.approx(1.2, rel=0.01)
    assert found.regressed
    assert not history_of([runs[1], runs[2]]).regressed


def test_speed_and_its_interval_are_those_of_the_typical_round(on_day: Any) -> None:
    run = on_day("a", 1)
    (point,) = only(history_of([run])).points
    # Batch 16: 80 + 8 ms a step (fake_run.STEP_MS).
    assert point["step_time_ms"] == pytest.approx(88, rel=0.01)
    rates = [16 * len(trial.window_times()) / trial.window_times().sum() * 1000 for trial in load_run(run)]
    assert point["samples_per_second"] == pytest.approx(np.median(rates))
    assert point["samples_per_second_low"] < point["samples_per_second"] < point["samples_per_second_high"]
    assert point["rounds"] == 3 and point["status"] == "ok"


def test_another_machine_makes_a_row_of_its_own_and_other_versions_do_not(on_day: Any) -> None:
    old, new, other = on_day("old", 1), on_day("new", 2), on_day("other", 3)
    changed(old, git_commit="aaa")
    changed(new, git_commit="bbb", libraries={"torch": "2.14.0", "numpy": "2.4.6"})
    changed(other, device_name="Example GPU", gpus=[{"name": "Example GPU"}] * 2)
    found = history_of([old, new, other])
    by_machine = {one.row["machine"]: one.points for one in found.series}
    assert {name: len(points) for name, points in by_machine.items()} == {
        "Example CPU 9000, 8 cores": 2,
        "2 x Example GPU": 1,
    }
    changes = by_machine["Example CPU 9000, 8 cores"][1]["changed"]
    assert changes == ("commit aaa -> bbb", "torch 2.13.0 -> 2.14.0")


def test_a_copy_counts_once_and_is_named(on_day: Any) -> None:
    run = on_day("a", 1)
    copy = RunDirectory(shutil.copytree(run.path, run.path.parent / "copy"))
    found = history_of([run, copy])
    assert len(only(found).points) == 1 and [str(copy.path) in problem for problem in found.problems] == [True]


def test_what_stops_to_run_is_a_regression_and_the_next_is_held_against_the_last_that_ran(
    on_day: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, again = on_day("good", 1), on_day("again", 3, scale=1.2)
    failed = RunDirectory(tmp_path / "runs" / "failed")
    monkeypatch.setattr(fake_run, "START_NS", START_NS + 2 * DAY_NS)
    trial = Trial(preset="mini", precision="bf16", micro_batch_size=16)
    write_trial(failed, trial, status="oom", reason="it needs 90 GiB", environment={})
    # Its date is that of the other measurements of its run.
    write_trial(
        failed, dataclasses.replace(trial, micro_batch_size=4), {0: step_rows(noisy_times(30, 20, 1), 4)}, status="ok"
    )
    found = history_of([good, failed, again])
    (series,) = [one for one in found.series if one.row["micro_batch_size"] == 16]
    assert [point["status"] for point in series.points] == ["ok", "oom", "ok"]
    assert [point["verdict"] for point in series.points] == [None, "regression", "regression"]
    assert series.points[1]["reason"] == "it ran, and now ends as oom: it needs 90 GiB"
    assert series.points[1]["samples_per_second"] is None and series.points[1]["step_time_ms"] is None
    assert series.points[2]["time_ratio"] == pytest.approx(1.2, rel=0.01)


def test_a_threshold_that_is_none_and_runs_without_a_measurement_are_refused(on_day: Any, tmp_path: Path) -> None:
    with refused("option-value", "--threshold 1.0", "[0, 1)"):
        history_of([on_day("a", 1)], threshold=1.0)
    (tmp_path / "empty/trials").mkdir(parents=True)
    with refused("run-incomplete", tmp_path / "empty"):
        history_of([RunDirectory(tmp_path / "empty")])


def test_runs_are_found_at_any_depth(on_day: Any, tmp_path: Path) -> None:
    runs = [on_day("deep/er/a", 1), on_day("b", 2)]
    assert runs_below(tmp_path) == [tmp_path / "runs/b", tmp_path / "runs/deep/er/a"]
    assert runs_below(runs[0].path) == [runs[0].path]
    (tmp_path / "none").mkdir()
    with refused("run-incomplete", tmp_path / "none"):
        runs_below(tmp_path / "none")
    with refused("path-missing", tmp_path / "x"):
        runs_below(tmp_path / "x")


def test_the_figure_has_a_line_of_speeds_for_each_configuration(on_day: Any) -> None:
    runs = [on_day(str(day), day, scale=1.3 if day > 2 else 1.0, batches=(8, 16)) for day in range(1, 5)]
    for number, run in enumerate(runs):
        changed(run, git_commit=f"{'b' if number > 1 else 'a'}" * 40)
    found = history_of(runs)
    (figure,) = history_figures(found)
    for name, series in zip(titles(figure), found.series, strict=True):
        speeds = [point["samples_per_second"] for point in series.points]
        assert values(figure, name) == pytest.approx(speeds, rel=1e-3)


def test_the_command_writes_table_and_picture_and_its_exit_code_is_that_of_the_newest(
    on_day: Any, tmp_path: Path
) -> None:
    on_day("a", 1)
    on_day("b", 2, scale=1.3)
    (tmp_path / "runs/damaged/trials/x").mkdir(parents=True)
    (tmp_path / "runs/damaged/trials/x/trial.json").write_text("{")
    words = ["history", str(tmp_path / "runs"), str(tmp_path / "runs/a")]
    found = result(*words, "--out", tmp_path / "out")
    assert found.code == 1 and "regression" in text(found.blocks) and any("damaged" in one for one in found.problems)
    out = {tmp_path / "out" / name for name in ("report.html", "history.png", "history.csv", "tables/history.csv")}
    assert set(found.written) == out and all(path.is_file() for path in out)
    assert found.written[0].name == "report.html" and found.document["report"] == str(found.written[0])
    assert (tmp_path / "out/history.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out/history.csv").read_text().count("\n") == 3
    found = result(*words, "--threshold", "0.5")
    assert found.code == 0 and found.document["series"][0]["points"][1]["verdict"] == "no change"
    with refused("option-missing", "bertbench history"):
        result("history")
