"""Trials of a study are drawn, taken up again, ended and counted once, whoever works on it."""

import json
import sqlite3
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.refusals import refused

pytest.importorskip("optuna")

from support.studies import memory_folder

from bench.tune.document import document
from bench.tune.space import SearchSpace, make_space
from bench.tune.study import Begun, Question, Search, Study, storage_path, trial_folder
from common.errors import MissingToolError, StorageError

SPACE = make_space(
    ["learning_rate=log:1e-5:1e-3", "micro_batch_size=2,4,8"], None, {"learning_rate": float, "micro_batch_size": int}
)
QUESTION = Question(
    task="squad", objective="f1", maximize=True, space=SPACE.texts(), training={"data": "/data", "preset": "tiny"}
)


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as path:
        yield path


def make_study(folder: Path, search: Search | None = None, question: Question = QUESTION) -> Study:
    return Study(folder, question, search or Search())


def take(study: Study, space: SearchSpace = SPACE, most: int | None = None) -> Begun:
    begun = study.begin(space, most)
    assert begun is not None
    return begun


def run(study: Study, trials: int) -> list[dict[str, Any]]:
    """Complete trials whose result follows from their values; return the values."""
    found = []
    for _ in range(trials):
        begun = take(study)
        study.complete(begun, float(begun.values["micro_batch_size"]) - 1e3 * float(begun.values["learning_rate"]))
        found.append(begun.values)
    return found


def test_the_same_seed_draws_the_same_trials_however_often_the_study_is_opened(folder: Path) -> None:
    search = Search(startup_trials=3)
    whole = run(make_study(folder / "whole", search), 6)
    parts = [values for _ in range(2) for values in run(make_study(folder / "parts", search), 3)]
    assert parts == whole
    assert run(make_study(folder / "other", replace(search, seed=1)), 1) != whole[:1]


def test_random_draws_another_sequence_than_tpe_after_its_start(folder: Path) -> None:
    tpe = run(make_study(folder / "tpe", Search(startup_trials=2)), 4)
    drawn = run(make_study(folder / "random", Search(sampler="random")), 4)
    assert tpe[:1] == drawn[:1] and tpe[2:] != drawn[2:]


def test_the_best_is_the_highest_or_the_lowest(folder: Path) -> None:
    for maximize, expected in ((True, 0.9), (False, 0.2)):
        study = make_study(folder / str(maximize), question=replace(QUESTION, maximize=maximize))
        for value in (0.5, 0.9, 0.2, 0.9):
            study.complete(take(study), value)
        best = study.best()
        assert best is not None and best.value == expected
        assert best.number == (1 if maximize else 2)


def test_no_more_trials_begin_than_the_study_is_to_have_failed_ones_counted(folder: Path) -> None:
    study = make_study(folder)
    study.fail(take(study, most=2), "refused: no")
    running = take(study, most=2)
    assert study.begin(SPACE, 2) is None  # the second one runs elsewhere
    study.complete(running, 1.0)
    assert make_study(folder).begin(SPACE, 2) is None
    assert [row.state for row in study.rows()] == ["failed", "complete"]
    assert study.rows()[0].reason == "refused: no"


def test_a_finite_space_ends_when_every_combination_was_tried(folder: Path) -> None:
    space = make_space(["micro_batch_size=2,4"], None, {"micro_batch_size": int})
    study = make_study(folder, question=replace(QUESTION, space=space.texts()))
    known = 0
    while (begun := study.begin(space, 200)) is not None:
        same = study.known(begun)
        if same is None:
            study.complete(begun, float(begun.values["micro_batch_size"]))
        else:
            known += 1
            study.take_over(begun, same)
    assert study.tried_all(space)
    assert {row.value for row in study.rows()} == {2.0, 4.0}
    assert known == sum(row.same_as is not None for row in study.rows()) == len(study.rows()) - 2


def test_a_stopped_trial_goes_on_under_its_number_with_its_values(folder: Path) -> None:
    study = make_study(folder)
    begun = take(study)
    begun.report(0, 0.5)
    study.put_back(begun)
    assert [row.state for row in study.rows()] == ["waiting"]
    again = take(make_study(folder), most=1)
    assert (again.number, again.values, again.folder) == (0, begun.values, begun.folder)
    again.report(0, 0.5)  # was told before the stop: no second time
    study.complete(again, 0.7)
    assert study.rows()[0].readings == ((0, 0.5),)


def test_a_trial_that_another_worker_holds_is_left_alone_and_one_of_a_dead_worker_taken_up(folder: Path) -> None:
    study = make_study(folder, Search(retries=1))
    held = take(study)
    other = take(make_study(folder, Search(retries=1)))
    assert (held.number, other.number) == (0, 1)
    held.let_go()  # as the kernel does for a killed process
    again = take(study)
    assert (again.number, again.values) == (0, held.values)
    again.let_go()
    assert take(study).number == 2
    row = study.rows()[0]
    assert (row.state, row.killed, row.reason) == ("failed", 2, "its worker was killed 2 times")


def test_a_worse_trial_is_pruned_by_the_median_after_enough_others(folder: Path) -> None:
    study = make_study(folder, Search(prune_after=2, unpruned_readings=1))
    for value in (0.8, 0.9):
        begun = take(study)
        assert not any(begun.report(number, value) for number in range(3))
        study.complete(begun, value)
    bad = take(study)
    assert not bad.report(0, 0.1)
    assert bad.report(1, 0.1)
    study.prune(bad)
    row = study.rows()[2]
    assert (row.state, row.value) == ("pruned", 0.1)
    good = take(study)
    assert not any(good.report(number, 0.95) for number in range(3))
    assert not any(take(make_study(folder, Search(pruner="none"))).report(number, 0.0) for number in range(3))


def test_a_study_of_another_question_is_refused_with_the_difference(folder: Path) -> None:
    make_study(folder)
    make_study(folder, Search(sampler="random", seed=9))  # how it searches may change
    other_space = {**QUESTION.space, "dropout": "0.0:0.3"}
    for question, facts in (
        (replace(QUESTION, task="pretrain"), ("squad", "pretrain")),
        (replace(QUESTION, objective="exact"), ("f1", "exact")),
        (replace(QUESTION, space=other_space), ("dropout", "'0.0:0.3'")),
        (replace(QUESTION, training={"data": "/other", "preset": "tiny"}), ("'/data'", "'/other'")),
    ):
        with refused("settings-changed", folder, "--out", *facts):
            make_study(folder, question=question)


@pytest.mark.parametrize(
    "content", [b"no database at all, but long enough to be read as one" * 30, b"SQLite format 3\0" + bytes(4000)]
)
def test_a_damaged_storage_is_named(content: bytes, folder: Path) -> None:
    storage_path(folder).write_bytes(content)
    with refused("file-damaged", storage_path(folder)):
        make_study(folder)


def test_a_locked_storage_is_no_damaged_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.tune.study._BUSY_SECONDS", 0.05)
    study = make_study(folder)
    study.complete(take(study), 1.0)
    with sqlite3.connect(storage_path(folder), isolation_level=None) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        for act in (lambda: make_study(folder), lambda: take(study)):
            with refused("folder-locked", storage_path(folder), "database is locked", kind=StorageError) as caught:
                act()
            assert "remove" not in str(caught.value)
        connection.execute("ROLLBACK")
    assert [row.state for row in study.rows()] == ["complete"]


@pytest.mark.parametrize("value", ["x'e3e3'", "'\"{broken\"'"], ids=["no text", "no json"])
def test_damage_inside_the_storage_is_named(value: str, folder: Path) -> None:
    make_study(folder)
    with sqlite3.connect(storage_path(folder)) as connection:
        connection.execute(f"UPDATE study_user_attributes SET value_json = CAST({value} AS TEXT)")
    with refused("file-damaged", storage_path(folder)):
        make_study(folder)


def test_a_study_whose_maker_was_killed_before_it_said_what_it_asks_asks_anew(folder: Path) -> None:
    def forget() -> None:
        with sqlite3.connect(storage_path(folder)) as connection:
            connection.execute("DELETE FROM study_user_attributes")

    make_study(folder)
    forget()
    study = make_study(folder, question=replace(QUESTION, objective="loss", maximize=False))
    assert study._study.direction.name == "MINIMIZE"
    study.complete(take(study), 1.0)
    forget()
    with refused("file-damaged", storage_path(folder)):
        make_study(folder)


def test_a_trial_that_ended_is_not_put_back(folder: Path) -> None:
    study = make_study(folder)
    begun = take(study)
    study.complete(begun, 1.0)
    study.put_back(begun)
    assert [(row.state, row.value) for row in study.rows()] == [("complete", 1.0)]


def test_a_storage_of_another_program_is_left_alone(folder: Path) -> None:
    import optuna

    optuna.create_study(storage=f"sqlite:///{storage_path(folder)}", study_name="theirs")
    with refused("record-foreign", storage_path(folder)):
        make_study(folder)


def test_a_storage_of_another_version_of_optuna_is_named(folder: Path) -> None:
    make_study(folder)
    with sqlite3.connect(storage_path(folder)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'v99.0.0.a'")
    with refused("tool-version", storage_path(folder), "Optuna"):
        make_study(folder)


def test_without_optuna_the_remedy_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with refused("package-missing", "pip install 'bertbench[tune]'", kind=MissingToolError):
        make_study(folder)


def test_odd_folder_names_hold_a_study(folder: Path) -> None:
    study = make_study(folder / "ü %41 {b} #?&")
    begun = take(study)
    assert begun.folder == trial_folder(study.folder, 0) and begun.folder.is_dir()
    assert storage_path(study.folder).is_file()
    json.dumps([row.values for row in study.rows()])  # plain values


def test_the_command_of_a_classifier_says_which_files_it_replaces(folder: Path) -> None:
    files = ["sms_trained_model", "sms_testset_predictions.csv", "sms_train_test_stats.json"]
    for task, data, names in (("classify", "/d/sms.sqlite", files), ("classify", "synthetic", []), ("glue", "/d", [])):
        question = replace(QUESTION, task=task, training={"data": data})
        study = make_study(folder / f"{task}-{Path(data).name}", question=question)
        study.complete(take(study), 0.5)
        best = document(study, Search(), 1)["best"]
        assert best["replaces"] == [f"/d/{name}" for name in names]
