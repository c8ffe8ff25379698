"""Time to quality: what each seed of a speedrun needed to reach the target, and whether one speedrun beats another.

A seed has reached the target at its first evaluation at or below it; its training time is that of its steps up to
there. Speedruns are decided by Welch's one-sided t test of the training times; docs/explanation/measurement.md derives
it.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.metrics.comparison.ratio import FEWEST_PROCESSES
from analysis.metrics.comparison.regression import differing
from analysis.metrics.comparison.trainings import FINISHED, NOT_BEGUN, evaluations_of, status_of, steps_made
from analysis.metrics.statistics import CONFIDENCE, mean_interval, student_quantile, student_tail, welch_error
from analysis.metrics.telemetry import energy
from common.errors import InputError
from records.run import TrialDirectory
from records.schema import SPEEDRUN_COLUMNS
from records.speedrun import Speedrun
from records.training import TrainRun, read_events

Row = Mapping[str, Any]

REACHED, NOT_REACHED = "reached", "not reached"
SIGNIFICANCE = 0.01
"""A run is faster or slower where chance alone would show as much less often than this."""
SCORE = "mlm_loss"
"""Score of the evaluations that the target is a value of."""
SUMMARIZED = ("step_seconds", "loop_seconds", "total_seconds", "steps", "samples", "tokens", "samples_per_second",
              "energy_joules", "cost")  # fmt: skip
"""Columns with a mean and an interval over the seeds."""


def has_reached(run: TrainRun, target: float) -> bool:
    """Return whether a run has reached the target. Raises SchemaError: a record is damaged."""
    return _deciding(evaluations_of(run), target) is not None


def _deciding(evaluations: Mapping[int, Row], target: float) -> int | None:
    """Updates made at the first evaluation at or below the target; None if there is none."""
    below = (steps for steps, one in evaluations.items() if one.get(SCORE) is not None and one[SCORE] <= target)
    return next(below, None)


def seed_row(seed: int, run: TrainRun, target: float, price_per_hour: float | None = None) -> dict[str, Any]:
    """Return what a seed needed: SPEEDRUN_COLUMNS, unknown ({column: why it is None}), and `readings`.

    `readings` are the evaluations up to its end, [{steps, step_seconds, mlm_loss}]; the target is a held-out MLM loss
    in nats. Raises SchemaError: a record is damaged.
    """
    row: dict[str, Any] = {**dict.fromkeys(SPEEDRUN_COLUMNS), "seed": seed, "status": NOT_BEGUN, "reason": ""}
    row |= {"unknown": {}, "readings": []}
    attempts, evaluations = run.attempts(), evaluations_of(run)
    if not attempts:
        return row
    end = _deciding(evaluations, target)
    row["attempts"] = len(attempts)
    row["status"], row["reason"] = (REACHED, "") if end is not None else _open_status(run, evaluations, target)
    curve = run.read_curve()
    last = next((entry for entry in curve if entry["applied_steps"] == end), curve[-1] if curve else None)
    if last is None:
        return row
    row |= {"steps": last["applied_steps"], "samples": last["samples"]}
    evaluations = {steps: one for steps, one in evaluations.items() if steps <= last["applied_steps"]}
    row["evaluations"] = len(evaluations)
    row[SCORE] = [*evaluations.values()][-1].get(SCORE) if evaluations else None
    made = {number: entry for number, entry in steps_made(attempts).items() if number <= last["step"]}
    if not made:
        row["unknown"]["step_seconds"] = "no step was timed"
        return row
    steps = [entry for _, entry in made.values()]
    row["step_seconds"] = sum(entry["step_time_ms"] for entry in steps) / 1000
    behind = evaluations.get(last["applied_steps"], {"seconds": 0.0, "time_ns": 0})
    row["loop_seconds"] = max(at for at, _ in made.values()) + float(behind.get("seconds") or 0.0)
    if all(entry["real_tokens"] is not None for entry in steps):
        row["tokens"] = sum(entry["real_tokens"] for entry in steps)
    row["samples_per_second"] = last["samples"] / row["step_seconds"]
    numbers = np.array(sorted(made))
    seconds = np.cumsum([made[number][1]["step_time_ms"] / 1000 for number in numbers])
    step_of = {entry["applied_steps"]: entry["step"] for entry in reversed(curve)}
    for applied, one in evaluations.items():
        place = int(np.searchsorted(numbers, step_of[applied], side="right")) - 1 if applied in step_of else -1
        if place >= 0:
            reading = {"steps": applied, "step_seconds": float(seconds[place]), SCORE: one.get(SCORE)}
            row["readings"].append(reading)
    _add_wall_time(row, attempts, max(*(entry["end_ns"] for entry in steps), int(behind["time_ns"])), price_per_hour)
    _add_energy(row, attempts, last["step"])
    return row


def _open_status(run: TrainRun, evaluations: Mapping[int, Row], target: float) -> tuple[str, str]:
    state = run.read_state() or {}
    status, reason = status_of(state)
    if status != FINISHED:
        return status, reason or "the training has not ended"
    lowest = min((one[SCORE] for one in evaluations.values() if one.get(SCORE) is not None), default=None)
    best = "no evaluation was finite" if lowest is None else f"its lowest evaluation is {lowest:.4f}"
    return NOT_REACHED, f"all {state['total_steps']:,} steps were made, and {best}, above {target:g}"


def _add_wall_time(
    row: dict[str, Any], attempts: Sequence[TrialDirectory], end_ns: int, price_per_hour: float | None
) -> None:
    """Add the time that passed on the wall and what it cost; the first reading of a sensor marks a start."""
    total = 0.0
    for directory in attempts:
        times = [int(one["time_ns"]) for one in directory.read_telemetry() if one["time_ns"] is not None]
        if not times:
            why = f"no sensor was read when attempt {directory.path.name} started"
            row["unknown"] |= {"total_seconds": why, "cost": why}
            return
        if min(times) < end_ns:
            ends = [int(event["time_ns"]) for event in read_events(directory)]
            total += (min(end_ns, max(times + ends)) - min(times)) / 1e9
    row["total_seconds"] = total
    if price_per_hour is None:
        row["unknown"]["cost"] = "no price was given (--price-per-hour)"
    else:
        row["cost"] = price_per_hour / 3600 * total


def _add_energy(row: dict[str, Any], attempts: Sequence[TrialDirectory], last_step: int) -> None:
    """Add the energy of the devices that train: per attempt, from its first step to the last one that counts."""
    total = 0.0
    for directory in attempts:
        made = [entry for number, (_, entry) in steps_made([directory]).items() if number <= last_step]
        if not made:
            continue
        begin, end = min(one["start_ns"] for one in made), max(one["end_ns"] for one in made)
        unavailable = directory.read_environment().get("telemetry_unavailable")
        joules, why = energy(directory.read_telemetry(), begin, end, directory.read_trial().device, unavailable)
        if joules is None:
            row["unknown"]["energy_joules"] = why
            return
        total += joules
    row["energy_joules"] = total


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return seeds, reached, and for each of SUMMARIZED {mean, low, high} over the seeds that reached the target.

    `low` and `high` are Student's 95 % interval of the mean, None below two seeds. Where a seed has not reached the
    target each is None, with the reason under `unknown`.
    """
    reached = [row for row in rows if row["status"] == REACHED]
    result: dict[str, Any] = {"seeds": len(rows), "reached": len(reached), "unknown": {}, **dict.fromkeys(SUMMARIZED)}
    for name in SUMMARIZED:
        values = [row[name] for row in reached if row.get(name) is not None]
        if len(reached) < len(rows) or not reached:
            result["unknown"][name] = f"{len(reached)} of {len(rows)} seeds reached the target"
        elif len(values) < len(reached):
            reasons = (row["unknown"][name] for row in reached if name in (row.get("unknown") or {}))
            result["unknown"][name] = str(next(reasons, "not measured"))
        else:
            ends = dict(zip(("mean", "low", "high"), mean_interval(values), strict=True))
            result[name] = {end: value if math.isfinite(value) else None for end, value in ends.items()}
    return result


def load_speedrun(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a speedrun with rows of its seeds as their folders have them now, and its `summary`.

    A copy of speedrun.json without the folders has the rows that were written. Raises SchemaError: a record is damaged.
    """
    place, target, price = Speedrun(path), float(document["target"]["value"]), document.get("price_per_hour")
    rows = [
        seed_row(row["seed"], place.seed(row["seed"]), target, price)
        if path.is_dir() and place.seed(row["seed"]).path.is_dir()
        else dict(row)
        for row in document["rows"]
    ]
    return {**document, "rows": rows, "summary": summary(rows)}


def compare_speedruns(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Decide whether speedrun B reaches the target in less training time than A, both as `load_speedrun` returns them.

    Keys: verdict (faster, slower, not reached: B's seeds where A's did, or cannot decide), reason, ratios (B's mean /
    A's of the columns of SUMMARIZED that both have), differences, `welch`'s (None where untested), costs_quality (B
    makes more samples/s and yet needs more time), significance.

    Raises:
        InputError: the targets, the training data or the held-out data differ.
    """
    for name in ("target", "fingerprint", "held_out_fingerprint", "held_out_samples"):
        before, now = (side["target"] if name == "target" else side["data"].get(name) for side in (a, b))
        if before != now:
            raise InputError(
                "run-mismatch",
                f"the two speedruns differ in {name} ({_shown(before)} and {_shown(now)}): compare runs with the same "
                "target, training data and held-out data",
            )
    timed = [[row for row in side["rows"] if row["status"] == REACHED] for side in (a, b)]
    times = [[float(row["step_seconds"]) for row in side if row.get("step_seconds") is not None] for side in timed]
    means = [{name: side["summary"][name]["mean"] for name in SUMMARIZED if side["summary"][name]} for side in (a, b)]
    ratios = {name: means[1][name] / mean for name, mean in means[0].items() if mean and name in means[1]}
    settings = [{name: _shown(value) for group in ("machine", "settings") for name, value in side[group].items()}
                for side in (a, b)]  # fmt: skip
    reached = [bool(side["rows"]) and all(row["status"] == REACHED for row in side["rows"]) for side in (a, b)]
    verdict, reason = "cannot decide", _undecidable(a, b, times)
    test: dict[str, Any] = dict.fromkeys(("saved_seconds", "saved_low", "saved_high", "p_faster", "p_slower"))
    if all(reached) and min(map(len, times)) > 1:
        test = welch(*times)
        if not reason:
            least = min(test["p_faster"], test["p_slower"])
            decided = least < SIGNIFICANCE
            verdict = ("faster" if test["p_faster"] == least else "slower") if decided else verdict
            reason = f"one-sided Welch t test of the training times: p = {least:.2g}, "
            reason += f"below {SIGNIFICANCE:g}" if decided else f"not below {SIGNIFICANCE:g}; add seeds"
    elif reached[0] and {row["status"] for row in b["rows"]} in ({REACHED, NOT_REACHED}, {NOT_REACHED}):
        verdict = "not reached"
    costs = ratios.get("samples_per_second", 1.0) > 1.0 and ratios.get("step_seconds", 1.0) > 1.0
    found = {"verdict": verdict, "reason": reason, "ratios": ratios, "differences": differing(settings, "not set")}
    return {**found, **test, "costs_quality": costs, "significance": SIGNIFICANCE}


def _undecidable(a: Mapping[str, Any], b: Mapping[str, Any], times: Sequence[Sequence[float]]) -> str:
    """Return why these seeds decide nothing; "" where they do."""
    for name, side in (("A", a), ("B", b)):
        missing = [f"seed {row['seed']} {row['status']}" for row in side["rows"] if row["status"] != REACHED]
        if missing or not side["rows"]:
            return f"{name} is not a record, which needs every seed to reach the target: {', '.join(missing)}"
    for name, known in zip("AB", times, strict=True):
        if len(known) < FEWEST_PROCESSES:
            return f"{name} has {len(known)} seed(s): train at least {FEWEST_PROCESSES} on each side"
    return ""


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name} {_shown(item)}" for name, item in value.items())
    return "not set" if value in (None, "") else str(value)


def welch(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """Return Welch's one-sided t tests of two samples of training times, each of at least two values.

    Keys: saved_seconds (first mean - second), saved_low, saved_high (95 %), p_faster (probability of times as far apart
    if the second were not faster), p_slower (if it were not slower).
    """
    difference = float(np.mean(first) - np.mean(second))
    error, degrees = welch_error((first, second))
    margin = student_quantile(CONFIDENCE, degrees) * error if error else 0.0
    if error:
        above = student_tail(difference / error, degrees)
    else:  # values without any spread: whatever differs is no chance
        above = 0.5 if difference == 0.0 else float(difference < 0.0)
    ends = {"saved_low": difference - margin, "saved_high": difference + margin}
    return {"saved_seconds": difference, **ends, "p_faster": above, "p_slower": 1.0 - above}
