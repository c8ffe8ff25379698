"""The screen of a study: the best trial first."""

import pytest
from support.commands import facts, text
from support.studies import study, trial

from analysis.render.study import tune_blocks
from analysis.render.tables import Table


@pytest.mark.parametrize(("maximize", "order"), [(True, [2, 4, 1, 3, 0, 5]), (False, [1, 4, 2, 3, 0, 5])])
def test_complete_trials_come_first_by_value_then_the_others(maximize: bool, order: list[int]) -> None:
    table = tune_blocks(study(maximize=maximize))[0]
    assert isinstance(table, Table) and [row["number"] for row in table.rows] == order


def test_the_text_says_what_counts() -> None:
    said = facts(tune_blocks(study()))
    assert ("best", "trial 2, F1 90.00") in said and dict(said)["command"].startswith("bertbench train squad")
    assert said.count(("failed", "0, 5: oom: no memory")) == 1
    assert ("trials", "3 complete, 1 pruned, 2 failed") in said and "repeats trial 1" in text(tune_blocks(study()))


def test_trials_that_are_as_good_as_the_best_are_counted() -> None:
    some = study()
    some["trials"][1]["value"] = 90.0
    some["trials"] += [trial(6, "complete", 70.0), trial(7, "complete", 90.0, same_as=2)]
    best = dict(facts(tune_blocks(some)))["best"]
    assert best == "trial 2, F1 90.00; 1 other trial of 3 with the same value", "the same values are no other trial"
