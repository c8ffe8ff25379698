"""Texts and pictures of a study: the best first and always inside the picture, names from outside harmless."""

from pathlib import Path

import pytest
from support.commands import facts, text
from support.studies import study, trial

from analysis.render import figure as charts
from analysis.render.pages import write_tune_report
from analysis.render.study import choice_labels, ordered, robust_limits, tune_blocks, tune_figures


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


def test_files_that_the_command_replaces_are_named_beside_it(tmp_path: Path) -> None:
    found = study()
    found["best"]["replaces"] = ["/d/<sms>_trained_model", "/d/<sms>_testset_predictions.csv"]
    again, (_, replaced) = facts(tune_blocks(found))[-2:]
    assert again[0] == "command" and replaced.startswith("overwrites <sms>_trained_model, <sms>_test")
    assert "overwrites &lt;sms&gt;_trained_model" in write_tune_report(found, tmp_path)[0].read_text()


def test_the_page_escapes_names_and_holds_every_picture(tmp_path: Path) -> None:
    written = write_tune_report(study(), tmp_path)
    assert [path.name for path in written[2:]] == ["history.png", "parameters.png"]
    page = written[0].read_text()
    assert page.count('<div class="chart"') == 2 and "<b>a" not in page


def test_a_study_without_results_has_a_page_too(tmp_path: Path) -> None:
    empty = {**study(), "trials": [trial(0, "failed", None, reason="x")], "best": None}
    empty["importance"] = {"evaluator": "mdi", "shares": {}, "absent": "two complete trials are needed"}
    assert [path.name for path in write_tune_report(empty, tmp_path)] == ["report.html", "trials.csv"]
    assert "No trial completed." in (tmp_path / "report.html").read_text()
    assert "unknown: two complete trials are needed" in text(tune_blocks(empty))


@pytest.mark.parametrize(("maximize", "values"), [(True, [78.0] * 8 + [93.0, 5.0]), (False, [4.0] * 8 + [2.0, 400.0])])
def test_results_that_are_far_worse_are_cut_off_and_the_best_never(maximize: bool, values: list[float]) -> None:
    ends = robust_limits(values, maximize)
    assert ends is not None and robust_limits(values[:-1], maximize) is None
    low, high = ends
    best, worst = (max(values), min(values)) if maximize else (min(values), max(values))
    assert low < best < high and not low < worst < high
    found = {**study(maximize), "trials": [trial(number, "complete", value) for number, value in enumerate(values)]}
    history = next(figure for figure in tune_figures(found) if figure.name == "history")
    assert ": 1 " in charts.drawn(history).axes[0].get_title("left")


@pytest.mark.parametrize(
    ("choices", "shown"),
    [
        (["mul", "concat"], ["mul", "concat"]),
        (["weights/mini", "weights/large/"], ["mini", "large"]),
        (["a/step-9", "b/step-9"], ["a/step-9", "b/step-9"]),
        (
            ["runs/a/checkpoints/step-10", "runs/b/checkpoints/step-10"],
            ["1: …eckpoints/step-10", "2: …eckpoints/step-10"],
        ),
        (["x" * 60, "_y"], ["…" + "x" * 17, "_y"]),
    ],
    ids=["words", "ends", "whole", "alike", "long"],
)
def test_labels_of_values_are_short_and_each_another_one(choices: list[str], shown: list[str]) -> None:
    assert choice_labels(choices) == shown
