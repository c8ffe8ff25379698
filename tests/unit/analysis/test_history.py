"""Many runs over time: their order, what each is held against, and what is told of it."""

import csv
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import fake_run
from support.commands import result, text
from support.fake_run import ENVIRONMENT, SECOND, START_NS, noisy_times, step_rows, write_sweep, write_trial
from support.refusals import refused

from analysis.load import load_run
from analysis.metrics.comparison.history import History, history_of
from analysis.render.figure import Line, Rule, Text
from analysis.render.history_page import change_label, history_figures, history_page, write_history_report
from analysis.render.history_tables import history_blocks
from analysis.render.page import Article, Badge, Items
from analysis.sources import runs_below
from bench.cli.dispatch import result_of
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
    assert [Path(point.run).name for point in points] == ["b", "c", "a"]
    # 1_700_000_000 s of Unix time is 2023-11-14 22:13:20 UTC.
    assert [point.began for point in points] == [f"2023-11-{day}T22:13:20Z" for day in (15, 16, 17)]
    assert [point.verdict for point in points] == [None, "no change", "regression"]
    assert points[0].time_ratio is None and points[0].time_ratio_first is None
    assert points[1].time_ratio == pytest.approx(1.001, abs=0.005)
    assert points[2].time_ratio == pytest.approx(1.2 / 1.001, rel=0.01)
    assert points[2].time_ratio_first == pytest.approx(1.2, rel=0.01)
    assert found.regressed
    assert not history_of([runs[1], runs[2]]).regressed


def test_speed_and_its_interval_are_those_of_the_typical_round(on_day: Any) -> None:
    run = on_day("a", 1)
    (point,) = only(history_of([run])).points
    # Batch 16: 80 + 8 ms a step (fake_run.STEP_MS).
    assert point.step_time_ms == pytest.approx(88, rel=0.01)
    rates = [16 * len(trial.window_times()) / trial.window_times().sum() * 1000 for trial in load_run(run)]
    assert point.samples_per_second == pytest.approx(np.median(rates))
    assert point.samples_per_second_low < point.samples_per_second < point.samples_per_second_high
    assert point.rounds == 3 and point.status == "ok"


def test_small_losses_that_no_step_shows_are_seen_against_the_first(on_day: Any) -> None:
    points = only(history_of([on_day(str(day), day, scale=1.015**day) for day in range(5)])).points
    assert all(point.verdict != "regression" for point in points[1:])
    assert points[-1].time_ratio_first == pytest.approx(1.015**4, rel=0.01)


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
    changes = by_machine["Example CPU 9000, 8 cores"][1].changed
    assert changes == ("commit aaa -> bbb", "torch 2.13.0 -> 2.14.0")


def test_a_copy_of_a_run_is_left_out_and_said(on_day: Any, tmp_path: Path) -> None:
    run, later = on_day("a", 1), on_day("b", 2)
    copy = RunDirectory(tmp_path / "copy")
    shutil.copytree(run.path, copy.path)
    found = history_of([run, copy, later])
    assert len(only(found).points) == 2
    assert found.problems == ()
    (note,) = found.notes
    assert str(copy.path) in note and str(run.path) in note
    assert found.to_json()["notes"] == [note] and note in str(history_page(found))


def test_the_command_names_a_copy_in_a_note(on_day: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = on_day("a", 1)
    shutil.copytree(run.path, run.path.parent / "copy")
    found = result("history", run.path, run.path.parent / "copy", "--out", tmp_path / "out")
    assert not found.problems
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("note: ") and str(run.path.parent / "copy") in line
    result("history", run.path, run.path.parent / "copy", "--json")
    assert not capsys.readouterr().err


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
    assert [point.status for point in series.points] == ["ok", "oom", "ok"]
    assert [point.verdict for point in series.points] == [None, "regression", "regression"]
    assert series.points[1].reason == "it ran, and now ends as oom: it needs 90 GiB"
    assert series.points[1].samples_per_second is None and series.points[1].step_time_ms is None
    assert series.points[2].time_ratio == pytest.approx(1.2, rel=0.01)


def test_one_round_decides_nothing(on_day: Any) -> None:
    found = history_of([on_day("a", 1, rounds=1), on_day("b", 2, rounds=1, scale=1.5)])
    points = only(found).points
    assert points[1].verdict == "cannot decide" and "at least three rounds" in points[1].reason
    ((panel,),) = [figure.panels for figure in history_figures(found)]
    names = [one.name for one in panel.series if isinstance(one, Line) and one.marker == "circle"]
    assert names == ["first", "cannot decide"], "what a value of the chart says of itself"


def test_a_threshold_that_is_none_and_runs_without_a_measurement_are_refused(on_day: Any, tmp_path: Path) -> None:
    with refused("option-value", "--threshold 1.0", "[0, 1)"):
        history_of([on_day("a", 1)], threshold=1.0)
    (tmp_path / "empty/trials").mkdir(parents=True)
    with refused("run-incomplete", tmp_path / "empty"):
        history_of([RunDirectory(tmp_path / "empty")])


def test_runs_are_found_at_any_depth_and_not_inside_of_one_another(on_day: Any, tmp_path: Path) -> None:
    runs = [on_day("deep/er/a", 1), on_day("b", 2)]
    shutil.copytree(runs[0].path, runs[1].path / "trials/x/run")
    assert runs_below(tmp_path) == [tmp_path / "runs/b", tmp_path / "runs/deep/er/a"]
    assert runs_below(runs[0].path) == [runs[0].path]
    (tmp_path / "none").mkdir()
    with refused("run-incomplete", tmp_path / "none"):
        runs_below(tmp_path / "none")
    with refused("path-missing", tmp_path / "x"):
        runs_below(tmp_path / "x")


def test_names_tell_runs_apart_and_unrepeated_measurements_take_a_line(on_day: Any) -> None:
    runs = [on_day("monday/base", 1), on_day("tuesday/base", 2, batches=(16, 8))]
    shown = text(history_blocks(history_of(runs)))
    assert " monday/base " in shown and " tuesday/base " in shown
    assert shown.count("measured once") == 1 and "batch 8 on 1 cpu" in shown
    assert shown.splitlines()[-1] == "2 configurations; latest verdicts: 1 first, 1 no change; threshold 2 %"


def test_measurements_that_differ_in_a_setting_alone_are_told_apart_by_it(on_day: Any) -> None:
    runs = [on_day("a", 1), on_day("b", 2), on_day("c", 3)]
    for trial in runs[1].trials():
        record = json.loads(trial.trial_json.read_text())
        trial.trial_json.write_text(json.dumps({**record, "threads_per_rank": 1}))
    shown = text(history_blocks(history_of(runs)), 200)
    assert "synthetic, threads per rank default: " in shown and "synthetic, threads per rank 1: " in shown
    assert "threads per rank" not in text(history_blocks(history_of([runs[0], runs[2]])), 200)


def test_a_run_whose_records_cannot_be_read_is_named(on_day: Any) -> None:
    runs = [on_day("a", 1), on_day("b", 2)]
    for trial in runs[1].trials():
        trial.result_json.write_text("{")
    found = history_of(runs)
    assert len(only(found).points) == 1
    (said,) = found.problems
    assert str(runs[1].path) in said and "skipped" in said and "damaged, " in said and "result.json" in said


def test_the_page_marks_the_run_whose_commit_changed_the_speed_and_says_so_first(on_day: Any) -> None:
    runs = [on_day(str(day), day, scale=1.3 if day > 2 else 1.0, batches=(8, 16)) for day in range(1, 5)]
    for number, run in enumerate(runs):
        changed(run, git_commit=f"{'b' if number > 1 else 'a'}" * 40)
    found = history_of(runs)
    (figure,) = history_figures(found)
    for panel, series in zip(figure.panels, found.series, strict=True):
        (rule,) = [one for one in panel.series if isinstance(one, Rule)]
        (label,) = [one for one in panel.series if isinstance(one, Text)]
        assert rule.at == label.x == 2 and label.text == "bbbbbbb"
        (slower,) = panel.named("regression")
        assert isinstance(slower, Line) and slower.x == (2,)
        assert slower.y == (series.points[2].samples_per_second,)
    page = history_page(history_of(runs[:3]))
    answer = page.sections[0]
    (badge,) = [block for block in answer.blocks if isinstance(block, Badge)]
    (newest,) = [block for block in answer.blocks if isinstance(block, Items)]
    assert badge.style == "caution" and len(newest.rows) == 2
    anchors = {block.anchor for section in page.sections for block in section.blocks if isinstance(block, Article)}
    for anchor, _, said in newest.rows:
        assert anchor in anchors and f"commit {'a' * 12} -> {'b' * 12}" in said and "+30." in said


def test_the_tables_of_the_page_are_those_of_the_history(on_day: Any, tmp_path: Path) -> None:
    runs = [on_day("a", 1), on_day("b", 2, batches=(16, 8)), on_day("c", 3, scale=0.8, batches=(16, 8))]
    found = history_of(runs)
    page, whole, *others = write_history_report(found, tmp_path / "out")
    tables = [path for path in others if path.suffix == ".csv"]
    assert [path.name for path in tables] == ["history.csv", "history-2.csv"]
    for path, series in zip(tables, found.series, strict=True):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [float(row["step_time_ms"]) for row in rows] == [point.step_time_ms for point in series.points]
        assert str(path.relative_to(page.parent)) in page.read_text()
    assert len(whole.read_text().splitlines()) == 1 + sum(len(one.points) for one in found.series)
    assert history_page(found).sections[0].blocks[1] == Badge("no regression", "good")


def test_a_folder_that_cannot_be_written_hides_no_finding(on_day: Any, tmp_path: Path) -> None:
    on_day("a", 1)
    (tmp_path / "file").write_text("")
    found = result_of(["history", str(tmp_path / "runs"), "--out", str(tmp_path / "file/out")])
    assert found.failure is not None and found.blocks and "report" not in found.document


def test_many_series_take_several_figures_and_many_changes_few_labels(on_day: Any) -> None:
    runs = [on_day(str(day), day, batches=tuple(range(1, 15)), count=12, rounds=1) for day in (1, 2)]
    assert [len(figure.panels) for figure in history_figures(history_of(runs))] == [12, 2]
    more = [on_day(f"more-{day}", 10 + day) for day in range(12)]
    for number, run in enumerate(more):
        changed(run, git_commit=str(number))
    (figure,) = history_figures(history_of(more))
    assert len([one for one in figure.panels[0].series if isinstance(one, Rule)]) == 11
    assert len([one for one in figure.panels[0].series if isinstance(one, Text)]) <= 8


@pytest.mark.parametrize(
    "changes, label",
    [
        (["commit 0123456789 -> abcdef0123+"], "abcdef0+"),
        (["torch 2.13.0 -> 2.14.0", "commit none -> abcdef0123"], "abcdef0 +1"),
        (["torch 2.13.0 -> 2.14.0", "numpy 2.4 -> 2.5", "driver 1 -> 2"], "torch 2.14. +2"),
    ],
)
def test_a_change_is_named_in_a_few_letters(changes: list[str], label: str) -> None:
    assert change_label(changes) == label


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
