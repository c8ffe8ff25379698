"""What a study asks, how it searches, and what is known of its trials: plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bench.tune.space import Value

State = Literal["complete", "pruned", "failed", "running", "waiting"]
ENDED: tuple[State, ...] = ("complete", "pruned", "failed")
SAMPLERS = ("tpe", "random")
PRUNERS = ("median", "none")
EVALUATORS = ("ped-anova", "fanova", "mdi")
"""How importance is computed, by Optuna."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What a study asks; one folder asks one question."""

    task: str
    objective: str
    """Score or loss that decides."""
    maximize: bool
    """Whether more of it is better."""
    space: Mapping[str, str]
    """What is searched, as SearchSpace.texts gives it."""
    training: Mapping[str, Any]
    """The other options of the training that decide its result, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """How trials are chosen; may differ from call to call."""

    sampler: str = "tpe"
    seed: int = 0
    """Seed of what is drawn; with one worker the same seed draws the same trials."""
    startup_trials: int = 10
    """Trials that are drawn at random before tpe takes over."""
    pruner: str = "median"
    prune_after: int = 5
    unpruned_readings: int = 1
    """Readings of the objective that each trial is left."""
    retries: int = 2
    """How often a trial that was killed goes on, before it counts as failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialRow:
    """What is known of a trial."""

    number: int
    """From 0."""
    state: State
    value: float | None
    """Its objective; of a pruned one the last reading."""
    values: Mapping[str, Value]
    """What was searched, by name."""
    readings: tuple[tuple[int, float], ...] = ()
    """(number of the reading from 0, objective) while it trained."""
    reason: str = ""
    words: tuple[str, ...] = ()
    """Options of `bertbench train` that make the same training."""
    killed: int = 0
    same_as: int | None = None
    """The trial with the same values that it took its result from."""


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what a study asked otherwise, in words."""
    found = [
        f"{name} {before.get(name)}, not {now[name]}" for name in ("task", "objective") if before.get(name) != now[name]
    ]
    if found:
        return found
    for what in ("space", "training"):
        old, new = dict(before.get(what) or {}), dict(now[what])
        for name in [*new, *(name for name in old if name not in new)]:
            if old.get(name) != new.get(name):
                shown = [repr(side[name]) if name in side else "nothing" for side in (old, new)]
                found.append(f"{'a search of ' if what == 'space' else ''}{name} {shown[0]}, not {shown[1]}")
    return found
