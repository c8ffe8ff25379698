"""Several trainings of one task: what each needed, and a summary of each variant over its seeds.

A run's time is that of its loop, without steps that were made again. A step takes as long as its slowest rank does.
With a target, a training ends at its first evaluation at or below it.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.metrics.comparison.ratio import Ratio, decision, ratio_columns, ratio_interval
from analysis.metrics.statistics import mean_interval
from analysis.metrics.telemetry import energy
from analysis.metrics.throughput import combine
from common.scores import scores_in
from records.documents import TrainState
from records.run import TrialDirectory
from records.schema import TRAINING_COLUMNS
from records.training import TrainRun, read_events

Array = npt.NDArray[np.float64]
Row = Mapping[str, Any]
Steps = dict[int, tuple[float, dict[str, Any]]]

# Of a training that is whole; others have the status of their last attempt.
FINISHED, STOPPED, NOT_BEGUN = "finished", "stopped", "not begun"
REACHED, NOT_REACHED = "reached", "not reached"
WHOLE = (FINISHED, REACHED)
SCORE = "mlm_loss"
"""Score of the evaluations that a target is a value of."""
SUMMARIZED = ("step_seconds", "total_seconds", "steps", "samples", "tokens", "samples_per_second",
              "last_loss", "energy_joules", "cost")  # fmt: skip
"""Columns with a mean and an interval over the seeds, besides the scores."""
_OF_FIRST_SEED = ("best_score", "best_value", "peak_memory_bytes", "communication_exposed_share", "all_reduce_share")


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """One training of several, where it lies."""

    run: TrainRun
    variant: str
    """What tables call the options that it was trained with."""
    seed: int | None = None
    profile: Row = field(default_factory=dict)
    """Columns of exposure.all_reduce, or `profile_problem`; empty where no profile was wanted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """A training and its steps, a value per step up to its end."""

    row: dict[str, Any]
    """TRAINING_COLUMNS, score_NAME of its last evaluation, `readings` (its evaluations: steps, step_seconds and
    `scores`), `cautions`, and `unknown` ({column: why it is None})."""
    steps: Sequence[int] = ()
    seconds: Array = field(default_factory=lambda: np.zeros(0))
    """In the loop, at the end of the step; NaN where the step has no time."""
    loss: Array = field(default_factory=lambda: np.zeros(0))
    """Training loss; NaN where it was not finite."""


def courses_of(
    trainings: Sequence[Training],
    target: float | None = None,
    price_per_hour: float | None = None,
    samples_per_epoch: int | None = None,
) -> list[Course]:
    """Return what each training needed, compared with the first variant's of the same seed that made steps.

    Args:
        trainings: in the order of the table.
        target: held-out MLM loss in nats that ends a training; None for all steps.
        price_per_hour: price of the machine; None for no cost.
        samples_per_epoch: None where the training data are without end.

    Raises:
        SchemaError: a record is damaged.
    """
    courses = [_course(one, target, price_per_hour, samples_per_epoch) for one in trainings]
    first: dict[int | None, Course] = {}
    for course in courses:
        if len(course.steps):
            course.row.update(_against(course, first.setdefault(course.row["seed"], course)))
    return courses


def _course(
    training: Training, target: float | None, price_per_hour: float | None, samples_per_epoch: int | None
) -> Course:
    run, attempts = training.run, training.run.attempts()
    row: dict[str, Any] = {**dict.fromkeys(TRAINING_COLUMNS), "variant": training.variant, "seed": training.seed}
    row["folder"] = run.path.name
    row |= {"status": NOT_BEGUN, "reason": "", "readings": [], "cautions": [], "unknown": {}}
    row |= {name: value for name, value in training.profile.items() if name in row}
    if not attempts:
        return Course(row=row)
    evaluations = evaluations_of(run)
    end = None if target is None else _deciding(evaluations, target)
    state = run.read_state()
    row |= _settings(attempts) | _status(state, evaluations, end, target)
    if state.best:
        row |= {"best_score": state.best.score, "best_value": state.best.value}
    curve = run.read_curve()
    place = next((at for at, entry in enumerate(curve) if entry["applied_steps"] == end), len(curve) - 1)
    curve = curve[: place + 1]
    if not curve:
        return Course(row=row)
    last = curve[-1]
    row |= {"steps": last["applied_steps"], "samples": last["samples"], "last_loss": _finite(last["loss"])}
    row["epochs"] = last["samples"] / samples_per_epoch if samples_per_epoch else None
    evaluations = {steps: one for steps, one in evaluations.items() if steps <= last["applied_steps"]}
    row["evaluations"] = len(evaluations)
    for evaluation in [*evaluations.values()][-1:]:
        row |= {f"score_{name}": value for name, value in scores_in(evaluation).items()}
    made = {step: entry for step, entry in _steps_made(attempts).items() if step <= last["step"]}
    course = Course(
        row=row,
        steps=[entry["step"] for entry in curve],
        seconds=np.array([made[entry["step"]][0] if entry["step"] in made else math.nan for entry in curve]),
        loss=np.array([_finite(entry["loss"]) for entry in curve], dtype=float),
    )
    if not made:
        row["unknown"]["step_seconds"] = "no step was timed"
        return course
    rows = [entry for _, entry in made.values()]
    row["step_seconds"] = sum(entry["step_time_ms"] for entry in rows) / 1000
    row["step_time_ms"] = float(np.median([entry["step_time_ms"] for entry in rows]))
    counts = np.diff([0, *(entry["samples"] for entry in curve)]).tolist()
    timed = sum(count for entry, count in zip(curve, counts, strict=True) if entry["step"] in made)
    row["samples_per_second"] = timed / row["step_seconds"]
    row["epoch_seconds"] = samples_per_epoch / row["samples_per_second"] if samples_per_epoch else None
    if all(entry["real_tokens"] is not None for entry in rows):
        row["tokens"] = sum(entry["real_tokens"] for entry in rows)
    row["readings"] = _readings(evaluations, curve, made)
    unknown = row["unknown"]
    end_ns = max(*(entry["end_ns"] for entry in rows), evaluations.get(last["applied_steps"], {}).get("time_ns", 0))
    row["total_seconds"] = _wall_seconds(attempts, end_ns, unknown)
    row["energy_joules"] = _energy(attempts, last["step"], unknown)
    if "total_seconds" in unknown:
        unknown["cost"] = unknown["total_seconds"]
    elif price_per_hour is None:
        unknown["cost"] = "no price was given (--price-per-hour)"
    else:
        row["cost"] = price_per_hour / 3600 * row["total_seconds"]
    return course


def _settings(attempts: Sequence[TrialDirectory]) -> dict[str, Any]:
    """Return the columns about how a training was run, and its cautions."""
    newest = attempts[-1]
    trial = newest.read_trial()
    names = ("implementation", "strategy", "device", "precision", "global_batch_size", "micro_batch_size",
             "grad_accum_steps")  # fmt: skip
    row: dict[str, Any] = {name: getattr(trial, name) for name in names}
    row |= {"devices": trial.world_size * trial.devices_per_rank, "attempts": len(attempts)}
    row["total_steps"] = dict(trial.training).get("steps") or trial.max_steps
    records = next(([*by_rank.values()] for one in reversed(attempts) if (by_rank := one.read_ranks())), [])
    for name in ("peak_memory_bytes", "peak_memory_kind", "backend"):
        row[name] = max((record[name] for record in records if record.get(name) is not None), default=None)
    cautions = [one for attempt in attempts for one in (attempt.read_result() or {}).get("cautions") or []]
    return row | {"cautions": [*{one.get("code"): one for one in cautions}.values()]}


def _status(state: TrainState, evaluations: Mapping[int, Row], end: int | None, target: float | None) -> dict[str, str]:
    if end is not None:
        return {"status": REACHED, "reason": ""}
    if not state.finished:
        return {"status": STOPPED if state.status == "ok" else state.status, "reason": state.reason or ""}
    if target is None:
        return {"status": FINISHED, "reason": ""}
    losses = [one[SCORE] for one in evaluations.values() if one.get(SCORE) is not None]
    lowest = f"its lowest evaluation is {min(losses):.4f}" if losses else "no evaluation was finite"
    reason = f"all {state.total_steps:,} steps were made, and {lowest}, above {target:g}"
    return {"status": NOT_REACHED, "reason": reason}


def _readings(evaluations: Mapping[int, Row], curve: Sequence[Row], made: Steps) -> list[dict[str, Any]]:
    ordered = sorted(made)
    ends = accumulate(made[step][1]["step_time_ms"] / 1000 for step in ordered)
    seconds = dict(zip(ordered, ends, strict=True))
    step_of = {entry["applied_steps"]: entry["step"] for entry in reversed(curve)}
    return [
        {"steps": applied, "step_seconds": seconds[step_of[applied]], "scores": scores_in(one)}
        for applied, one in evaluations.items()
        if step_of.get(applied) in seconds
    ]


def _steps_made(attempts: Sequence[TrialDirectory]) -> Steps:
    """Return by step when it ended, in seconds of the loop, and its row of `combine`; the last time it was made."""
    made: Steps = {}
    for directory in attempts:
        steps = combine({rank: directory.read_steps(rank) for rank in directory.ranks()})
        steps = [row for row in steps if row["start_ns"] is not None]
        if not steps:
            continue
        made = {step: times for step, times in made.items() if step < steps[0]["step"]}
        before = max((seconds for seconds, _ in made.values()), default=0.0)
        made |= {row["step"]: (before + (row["end_ns"] - steps[0]["start_ns"]) / 1e9, row) for row in steps}
    return made


def _against(course: Course, first: Course) -> dict[str, Any]:
    row, before = course.row, first.row
    _, here, there = np.intersect1d(course.steps, first.steps, return_indices=True)
    differences = np.abs(course.loss[here] - first.loss[there])
    finite = differences[np.isfinite(differences)].tolist()
    columns: dict[str, Any] = {"greatest_loss_difference": max(finite, default=None)}
    if row["samples_per_second"] and before["samples_per_second"]:
        columns["speedup"] = row["samples_per_second"] / before["samples_per_second"]
        if row["samples"] == before["samples"]:
            columns["time_saved"] = (before["step_seconds"] - row["step_seconds"]) / before["step_seconds"]
    return columns


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def evaluations_of(run: TrainRun) -> dict[int, dict[str, Any]]:
    """Return the events of a run's evaluations by updates made, without those of updates that were made again."""
    made: dict[int, dict[str, Any]] = {}
    for event in (one for directory in run.attempts() for one in read_events(directory)):
        if event["event"] == "evaluated":
            made[event["applied_steps"]] = event
        elif event["event"] == "resumed" and not event["new_phase"]:
            made = {steps: one for steps, one in made.items() if steps <= event["applied_steps"]}
    return dict(sorted(made.items()))


def has_reached(run: TrainRun, target: float) -> bool:
    """Return whether a run has reached the target. Raises SchemaError: a record is damaged."""
    return _deciding(evaluations_of(run), target) is not None


def _deciding(evaluations: Mapping[int, Row], target: float) -> int | None:
    """Updates made at the first evaluation at or below the target; None if there is none."""
    below = (steps for steps, one in evaluations.items() if one.get(SCORE) is not None and one[SCORE] <= target)
    return next(below, None)


def _wall_seconds(attempts: Sequence[TrialDirectory], end_ns: int, unknown: dict[str, str]) -> float | None:
    """Return the time of all attempts; the first reading of a sensor marks the start of one."""
    total = 0.0
    for directory in attempts:
        times = [int(one["time_ns"]) for one in directory.read_telemetry() if one["time_ns"] is not None]
        if not times:
            unknown["total_seconds"] = f"no sensor was read when attempt {directory.path.name} started"
            return None
        if min(times) < end_ns:
            ends = [int(event["time_ns"]) for event in read_events(directory)]
            total += (min(end_ns, max(times + ends)) - min(times)) / 1e9
    return total


def _energy(attempts: Sequence[TrialDirectory], last_step: int, unknown: dict[str, str]) -> float | None:
    """Return the energy of the devices that train: per attempt, from its first step to the last one that counts."""
    total = 0.0
    for directory in attempts:
        made = [entry for number, (_, entry) in _steps_made([directory]).items() if number <= last_step]
        if made:
            begin, end = min(one["start_ns"] for one in made), max(one["end_ns"] for one in made)
            unavailable = directory.read_environment().get("telemetry_unavailable")
            joules, why = energy(directory.read_telemetry(), begin, end, directory.read_trial().device, unavailable)
            if joules is None:
                unknown["energy_joules"] = why
                return None
            total += joules
    return total


def summaries(rows: Sequence[Row], target: float | None = None) -> list[dict[str, Any]]:
    """Return a row per variant: the means over its seeds, and how fast it is relative to the first variant.

    Columns: variant, seeds, whole (seeds that finished or reached the target), and of SUMMARIZED and each score_NAME
    the mean with _low and _high, Student's 95 % interval (None below two seeds); where a seed is not whole each is
    None. speedup: time of the first variant / own, to the target or per sample, with
    _low and _high, decided and why (ratio.decision, a seed being a round). best_value, peak_memory_bytes
    and shares of communication are those of the first seed.
    """
    found: list[dict[str, Any]] = []
    sides = _by_variant(rows)
    first = next(iter(sides.values()), [])
    for variant, group in sides.items():
        whole = [row for row in group if row["status"] in WHOLE]
        row: dict[str, Any] = {"variant": variant, "seeds": len(group), "whole": len(whole)}
        row |= {name: group[0].get(name) for name in _OF_FIRST_SEED}
        for name in (*SUMMARIZED, *score_columns(group)):
            row |= _mean(name, whole, len(group))
        row |= {**ratio_columns("speedup", None), "decided": None, "why": None}
        if ratio := _ratio(group, first, target):
            row["speedup"] = ratio.value
            if group is not first:
                row |= ratio_columns("speedup", ratio)
                row["decided"], row["why"] = decision(len(first), len(group), ratio, None, "seed")
        found.append(row)
    return found


def _by_variant(rows: Sequence[Row]) -> dict[str, list[Row]]:
    sides: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        sides[row["variant"]].append(row)
    return sides


def score_columns(rows: Sequence[Row]) -> list[str]:
    """Return the names of the columns of scores that rows of trainings have."""
    names = (name for row in rows for name in row if name.startswith("score_"))
    return [name for name in dict.fromkeys(names) if not name.endswith(("_low", "_high"))]


def _mean(name: str, whole: Sequence[Row], seeds: int) -> dict[str, Any]:
    """Return NAME, NAME_low and NAME_high over the seeds; None unless all of them are whole and have it."""
    known = [row[name] for row in whole if row.get(name) is not None]
    mean = mean_interval(known if len(known) == seeds else ())
    return {key: _finite(value) for key, value in zip(ratio_columns(name, None), mean, strict=True)}


def _ratio(before: Sequence[Row], after: Sequence[Row], target: float | None) -> Ratio | None:
    """Return the ratio of the times, after / before, to the target or per sample; None if a training is not whole."""
    sides: list[Sequence[Array]] = []
    for side in (before, after):
        times = [row.get("step_seconds") for row in side]
        if target is None:
            times = [1 / rate if (rate := row.get("samples_per_second")) else None for row in side]
        if not times or None in times or any(row["status"] not in WHOLE for row in side):
            return None
        sides.append([np.array([time]) for time in times])
    return ratio_interval(sides[0], sides[1])
