"""Add rounds to a sweep until the comparison with the reference at the fastest configuration is conclusive.

analysis.metrics.comparison decides this, as in every report. An added round repeats only the two sides of that
comparison, in alternating order, as further trials of the same run directory.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from analysis.load import LoadedTrial, load_run
from bench.sweep.sweep import finished_result
from bench.sweep.trials import Sweep
from common.errors import UsageError
from records.run import RunDirectory
from records.trial import Trial

REFERENCE = "hf"
_OPEN = "cannot decide"


def check_reference(sweep: Sweep) -> None:
    """Refuse a sweep that has nothing to compare with the reference. Raises UsageError."""
    if REFERENCE not in sweep.implementations or len(set(sweep.implementations)) < 2:
        raise UsageError(
            "option-not-applicable",
            f"--time-budget needs a comparison with {REFERENCE}, not {' '.join(sweep.implementations)} alone: use "
            f"--implementations bertbench {REFERENCE}",
        )


def spends(trials: Sequence[Trial], seconds: float) -> Callable[[int], bool]:
    """Return a function that tells whether to skip the trial at a position and the rest of its configuration.

    A configuration is skipped if, by the time of the trials so far, it would not end within `seconds` from now. The
    first configuration is always measured: without it there is nothing to compare.
    """
    groups = [dataclasses.replace(trial, implementation="", levers="") for trial in trials]
    began, ran = time.monotonic(), 0
    skipped: set[Trial] = set()

    def enough(place: int) -> bool:
        nonlocal ran
        group = groups[place]
        if place and group != groups[place - 1] and ran:
            spent = time.monotonic() - began
            if spent + groups.count(group) * spent / ran > seconds:
                skipped.add(group)
        ran += group not in skipped
        return group in skipped

    return enough


def add_rounds(
    run: RunDirectory,
    trials: Sequence[Trial],
    measure: Callable[[Sequence[Trial]], Sequence[Mapping[str, Any]]],
    seconds: float,
) -> tuple[list[Trial], list[dict[str, Any]]]:
    """Measure more rounds until the comparison of every model is conclusive or no round fits into the time left.

    Used inside `locked(run)` once `trials` are finished.

    Args:
        run: the run directory.
        trials: trials of the sweep, with at least one round of every configuration.
        measure: runs trials and returns their results, in order.
        seconds: time left in s; the time of a round is estimated from earlier ones.

    Returns:
        The trials of rounds beyond those of the sweep, and per model the comparison at its fastest configuration: the
        columns of runs.ratios_of, and `sentence`, with the reason why it stays open.
    """
    from analysis.run_views import decisions

    ends = time.monotonic() + seconds
    family, planned = {_first_round(trial) for trial in trials}, {trial.trial_id for trial in trials}
    stopped: dict[Trial, str] = {}
    while True:
        measured = [trial for trial in load_run(run) if _first_round(trial.trial) in family]
        compared = list(decisions(measured, REFERENCE))
        undecided = (
            (_first_round(one.trial), _first_round(other.trial))
            for row, _, one, other in compared
            if row["decided"] == _OPEN and row["throughput_ratio"] is not None
            and _first_round(one.trial) not in stopped
        )  # fmt: skip
        pair = next(undecided, None)
        if pair is None:
            break
        if sum(_wall_seconds(measured, trial) for trial in pair) > ends - time.monotonic():
            stopped[pair[0]] = "The time budget is spent; run the same command again to add rounds"
            continue
        for result in measure(_next_round(run, pair, planned)):
            if result["status"] != "ok":
                stopped[pair[0]] = f"An added round ended as {result['status']}: {result.get('reason', '')}"
    comparisons = []
    for row, sentence, one, _ in compared:
        why = stopped.get(_first_round(one.trial)) if row["decided"] == _OPEN else None
        comparisons.append({"sentence": f"{sentence}. {why}" if why else sentence, **row})
    return [one.trial for one in measured if one.trial.trial_id not in planned], comparisons


def _first_round(trial: Trial) -> Trial:
    return dataclasses.replace(trial, round=0)


def _next_round(run: RunDirectory, pair: tuple[Trial, Trial], planned: set[str]) -> list[Trial]:
    """Return the first round that at least one side has not finished, in alternating order of the sides."""
    number = 0
    while True:
        sides = [dataclasses.replace(trial, round=number) for trial in pair]
        due = [side for side in sides if finished_result(run.trial(side.trial_id)) is None]
        if due and not any(side.trial_id in planned for side in due):
            return due[:: -1 if number % 2 else 1]
        number += 1


def _wall_seconds(measured: Sequence[LoadedTrial], trial: Trial) -> float:
    rounds = [one for one in measured if _first_round(one.trial) == trial and one.row.get("wall_seconds")]
    return float(max(rounds, key=lambda one: one.trial.round).row["wall_seconds"]) if rounds else math.inf
