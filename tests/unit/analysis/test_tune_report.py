"""The screen of a study: the best trial first."""

from support.commands import facts, text
from support.studies import study, trial

from analysis.render.study import tune_blocks


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
