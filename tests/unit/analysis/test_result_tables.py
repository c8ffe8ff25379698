from pathlib import Path

import pytest
from support.commands import document, result, text
from support.fake_run import step_rows, write_sweep, write_trial
from support.refusals import refused

from analysis.load import load_run
from analysis.metrics.comparison.runs import ratios_of
from analysis.render.result_tables import results_blocks
from analysis.render.tables import Table
from records.run import RunDirectory
from records.trial import Trial

pytestmark = [pytest.mark.more, pytest.mark.usefixtures("pictures_of_one_pixel")]

SMALL = {"batches": (8,), "worlds": (1,), "count": 20}


def test_the_table_has_a_line_per_trial_failed_ones_too(tmp_path: Path) -> None:
    run = write_sweep(tmp_path, **SMALL)
    write_trial(
        run, Trial(preset="mini", precision="bf16", micro_batch_size=64), status="oom", reason="rank 0: no memory"
    )
    rows = [trial.row for trial in load_run(run)]
    results, failure, ratios, undecided = results_blocks(rows, ratios_of(load_run(run)))
    assert isinstance(results, Table) and [row["status"] for row in results.rows] == ["ok", "ok", "oom"]
    assert failure == "oom bertbench batch 64 on 1 cpu: rank 0: no memory"
    assert isinstance(ratios, Table) and "× hf" in ratios.headings  # noqa: RUF001
    assert [row["throughput_ratio"] for row in ratios.rows] == [pytest.approx(2.4, abs=0.1)]
    assert str(undecided).startswith("ratios to hf are not conclusive yet")
    assert all(len(line) <= 150 for line in text([results, ratios]).splitlines())


def test_compare_names_the_path_that_does_not_fit(tmp_path: Path) -> None:
    run = write_sweep(tmp_path / "run", rounds=1, **SMALL)
    (tmp_path / "empty").mkdir()
    for names in ([run.path, tmp_path / "empty"], [tmp_path / "empty", run.path]):
        with refused("file-empty", "/empty"):
            result("compare", *names)


Levels = dict[int, list[float]]
"""Micro batch -> step time in ms of each round: all steps of a round take the same, so the interval is the ratio."""


def measure(run: Path, levels: Levels, **ended: str) -> str:
    for batch, rounds in levels.items():
        for turn, level_ms in enumerate(rounds):
            steps = {} if ended else {0: step_rows([level_ms] * 20, batch)}
            write_trial(RunDirectory(run), Trial(micro_batch_size=batch, round=turn), steps, **ended)
    return str(run)


@pytest.mark.parametrize(
    ("old", "new", "verdicts", "code", "reversed_code"),
    [
        ({8: [100.0] * 3}, {8: [130.0] * 3}, ["regression"], 1, 0),
        # One round per side decides nothing, whatever it shows.
        ({4: [100.0], 8: [100.0]}, {4: [100.0], 8: [100.0]}, ["cannot decide"] * 2, 4, 4),
        ({8: [100.0] * 3, 16: [100.0]}, {8: [130.0] * 3, 16: [100.0]}, ["regression", "cannot decide"], 1, 4),
        # 101.9, 102, 102.1 (t(0.975, 2) = 4.303, s = 0.1, so +-0.25 about 102): 2 % lies inside.
        ({8: [100.0] * 3}, {8: [101.9, 102.0, 102.1]}, ["slower"], 4, 0),
    ],
    ids=["regression", "one round", "regression and an open question", "slower by an open amount"],
)
def test_exit_codes_of_compare(
    tmp_path: Path, old: Levels, new: Levels, verdicts: list[str], code: int, reversed_code: int
) -> None:
    names = measure(tmp_path / "a", old), measure(tmp_path / "b", new)
    found = document("compare", *names)
    assert [row["verdict"] for row in sorted(found["rows"], key=lambda row: row["micro_batch_size"])] == verdicts
    assert (found["regressed"], found["undecided"]) == ("regression" in verdicts, verdicts[-1] != "regression")
    assert result("compare", *names).code == code and result("compare", *names[::-1]).code == reversed_code
    assert result("compare", *names, "--undecided-ok").code == (0 if code == 4 else code)
    assert result("compare", *names, "--threshold", "0.5", "--undecided-ok").code == 0


@pytest.mark.parametrize(("status", "code"), [("oom", 0), ("crashed", 0), ("timeout", 0), ("refused", 4)])
def test_what_fails_alike_in_both_runs_has_not_changed(tmp_path: Path, status: str, code: int) -> None:
    names = [measure(tmp_path / name, {8: [100.0] * 3}) for name in ("a", "b")]
    for name in ("a", "b"):
        measure(tmp_path / name, {64: [0.0]}, status=status, reason="so it ended")
    assert result("compare", *names).code == code
