"""Time to quality: what each seed of a speedrun needed to reach the target, and whether one speedrun beats another.

A seed has reached the target at its first evaluation at or below it; nothing is interpolated between evaluations. Its
training time is that of its steps up to there. A speedrun is decided against another by Welch's one-sided t test of
the training times (Welch 1947, "The generalization of Student's problem when several different population variances
are involved", Biometrika 34); docs/explanation/measurement.md derives every number.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.metrics.comparison.ratio import FEWEST_PROCESSES
from analysis.metrics.comparison.trainings import steps_made
from analysis.metrics.statistics import CONFIDENCE, mean_interval, student_quantile, student_tail
from analysis.metrics.telemetry import energy
from common.errors import InputError
from records.run import TrialDirectory
from records.schema import SPEEDRUN_COLUMNS
from records.speedrun import Speedrun
from records.training import TrainRun, read_events

Row = Mapping[str, Any]

REACHED, NOT_REACHED, NOT_BEGUN = "reached", "not reached", "not begun"
SIGNIFICANCE = 0.01
"""A run is faster or slower where chance alone would show as much less often than this."""
SCORE = "mlm_loss"
"""Score of the evaluations that the target is a value of."""
SUMMARIZED = ("step_seconds", "loop_seconds", "total_seconds", "steps", "samples", "tokens", "samples_per_second",
              "energy_joules", "cost")  # fmt: skip
"""Columns with a mean and an interval over the seeds."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One evaluation of a run."""

    applied_steps: int
    loss: float | None
    """Held-out MLM loss in nats; None if it was not finite."""
    seconds: float
    """Time it took."""
    time_ns: int
    """Unix time at its end."""


def readings(run: TrainRun) -> list[Reading]:
    """Return the evaluations of a run by updates made; one that was made again after a resume counts once.

    Raises:
        SchemaError: a record is damaged.
    """
    found = {
        event["applied_steps"]: Reading(
            event["applied_steps"], event.get(SCORE), float(event.get("seconds") or 0.0), int(event["time_ns"])
        )
        for directory in run.attempts()
        for event in read_events(directory)
        if event["event"] == "evaluated"
    }
    return [found[steps] for steps in sorted(found)]


def deciding(found: Sequence[Reading], target: float) -> Reading | None:
    """Return the first evaluation at or below the target; None if there is none."""
    return next((one for one in found if one.loss is not None and one.loss <= target), None)


def has_reached(run: TrainRun, target: float) -> bool:
    """Return whether a run has reached the target. Raises SchemaError: a record is damaged."""
    return deciding(readings(run), target) is not None


def seed_row(seed: int, run: TrainRun, target: float, price_per_hour: float | None = None) -> dict[str, Any]:
    """Return what a seed needed: SPEEDRUN_COLUMNS, unknown ({column: why it is None}), and `readings`.

    `readings` are the evaluations up to its end, [{steps, step_seconds, mlm_loss}].

    Args:
        seed: its number.
        run: its training; it may not have begun.
        target: held-out MLM loss in nats.
        price_per_hour: price of the machine.

    Raises:
        SchemaError: a record is damaged.
    """
    row: dict[str, Any] = {**dict.fromkeys(SPEEDRUN_COLUMNS), "seed": seed, "status": NOT_BEGUN, "reason": ""}
    row["unknown"] = unknown = {}
    row["readings"] = []
    attempts, evaluated = run.attempts(), readings(run)
    end = deciding(evaluated, target)
    if not attempts:
        return row
    row["attempts"] = len(attempts)
    row["status"], row["reason"] = _status(run, end, evaluated, target)
    curve = run.read_curve()
    last = next((entry for entry in curve if end is not None and entry["applied_steps"] == end.applied_steps), None)
    last = last or (curve[-1] if curve else None)
    if last is None:
        return row
    row |= {"steps": last["applied_steps"], "samples": last["samples"]}
    evaluated = [one for one in evaluated if one.applied_steps <= last["applied_steps"]]
    row["evaluations"] = len(evaluated)
    row[SCORE] = evaluated[-1].loss if evaluated else None
    steps = {number: found for number, found in steps_made(attempts).items() if number <= last["step"]}
    if not steps:
        unknown["step_seconds"] = "no step was timed"
        return row
    row["step_seconds"] = sum(entry["step_time_ms"] for _, entry in steps.values()) / 1000
    behind = evaluated[-1] if evaluated and evaluated[-1].applied_steps == last["applied_steps"] else None
    row["loop_seconds"] = max(at for at, _ in steps.values()) + (0.0 if behind is None else behind.seconds)
    if all(entry["real_tokens"] is not None for _, entry in steps.values()):
        row["tokens"] = sum(entry["real_tokens"] for _, entry in steps.values())
    row["samples_per_second"] = last["samples"] / row["step_seconds"]
    row["readings"] = _course(evaluated, curve, steps)
    stop_ns = max(entry["end_ns"] for _, entry in steps.values())
    _add_wall_time(row, attempts, max(stop_ns, 0 if behind is None else behind.time_ns), price_per_hour)
    _add_energy(row, attempts, last["step"])
    return row


def _course(
    evaluated: Sequence[Reading], curve: Sequence[Row], steps: Mapping[int, tuple[float, Row]]
) -> list[dict[str, Any]]:
    numbers = np.array(sorted(steps))
    seconds = np.cumsum([steps[number][1]["step_time_ms"] / 1000 for number in numbers])
    found = []
    for one in evaluated:
        made = next((entry["step"] for entry in curve if entry["applied_steps"] == one.applied_steps), None)
        place = -1 if made is None else int(np.searchsorted(numbers, made, side="right")) - 1
        if place >= 0:
            at = {"steps": one.applied_steps, "step_seconds": float(seconds[place]), SCORE: one.loss}
            found.append(at)
    return found


def _status(run: TrainRun, end: Reading | None, evaluated: Sequence[Reading], target: float) -> tuple[str, str]:
    if end is not None:
        return REACHED, ""
    state = run.read_state() or {}
    if state.get("finished"):
        lowest = min((one.loss for one in evaluated if one.loss is not None), default=None)
        best = "no evaluation was finite" if lowest is None else f"its lowest evaluation is {lowest:.4f}"
        return NOT_REACHED, f"all {state['total_steps']:,} steps were made, and {best}, above {target:g}"
    status = str(state.get("status", "interrupted"))
    return ("stopped" if status == "ok" else status), str(state.get("reason") or "the training has not ended")


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
            total += (min(end_ns, max(times + _ends(directory))) - min(times)) / 1e9
    row["total_seconds"] = total
    if price_per_hour is None:
        row["unknown"]["cost"] = "no price was given (--price-per-hour)"
    else:
        row["cost"] = price_per_hour / 3600 * total


def _ends(directory: TrialDirectory) -> list[int]:
    return [int(event["time_ns"]) for event in read_events(directory)]


def _add_energy(row: dict[str, Any], attempts: Sequence[TrialDirectory], last_step: int) -> None:
    """Add the energy of the devices that train: per attempt, from its first step to the last one that counts."""
    total = 0.0
    for directory in attempts:
        made = [found for number, found in steps_made([directory]).items() if number <= last_step]
        if not made:
            continue
        begin, end = min(one["start_ns"] for _, one in made), max(one["end_ns"] for _, one in made)
        unavailable = directory.read_environment().get("telemetry_unavailable")
        used = energy(directory.read_telemetry(), begin, end, directory.read_trial().device, unavailable)
        if used.joules is None:
            row["unknown"]["energy_joules"] = used.reason or "not measured"
            return
        total += used.joules
    row["energy_joules"] = total


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return seeds, reached, and for each of SUMMARIZED {mean, low, high} over the seeds that reached the target.

    `low` and `high` are the 95 % interval of the mean by Student's t; None with fewer than two seeds. Where a seed has
    not reached the target, its time is not known to be of any size, so that no mean says what the run needs: each is
    None, with the reason under `unknown`.
    """
    reached = [row for row in rows if row["status"] == REACHED]
    found: dict[str, Any] = {"seeds": len(rows), "reached": len(reached), "unknown": {}}
    for name in SUMMARIZED:
        values = [row[name] for row in reached if row.get(name) is not None]
        if len(reached) < len(rows) or not reached:
            found[name] = None
            found["unknown"][name] = f"{len(reached)} of {len(rows)} seeds reached the target"
        elif len(values) < len(reached):
            found[name] = None
            found["unknown"][name] = next(
                (str(row["unknown"][name]) for row in reached if name in (row.get("unknown") or {})), "not measured"
            )
        else:
            mean, low, high = mean_interval(values)
            found[name] = {"mean": mean, **{end: _known(value) for end, value in (("low", low), ("high", high))}}
    return found


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def load_speedrun(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a speedrun's document with rows of its seeds as they are now, and its `summary`.

    Where the folders of the seeds are there, the rows are computed from their records; a copy of speedrun.json has the
    rows that were written.

    Args:
        path: the folder, or the file.
        document: what records.speedrun.read_speedrun returned for it.

    Raises:
        SchemaError: a record is damaged.
    """
    place, rows = Speedrun(path), [dict(row) for row in document["rows"]]
    if path.is_dir():
        target, price = float(document["target"]["value"]), document.get("price_per_hour")
        rows = [
            seed_row(row["seed"], place.seed(row["seed"]), target, price)
            if place.seed(row["seed"]).path.is_dir()
            else row
            for row in rows
        ]
    return {**document, "rows": rows, "summary": summary(rows)}


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedrunComparison:
    """Speedrun B compared with speedrun A."""

    verdict: str
    """faster, slower, not reached (B's seeds, where A's did), or cannot decide."""
    reason: str
    ratios: Mapping[str, float]
    """B's mean / A's mean, of the columns of SUMMARIZED that both have."""
    saved_seconds: float | None
    """A's mean training time less B's, s."""
    saved_low: float | None
    """Lower end of its 95 % interval by Welch's t."""
    saved_high: float | None
    p_faster: float | None
    """Probability of times as far apart if B were not faster than A."""
    p_slower: float | None
    """The same if B were not slower."""
    differences: tuple[str, ...]
    """Settings, machine and versions that differ, as text."""

    @property
    def costs_quality(self) -> bool:
        """Whether B makes more samples/s and yet needs more time."""
        return self.ratios.get("samples_per_second", 1.0) > 1.0 and self.ratios.get("step_seconds", 1.0) > 1.0


def compare_speedruns(a: Mapping[str, Any], b: Mapping[str, Any]) -> SpeedrunComparison:
    """Decide whether B reaches the target in less training time than A.

    Args:
        a: the record so far, of `load_speedrun`.
        b: the run that may be the new record.

    Raises:
        InputError: the targets, the training data or the held-out data differ.
    """
    _check_same_question(a, b)
    times = [_times(document) for document in (a, b)]
    ratios = {
        name: b["summary"][name]["mean"] / a["summary"][name]["mean"]
        for name in SUMMARIZED
        if a["summary"][name] and b["summary"][name] and a["summary"][name]["mean"]
    }
    decided: dict[str, Any] = {"verdict": "cannot decide", "p_faster": None, "p_slower": None}
    saved: tuple[float | None, ...] = (None, None, None)
    reason = _undecidable(a, b)
    if reason is None or (min(map(len, times)) > 1 and _all_reached(a) and _all_reached(b)):
        test = welch(*times)
        saved = (test.difference, test.low, test.high)
        decided |= {"p_faster": test.p_above, "p_slower": test.p_below}
        if reason is None:
            decided["verdict"], reason = _verdict(test)
    elif _all_reached(a) and _ended(b):
        decided["verdict"] = "not reached"
    return SpeedrunComparison(
        **decided, reason=reason or "", ratios=ratios, saved_seconds=saved[0], saved_low=saved[1], saved_high=saved[2],
        differences=tuple(_differences(a, b)),
    )  # fmt: skip


def as_mapping(found: SpeedrunComparison) -> dict[str, Any]:
    """Return a comparison as plain JSON values."""
    names = ("verdict", "reason", "saved_seconds", "saved_low", "saved_high", "p_faster", "p_slower", "costs_quality")
    values = {name: getattr(found, name) for name in names}
    return {
        **values, "significance": SIGNIFICANCE, "ratios": dict(found.ratios), "differences": list(found.differences)
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Welch:
    """Welch's test of two means."""

    difference: float
    """Mean of the first less that of the second."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    p_above: float
    """One-sided: the difference is not above 0."""
    p_below: float
    """One-sided: the difference is not below 0."""


def welch(first: Sequence[float], second: Sequence[float]) -> Welch:
    """Return Welch's one-sided t tests of two samples, each of at least two values."""
    sides = [np.asarray(side, dtype=np.float64) for side in (first, second)]
    parts = [float(side.var(ddof=1)) / len(side) for side in sides]
    difference = float(sides[0].mean() - sides[1].mean())
    error = math.sqrt(sum(parts))
    if error == 0.0:  # values without any spread: whatever differs is no chance
        above = 0.5 if difference == 0.0 else float(difference < 0.0)
        return Welch(difference, difference, difference, above, 1.0 - above)
    degrees = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, sides, strict=True))
    margin = student_quantile(CONFIDENCE, degrees) * error
    above = student_tail(difference / error, degrees)
    return Welch(difference, difference - margin, difference + margin, above, 1.0 - above)


def _verdict(test: Welch) -> tuple[str, str]:
    for verdict, chance in (("faster", test.p_above), ("slower", test.p_below)):
        if chance < SIGNIFICANCE:
            return verdict, f"one-sided Welch t test of the training times: p = {chance:.2g}, below {SIGNIFICANCE:g}"
    least = min(test.p_above, test.p_below)
    return "cannot decide", (
        f"one-sided Welch t test of the training times: p = {least:.2g}, not below {SIGNIFICANCE:g}; add seeds"
    )


def _times(document: Mapping[str, Any]) -> list[float]:
    found = (row.get("step_seconds") for row in document["rows"] if row["status"] == REACHED)
    return [float(seconds) for seconds in found if seconds is not None]


def _all_reached(document: Mapping[str, Any]) -> bool:
    return bool(document["rows"]) and all(row["status"] == REACHED for row in document["rows"])


def _ended(document: Mapping[str, Any]) -> bool:
    return {row["status"] for row in document["rows"]} in ({REACHED, NOT_REACHED}, {NOT_REACHED})


def _undecidable(a: Mapping[str, Any], b: Mapping[str, Any]) -> str | None:
    """Return why these seeds decide nothing; None where they do."""
    for name, document in (("A", a), ("B", b)):
        rows = document["rows"]
        missing = [f"seed {row['seed']} {row['status']}" for row in rows if row["status"] != REACHED]
        if missing or not rows:
            return f"{name} is not a record, which needs every seed to reach the target: {', '.join(missing)}"
    for name, document in (("A", a), ("B", b)):
        if len(_times(document)) < FEWEST_PROCESSES:
            return f"{name} has {len(_times(document))} seed(s): train at least {FEWEST_PROCESSES} on each side"
    return None


def _check_same_question(a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    pairs = [("target", a["target"], b["target"])]
    names = ("fingerprint", "held_out_fingerprint", "held_out_samples")
    pairs += [(f"data: {name}", a["data"].get(name), b["data"].get(name)) for name in names]
    for what, before, now in pairs:
        if before != now:
            raise InputError(
                "run-mismatch",
                f"the two speedruns differ in {what} ({_said(before)} and {_said(now)}): compare runs with the same "
                "target, training data and held-out data",
            )


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    found = []
    for group in ("machine", "settings"):
        names = dict.fromkeys([*a[group], *b[group]])
        found += [
            f"{name}: {_said(a[group].get(name))}, then {_said(b[group].get(name))}"
            for name in names
            if a[group].get(name) != b[group].get(name)
        ]
    return found


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name} {_said(item)}" for name, item in value.items())
    return "not set" if value in (None, "") else str(value)
