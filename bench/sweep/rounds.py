"""Run a sweep in a given time, with rounds added until its comparison with the reference is conclusive.

analysis.metrics.comparison decides this, as in every report. An added round repeats only the two sides of that
comparison, in alternating order, as further trials of the same run directory.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from analysis.load import load_run
from bench.sweep.sweep import Session, finished_result, record_request, run_trials
from records.run import RunDirectory
from records.trial import Trial

REFERENCE = "hf"
_OPEN = "cannot decide"


class Decided(NamedTuple):
    """What ran, and how it compares."""

    trials: list[Trial]
    """Those of the sweep and of added rounds, earlier calls included."""
    results: list[dict[str, Any]]
    left_out: int
    """Trials of configurations that did not fit into the time."""
    comparisons: list[dict[str, Any]]
    """Per model, at its fastest configuration: the columns of runs.ratios_of, and `sentence`, with the reason why it
    stays open."""


def run_until_decided(session: Session, trials: Sequence[Trial], seconds: float) -> Decided:
    """Run trials, then more rounds until the comparison of every model is conclusive or the time is spent.

    No configuration but the first begins after that time, and no added round that would take longer, as its sides did.
    """
    from analysis.run_views import decisions

    run, ends, rounds = session.run, time.monotonic() + seconds, max(trial.round for trial in trials) + 1
    results, added = run_trials(session, trials, _skips(trials, ends)), list[dict[str, Any]]()
    family = {_first_round(trial) for trial in trials}
    while True:
        measured = [trial for trial in load_run(run) if _first_round(trial.trial) in family]
        compared = list(decisions(measured, REFERENCE))
        undecided = [
            (one, other)
            for row, _, one, other in compared
            if row["decided"] == _OPEN and row["throughput_ratio"] is not None
        ]
        failed = next((result for result in added if result["status"] != "ok"), None)
        if not undecided or failed:
            break
        pair = undecided[0]
        if time.monotonic() + sum(float(side.row["wall_seconds"]) for side in pair) > ends:
            break
        added += run_trials(session, _next_round(run, [_first_round(side.trial) for side in pair], rounds))
    why = ". The time budget is spent; run the same command again to add rounds"
    if failed:
        why = f". An added round ended as {failed['status']}: {failed.get('reason', '')}"
    every = [*trials, *(one.trial for one in measured if one.trial.round >= rounds)]
    record_request(run, every, session.request)
    comparisons = [
        {"sentence": sentence + why * (row["decided"] == _OPEN and bool(undecided)), **row}
        for row, sentence, _, _ in compared
    ]
    return Decided(every, [*results, *added], len(trials) - len(results), comparisons)


def _skips(trials: Sequence[Trial], ends: float) -> Callable[[int], bool]:
    """Return a function that tells whether to skip the trial at a position: its configuration begins after `ends`."""
    groups = [dataclasses.replace(trial, implementation="", levers="") for trial in trials]
    late = False

    def skip(place: int) -> bool:
        nonlocal late
        if place and groups[place] != groups[place - 1]:
            late = time.monotonic() >= ends
        return late

    return skip


def _first_round(trial: Trial) -> Trial:
    return dataclasses.replace(trial, round=0)


def _next_round(run: RunDirectory, pair: Sequence[Trial], first: int) -> list[Trial]:
    """Return the first added round that a side has not finished, in alternating order of the sides."""
    for number in itertools.count(first):
        sides = [dataclasses.replace(trial, round=number) for trial in pair]
        if due := [side for side in sides if finished_result(run.trial(side.trial_id)) is None]:
            return due[:: -1 if number % 2 else 1]
    raise AssertionError
