"""Texts of a study: the best first."""

from support.commands import facts, text
from support.studies import study, trial

from analysis.render.study import ordered, tune_blocks


def test_complete_trials_come_first_by_value_then_the_others() -> None:
    assert [row["number"] for row in ordered(study())] == [2, 4, 1, 3, 0, 5]
    assert [row["number"] for row in ordered(study(maximize=False))] == [1, 4, 2, 3, 0, 5]


def test_the_text_says_what_counts() -> None:
    shown = text(tune_blocks(study()))
    said = facts(tune_blocks(study()))
    assert ("best", "trial 2, F1 90.00") in said and dict(said)["command"].startswith("bertbench train squad")
    assert said.count(("failed", "0, 5: oom: no memory")) == 1
    assert "3 complete, 1 pruned, 2 failed, 1 repeated earlier values" in shown
    assert "learning_rate 90.0 %" in shown and "rough estimate from 3 complete trials" in shown


def test_trials_that_are_as_good_as_the_best_are_named() -> None:
    some = study()
    some["trials"][1]["value"] = 90.0
    some["trials"].append(trial(6, "complete", 70.0))
    assert dict(facts(tune_blocks(some)))["best"] == "trials 1 and 2 tie at F1 90.00; the command repeats trial 2"
    every = study()
    for row in every["trials"]:
        row["value"] = 90.0
    assert (
        dict(facts(tune_blocks(every)))["best"]
        == "none: all 2 complete trials tie at F1 90.00; the command repeats trial 2"
    )
    taken_over = {**study(), "trials": [*study()["trials"], trial(6, "complete", 90.0, same_as=2)]}
    assert dict(facts(tune_blocks(taken_over)))["best"] == "trial 2, F1 90.00", "the same values are no other trial"


def test_files_that_the_command_replaces_are_named_beside_it() -> None:
    found = study()
    found["best"]["replaces"] = ["/d/<sms>_trained_model", "/d/<sms>_testset_predictions.csv"]
    again, (_, replaced) = facts(tune_blocks(found))[-2:]
    assert again[0] == "command" and replaced.startswith("overwrites <sms>_trained_model, <sms>_test")


def test_a_study_without_results_says_why_its_importance_is_unknown() -> None:
    empty = {**study(), "trials": [trial(0, "failed", None, reason="x")], "best": None}
    empty["importance"] = {"evaluator": "mdi", "shares": {}, "absent": "two complete trials are needed"}
    assert "unknown: two complete trials are needed" in text(tune_blocks(empty))
