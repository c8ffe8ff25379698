"""What counts as a round of the same measurement: the same notion in points, ratios, scaling and comparisons."""

from pathlib import Path
from typing import Any

import pytest
from fake_run import noisy_times, rank_record, step_rows, write_sweep, write_trial
from support.commands import text

from analysis.diagnose.answer import answers, points
from analysis.diagnose.profiles import _field
from analysis.load import load_run
from analysis.metrics.comparison.regression import compare_runs
from analysis.metrics.comparison.within_run import ratios_of
from analysis.metrics.scaling import efficiency
from analysis.render.result_tables import comparison_blocks, results_blocks
from analysis.render.sections import facts
from analysis.render.tables import ratio_lookup
from bench.cli.progress import describe
from records.run import RunDirectory
from records.trial import Trial

SMALL: dict[str, Any] = {"batches": (8,), "worlds": (1,), "count": 20}
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
    run = write_sweep(tmp_path, rounds=2, **SMALL)
    write_sweep(tmp_path, rounds=1, scale=2.0, **SMALL, **other)
    trials = load_run(run)
    found = [point for point in points(trials) if point.row["implementation"] == "bertbench"]
    assert sorted(point.rounds for point in found) == [1, 2]
    ratios = ratios_of(trials)
    assert sorted(row["rounds"] for row in ratios) == [1, 2]
    find = ratio_lookup(ratios)
    assert all((find(point.row) or {})["rounds"] == point.rounds for point in found)
    assert answers(found, ratios)[0].figures[-1].label == "throughput against hf"


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: next(iter(other)))
def test_no_scaling_over_other_circumstances(tmp_path: Path, other: dict[str, Any]) -> None:
    run = write_sweep(tmp_path, implementations=("hf",), **SMALL)
    write_sweep(tmp_path, implementations=("hf",), **{**SMALL, "worlds": (2,)}, **other)
    assert efficiency([trial.row for trial in load_run(run)]) == []


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: next(iter(other)))
def test_a_comparison_matches_each_measurement_with_its_equal(tmp_path: Path, other: dict[str, Any]) -> None:
    runs = []
    for name in ("a", "b"):
        runs.append(write_sweep(tmp_path / name, implementations=("hf",), rounds=3, **SMALL))
        write_sweep(tmp_path / name, implementations=("hf",), rounds=3, scale=2.0, **SMALL, **other)
    found = compare_runs(*runs)
    assert [(row["rounds_a"], row["rounds_b"], row["verdict"]) for row in found.rows] == [(3, 3, "no change")] * 2
    assert found.differences == [] and all(row["differences"] == [] for row in found.rows)


def test_what_has_no_equal_and_several_of_its_kind_is_not_held_against_any(tmp_path: Path) -> None:
    a = write_sweep(tmp_path / "a", implementations=("hf",), **SMALL, seed=1)
    b = write_sweep(tmp_path / "b", implementations=("hf",), **SMALL, seed=2)
    assert compare_runs(a, b).rows[0]["differences"] == ["seed: 1 -> 2"]
    write_sweep(tmp_path / "b", implementations=("hf",), **SMALL, seed=3)
    found = compare_runs(a, b)
    assert found.rows == [] and [text.split(":")[0] for text in found.differences] == [
        f"only in {tmp_path / name}" for name in "ab"
    ]


@pytest.mark.parametrize("fingerprint", ["", "1234"])
def test_data_that_lie_elsewhere_are_the_same_data(tmp_path: Path, fingerprint: str) -> None:
    places = ("/old/place/books", "/new/books" if not fingerprint else "/new/renamed")
    runs = [
        write_sweep(tmp_path / str(n), rounds=3, data=place, data_fingerprint=fingerprint, **SMALL)
        for n, place in enumerate(places)
    ]
    found = compare_runs(*runs)
    assert len(found.rows) == 2 and all(row["differences"] == [] for row in found.rows)


def test_the_threads_of_the_ranks_reach_the_scaling(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    for world in (1, 2):
        trial = Trial(preset="mini", world_size=world)
        steps = {rank: step_rows([50.0] * 20, 8) for rank in range(world)}
        write_trial(run, trial, steps, ranks={rank: {**rank_record(), "threads": 4 // world} for rank in range(world)})
    assert {row["basis"] for row in efficiency([trial.row for trial in load_run(run)])} == {"same total cores"}


@pytest.mark.parametrize("kind", ["probe", "profile"])
def test_short_trials_are_in_no_number(tmp_path: Path, kind: str) -> None:
    run = write_sweep(tmp_path, rounds=3, worlds=(1, 2), batches=(8,), count=20)
    before = load_run(run)
    expected = [efficiency([trial.row for trial in before]), ratios_of(before), [p.rounds for p in points(before)]]
    for world in (1, 2, 4):
        trial = Trial(kind=kind, preset="mini", precision="bf16", micro_batch_size=8, world_size=world)
        write_trial(run, trial, {rank: step_rows(noisy_times(900.0, 20, rank), 8) for rank in range(world)})
    after = load_run(run)
    assert [
        efficiency([trial.row for trial in after]),
        ratios_of(after),
        [p.rounds for p in points(after)],
    ] == expected
    assert all(row["rounds_a"] == 3 for row in compare_runs(run, RunDirectory(run.path)).rows)


def stages(folder: Path, stage: int, scale: float = 1.0) -> RunDirectory:
    options = {"strategy": "deepspeed", "strategy_options": f'{{"zero_stage":{stage}}}'}
    shape = {**SMALL, "worlds": (2,), "implementations": ("bertbench",)}
    return write_sweep(folder, rounds=2, scale=scale, **shape, **options)


def test_two_stages_of_zero_are_told_apart_wherever_a_strategy_is_shown(tmp_path: Path) -> None:
    names = ["deepspeed zero_stage=1", "deepspeed zero_stage=3"]
    for run in ("old", "new"):
        stages(tmp_path / run, 1)
        stages(tmp_path / run, 3, scale=1.001)
    run = RunDirectory(tmp_path / "new")
    trials = load_run(run)
    rows = [trial.row for trial in trials]
    shown = {
        "terminal": text(results_blocks(rows)),
        "comparison": text(comparison_blocks(compare_runs(RunDirectory(tmp_path / "old"), run))),
        "facts": str(facts(trials)),
        "answer": str(answers(points(trials), [])),
        "profile": " ".join(str(_field(trial.trial, "strategy")) for trial in trials),
        "progress": " ".join(describe(trial.trial) for trial in trials),
    }
    for name, found in shown.items():
        told = " ".join(found.split())
        assert all(part in told for part in names), (name, found)
    plain = text(results_blocks([{**row, "strategy": "ddp"} for row in rows]))
    assert "strategy" not in plain, "where all are alike and plain there is nothing to tell"


def test_recomputation_is_told_where_the_strategy_goes_without_saying(tmp_path: Path) -> None:
    trial = Trial(strategy="single", activation_checkpointing=True)
    assert describe(trial).endswith("by single recomputing") and " by " not in describe(Trial(strategy="single"))
    assert " under " not in describe(trial)
    assert "on 1 CPU rank under nsys" in describe(Trial(profiler="nsys", start_iteration=1, stop_iteration=2))
    run = write_sweep(tmp_path, implementations=("hf",), **SMALL)
    write_sweep(tmp_path, implementations=("hf",), **SMALL, strategy="single", activation_checkpointing=True)
    assert "single recomputing" in text(results_blocks([trial.row for trial in load_run(run)]))
