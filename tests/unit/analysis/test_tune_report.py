"""The screen of a study: the best trial first."""

from typing import Any

from support.commands import facts, text

from analysis.render.study import tune_blocks


def trial(number: int, state: str, value: float | None, **more: Any) -> dict[str, Any]:
    own = {"values": {"learning_rate": 1e-4 * (number + 1), "init": "/w/<b>a"}, "readings": [[0, 1.0], [1, 2.0]]}
    rest = {"seconds": 2.5, "reason": "", "resumed": 0, "same_as": None, "folder": f"trial-{number:04d}"}
    return {"number": number, "state": state, "value": value, **own, **rest, **more}


def study(maximize: bool = True) -> dict[str, Any]:
    """tune.json of a small study."""
    trials = [
        trial(0, "failed", None, reason="oom: no memory"), trial(1, "complete", 70.0), trial(2, "complete", 90.0),
        trial(3, "pruned", 20.0), trial(4, "complete", 80.0, same_as=1),
        trial(5, "failed", None, reason="oom: no memory"),
    ]  # fmt: skip
    return {
        "task": "squad", "objective": {"name": "f1", "label": "F1", "maximize": maximize},
        "space": {"learning_rate": "log:0.0001:0.001", "init": "/w/<b>a,/w/$b"}, "training": {"data": "/d", "steps": 3},
        "trials": trials,
        "best": {**trials[2 if maximize else 1], "command": "bertbench train squad --init '/w/<b>a'"},
    }  # fmt: skip


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
