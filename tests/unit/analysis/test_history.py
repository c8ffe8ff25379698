"""Three or more runs over time: their order, what each is compared with, and the command."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import fake_run
from support.commands import result
from support.fake_run import ENVIRONMENT, SECOND, START_NS, noisy_times, step_rows, write_sweep, write_trial

from analysis.metrics.comparison.history import history_of
from analysis.render.tables import Table
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


def points(history: dict[str, Any]) -> list[dict[str, Any]]:
    (series,) = history["series"]
    return list(series["points"])


def test_runs_stand_by_time_and_each_is_compared_with_the_one_before(on_day: Any) -> None:
    runs = [on_day("a", 3, scale=1.2), on_day("b", 1), on_day("c", 2, scale=1.001)]
    history = history_of(runs)
    first, second, third = points(history)
    assert [Path(one["run"]).name for one in (first, second, third)] == ["b", "c", "a"]
    # 1_700_000_000 s of Unix time is 2023-11-14 22:13:20 UTC.
    assert [one["began"] for one in (first, second, third)] == [f"2023-11-{day}T22:13:20Z" for day in (15, 16, 17)]
    assert [one["verdict"] for one in (first, second, third)] == [None, "no change", "regression"]
    assert first["time_ratio"] is None and first["time_ratio_first"] is None
    assert second["time_ratio"] == pytest.approx(1.001, abs=0.005)
    assert third["time_ratio"] == pytest.approx(1.2 / 1.001, rel=0.01)
    assert third["time_ratio_first"] == pytest.approx(1.2, rel=0.01)
    assert history["regressed"] and not history_of([runs[1], runs[2]])["regressed"]
    # Batch 16: 80 + 8 ms a step (fake_run.STEP_MS).
    assert first["step_time_ms"] == pytest.approx(88, rel=0.01) and first["rounds"] == 3
    assert third["time_ratio_low"] < third["time_ratio"] < third["time_ratio_high"]


def test_another_machine_makes_a_row_of_its_own_and_other_versions_do_not(on_day: Any) -> None:
    old, new, other = on_day("old", 1), on_day("new", 2), on_day("other", 3)
    changed(old, git_commit="aaa")
    changed(new, git_commit="bbb", libraries={"torch": "2.14.0", "numpy": "2.4.6"})
    changed(other, device_name="Example GPU", gpus=[{"name": "Example GPU"}] * 2)
    by_machine = {one["machine"]: one["points"] for one in history_of([old, new, other])["series"]}
    assert {name: len(each) for name, each in by_machine.items()} == {
        "Example CPU 9000, 8 cores": 2,
        "2 x Example GPU": 1,
    }
    changes = by_machine["Example CPU 9000, 8 cores"][1]["changed"]
    assert changes == ["commit: aaa -> bbb", "library torch: 2.13.0 -> 2.14.0"]


def test_what_stops_to_run_is_a_regression_and_the_next_is_compared_with_the_last_that_ran(
    on_day: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, again = on_day("good", 1), on_day("again", 3, scale=1.2)
    failed = RunDirectory(tmp_path / "runs" / "failed")
    monkeypatch.setattr(fake_run, "START_NS", START_NS + 2 * DAY_NS)
    trial = Trial(preset="mini", precision="bf16", micro_batch_size=16)
    write_trial(failed, trial, status="oom", reason="it needs 90 GiB", environment={})
    # Its date and machine are those of the other measurements of its run.
    write_trial(
        failed, dataclasses.replace(trial, micro_batch_size=4), {0: step_rows(noisy_times(30, 20, 1), 4)}, status="ok"
    )
    (series,) = [one for one in history_of([good, failed, again])["series"] if one["micro_batch_size"] == 16]
    first, second, third = series["points"]
    assert [one["status"] for one in (first, second, third)] == ["ok", "oom", "ok"]
    assert [one["verdict"] for one in (first, second, third)] == [None, "regression", "regression"]
    assert second["reason"].endswith("it needs 90 GiB")
    assert second["step_time_ms"] is None and second["time_ratio_first"] is None
    assert third["time_ratio"] == pytest.approx(1.2, rel=0.01)


def test_the_exit_code_of_three_runs_is_that_of_the_newest(on_day: Any, tmp_path: Path) -> None:
    on_day("a", 1)
    on_day("b", 2, scale=1.3)
    (tmp_path / "runs/damaged/trials/x").mkdir(parents=True)
    (tmp_path / "runs/damaged/trials/x/trial.json").write_text("{")
    words = ["compare", *(tmp_path / "runs" / name for name in ("a", "b", "damaged"))]
    shown = result(*words, "--markdown", tmp_path / "summary.md")
    assert shown.code == 1 and any("damaged" in one for one in shown.problems) and shown.document["regressed"]
    (table,) = [block for block in shown.blocks if isinstance(block, Table)]
    assert [(row["run"], row["verdict"]) for row in table.rows] == [("a", "first"), ("b", "regression")]
    assert (tmp_path / "summary.md").read_text(encoding="utf-8").startswith("### bertbench compare: regression\n")
    shown = result(*words, "--threshold", "0.5")
    assert shown.code == 0 and shown.document["series"][0]["points"][1]["verdict"] == "no change"


def test_a_copy_of_a_run_does_not_hide_what_the_run_says(on_day: Any, tmp_path: Path) -> None:
    slower = [on_day("a", 1), on_day("b", 2, scale=1.3)]
    copy = shutil.copytree(slower[1].path, tmp_path / "runs" / "copy")
    history = history_of([*slower, RunDirectory(copy)])
    assert history["regressed"] and [one["verdict"] for one in points(history)] == [None, "regression"]
    assert len(history["problems"]) == 1 and str(copy) in history["problems"][0]
