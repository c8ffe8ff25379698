"""Add rounds to a sweep until the comparison with the reference at the fastest configuration is conclusive.

analysis.metrics.comparison decides this, as in every report. An added round repeats only the two sides of that
comparison, in alternating order, as further trials of the same run directory.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.load import LoadedTrial, load_run
from bench.sweep.sweep import finished_result
from bench.sweep.trials import Sweep
from common.errors import UsageError
from records.run import RunDirectory
from records.trial import Trial

REFERENCE = "hf"
_OPEN = "cannot decide"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The result of the comparison at the fastest configuration of one model."""

    row: Mapping[str, Any]
    """Of runs.ratios_of."""
    sentence: str
    """The ratio with its interval and, if it is not conclusive, the reason and the remedy."""

    @property
    def decided(self) -> bool:
        """Whether more rounds would not change the result."""
        return bool(self.row["decided"] != _OPEN)

    def to_json(self) -> dict[str, Any]:
        """Return the sentence and the row as plain JSON values."""
        return {"sentence": self.sentence, **self.row}


def check_reference(sweep: Sweep) -> None:
    """Refuse a sweep that has nothing to compare with the reference. Raises UsageError."""
    names = set(sweep.implementations)
    if REFERENCE not in names or len(names) < 2:
        raise UsageError(
            "option-not-applicable",
            f"--time-budget needs a comparison with {REFERENCE}, but this sweep runs "
            f"{' '.join(sweep.implementations)}: use --implementations bertbench {REFERENCE}",
        )


def spends(
    trials: Sequence[Trial], seconds: float, clock: Callable[[], float] = lambda: time.monotonic()
) -> Callable[[int], bool]:
    """Return a function that tells whether to skip the trial at a position and the rest of its configuration.

    A configuration is skipped if, by the time of the trials so far, it would not end within `seconds` from now. The
    first configuration is always measured: without it there is nothing to compare.
    """
    groups = [dataclasses.replace(trial, implementation="", levers="") for trial in trials]
    began = clock()
    ran: list[int] = []
    left_out: set[Trial] = set()

    def enough(place: int) -> bool:
        group = groups[place]
        if place and group != groups[place - 1] and ran:
            spent = clock() - began
            if spent + groups.count(group) * spent / len(ran) > seconds:
                left_out.add(group)
        if group not in left_out:
            ran.append(place)
        return group in left_out

    return enough


def add_rounds(
    run: RunDirectory,
    trials: Sequence[Trial],
    measure: Callable[[Sequence[Trial]], Sequence[Mapping[str, Any]]],
    seconds: float,
    clock: Callable[[], float] = lambda: time.monotonic(),
) -> tuple[list[Trial], list[Verdict]]:
    """Measure more rounds until the comparison of every model is conclusive or no round fits into the time left.

    Used inside `locked(run)` once `trials` are finished.

    Args:
        run: the run directory.
        trials: trials of the sweep, with at least one round of every configuration.
        measure: runs trials and returns their results, in order.
        seconds: time left in s; the time of a round is estimated from earlier ones.
        clock: returns the time in s.

    Returns:
        The trials of rounds beyond those of the sweep, and a verdict per model.
    """
    from analysis.run_views import decisions

    ends = clock() + seconds
    family = {_first_round(trial) for trial in trials}
    asked = {trial.trial_id for trial in trials}
    stopped: dict[str, str] = {}
    while True:
        measured = [trial for trial in load_run(run) if _first_round(trial.trial) in family]
        compared = [
            (row, sentence, _first_round(one.trial), _first_round(other.trial))
            for row, sentence, one, other in decisions(measured, REFERENCE)
        ]
        undecided = [
            (one, other)
            for row, _, one, other in compared
            if row["decided"] == _OPEN and row["throughput_ratio"] is not None and one.trial_id not in stopped
        ]
        if not undecided:
            break
        pair = undecided[0]
        due = _next_round(run, pair, asked)
        cost = sum(_wall_seconds(measured, trial) for trial in pair)
        if cost > ends - clock():
            stopped[pair[0].trial_id] = "The time budget is spent; run the same command again to add rounds"
            continue
        failed = [result for result in measure(due) if result["status"] != "ok"]
        if failed:
            reason = f"An added round ended as {failed[0]['status']}: {failed[0].get('reason', '')}"
            stopped[pair[0].trial_id] = reason
    added = [one.trial for one in measured if one.trial.trial_id not in asked]
    verdicts = []
    for row, sentence, one, _ in compared:
        why = stopped.get(one.trial_id) if row["decided"] == _OPEN else None
        verdicts.append(Verdict(row=row, sentence=f"{sentence}. {why}" if why else sentence))
    return added, verdicts


def _first_round(trial: Trial) -> Trial:
    return dataclasses.replace(trial, round=0)


def _next_round(run: RunDirectory, pair: tuple[Trial, Trial], asked: set[str]) -> list[Trial]:
    """Return the first round that at least one side has not finished, in alternating order of the sides."""
    number = 0
    while True:
        sides = [dataclasses.replace(trial, round=number) for trial in pair]
        due = [side for side in sides if finished_result(run.trial(side.trial_id)) is None]
        if due and not any(side.trial_id in asked for side in due):
            return due[:: -1 if number % 2 else 1]
        number += 1


def _wall_seconds(measured: Sequence[LoadedTrial], trial: Trial) -> float:
    rounds = [one for one in measured if _first_round(one.trial) == trial and one.row.get("wall_seconds")]
    return float(max(rounds, key=lambda one: one.trial.round).row["wall_seconds"]) if rounds else math.inf
