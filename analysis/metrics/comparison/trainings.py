"""Trainings held against each other: variants step by step, heads by evaluation, speedruns by the time to a target.

A run's time is that of its loop: from the start of the first step to the end of the last one and what follows it, with
evaluations and checkpoints, without what lies between attempts and steps that were made again. A step takes as long as
its slowest rank does. A seed of a speedrun has reached the target at its first evaluation at or below it; its training
time is that of its steps up to there. docs/explanation/measurement.md derives the test that decides between two.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.metrics.comparison.ratio import FEWEST_PROCESSES
from analysis.metrics.comparison.runs import differing
from analysis.metrics.statistics import CONFIDENCE, mean_interval, student_quantile, student_tail, welch_error
from analysis.metrics.telemetry import energy
from analysis.metrics.throughput import combine
from analysis.wording import UNKNOWN
from common.errors import InputError
from common.scores import scores_in
from records.run import TrialDirectory
from records.schema import COMPARISON_COLUMNS, SPEEDRUN_COLUMNS
from records.speedrun import Speedrun
from records.training import TrainRun, read_events

Array = npt.NDArray[np.float64]
Row = Mapping[str, Any]
Steps = dict[int, tuple[float, dict[str, Any]]]

# Of a training that is whole; others have the status of their last attempt.
FINISHED, STOPPED, NOT_BEGUN = "finished", "stopped", "not begun"
REACHED, NOT_REACHED = "reached", "not reached"
SIGNIFICANCE = 0.01
"""A speedrun is faster or slower where chance alone would show as much less often than this."""
SCORE = "mlm_loss"
"""Score of the evaluations that the target of a speedrun is a value of."""
SUMMARIZED = ("step_seconds", "loop_seconds", "total_seconds", "steps", "samples", "tokens", "samples_per_second",
              "energy_joules", "cost")  # fmt: skip
"""Columns with a mean and an interval over the seeds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantRun:
    """One training of a comparison, where it lies."""

    strategy: str
    devices: int
    run: TrainRun
    name: str = ""
    """What tables call it; "" for its strategy and devices."""
    implementation: str = "bertbench"
    profile: Row = field(default_factory=dict)
    """Columns of exposure.all_reduce, or `profile_problem`; empty where no profile was wanted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantCurve:
    """The course of one training, a value per step."""

    row: Row
    seconds: Array
    """In the loop, at the end of the step; NaN where the step has no time."""
    percent: Array
    """Of the samples of the whole run, seen at the end of the step."""
    loss: Array
    """Training loss; NaN where it was not finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingComparison:
    """Trainings compared with the first one."""

    rows: tuple[dict[str, Any], ...]
    """COMPARISON_COLUMNS, `scores` by name, and `cautions` of the newest attempt."""
    curves: tuple[VariantCurve, ...]
    epochs: float | None
    """How often the whole run sees every sample; None where that is not known."""

    @property
    def failed(self) -> list[dict[str, Any]]:
        """Rows of the variants that did not reach their end."""
        return [row for row in self.rows if row["status"] != FINISHED]


def compare_trainings(variants: Sequence[VariantRun], samples_per_epoch: int | None = None) -> TrainingComparison:
    """Compare every variant with the first one that made steps.

    samples_per_epoch is None where the training data are without end. Raises SchemaError: a record is damaged.
    """
    runs = [_read(variant, samples_per_epoch) for variant in variants]
    first = next(((row, curve) for row, curve, _ in runs if curve), None)
    curves = []
    for row, curve, seconds in runs:
        if first is not None and curve:
            row |= _against(row, curve, *first)
            percent = [100 * entry["samples"] / (row["total_steps"] * row["global_batch_size"]) for entry in curve]
            losses = np.array([_finite(entry["loss"]) for entry in curve], dtype=float)
            times = np.array([seconds.get(entry["step"], math.nan) for entry in curve])
            curves.append(VariantCurve(row=row, seconds=times, percent=np.array(percent), loss=losses))
    totals = [row["total_steps"] * row["global_batch_size"] for row, *_ in runs if row["total_steps"]]
    epochs = max(totals) / samples_per_epoch if totals and samples_per_epoch else None
    return TrainingComparison(rows=tuple(row for row, *_ in runs), curves=tuple(curves), epochs=epochs)


def _read(
    variant: VariantRun, samples_per_epoch: int | None
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[int, float]]:
    """Return the row of a training, its curve, and the time in the loop at the end of each step, s."""
    row: dict[str, Any] = dict.fromkeys(COMPARISON_COLUMNS)
    row |= {"strategy": variant.strategy, "devices": variant.devices, "status": NOT_BEGUN, "reason": ""}
    row |= {"implementation": variant.implementation, "name": variant.name, "scores": {}, "cautions": []}
    row |= {name: value for name, value in variant.profile.items() if name in row}
    attempts = variant.run.attempts()
    if not attempts:
        return row, [], {}
    state, trial, newest = variant.run.read_state() or {}, attempts[-1].read_trial(), attempts[-1]
    names = ("device", "precision", "global_batch_size", "micro_batch_size", "grad_accum_steps")
    row |= {name: getattr(trial, name) for name in names} | {"attempts": len(attempts), "log": str(newest.log)}
    row["total_steps"] = dict(trial.training).get("steps") or trial.max_steps
    row["status"], row["reason"] = status_of(state)
    row["cautions"] = list((newest.read_result() or {}).get("cautions") or [])
    records = next(([*by_rank.values()] for one in reversed(attempts) if (by_rank := one.read_ranks())), [])
    for name in ("threads", "peak_memory_bytes", "peak_memory_kind", "parameters", "backend"):
        values = [record[name] for record in records if record.get(name) is not None]
        row["threads_per_rank" if name == "threads" else name] = max(values, default=None)
    if evaluation := state.get("evaluation"):
        row |= {"scores": scores_in(evaluation), "evaluation_samples": evaluation["samples"]}
    curve = variant.run.read_curve()
    if not curve:
        return row, [], {}
    last = curve[-1]
    times = {step: entry for step, entry in _steps_made(attempts).items() if step <= last["step"]}
    row |= {"steps": last["applied_steps"], "samples": last["samples"], "last_loss": _finite(last["loss"])}
    row["epochs"] = last["samples"] / samples_per_epoch if samples_per_epoch else None
    if times:
        step_ms = [step["step_time_ms"] for _, step in times.values()]
        row["step_seconds"], row["step_time_ms"] = sum(step_ms) / 1000, float(np.median(step_ms))
        row["loop_seconds"] = max(seconds for seconds, _ in times.values()) + sum(
            float(event["seconds"])
            for event in read_events(newest)
            if event["event"] in ("evaluated", "saved") and event["applied_steps"] == last["applied_steps"]
        )
        counts = np.diff([0, *(entry["samples"] for entry in curve)]).tolist()
        timed = sum(count for entry, count in zip(curve, counts, strict=True) if entry["step"] in times)
        row["samples_per_second"] = timed / row["step_seconds"]
        row["epoch_seconds"] = samples_per_epoch / row["samples_per_second"] if samples_per_epoch else None
    return row, curve, {step: seconds for step, (seconds, _) in times.items()}


def row_names(rows: Sequence[Row]) -> list[str]:
    """Return a name for each variant, such as "ddp x 2", with implementation and precision if they differ."""
    several = len({row["implementation"] for row in rows}) > 1
    precisions = len({row["precision"] for row in rows if row["precision"]}) > 1
    return [
        row.get("name")
        or f"{row['implementation'] if several else ''} {row['strategy']} x {row['devices']} "
        f"{row['precision'] or UNKNOWN if precisions else ''}".strip()
        for row in rows
    ]


def status_of(state: Row) -> tuple[str, str]:
    """Return status and reason of a training by its state (TrainRun.read_state)."""
    if state.get("finished"):
        return FINISHED, ""
    status = str(state.get("status", "interrupted"))
    return (STOPPED if status == "ok" else status), str(state.get("reason") or "")


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


def _against(row: Row, curve: Sequence[Row], first: Row, first_curve: Sequence[Row]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    rate, before = row["samples_per_second"], first["samples_per_second"]
    if rate and before:
        columns["speedup"] = rate / before
        if row["samples"] == first["samples"]:
            columns["time_saved"] = (first["step_seconds"] - row["step_seconds"]) / first["step_seconds"]
    losses = {entry["step"]: _finite(entry["loss"]) for entry in first_curve}
    pairs = [(_finite(entry["loss"]), losses.get(entry["step"]), entry["step"]) for entry in curve]
    differences = [(abs(one - other), -step) for one, other, step in pairs if one is not None and other is not None]
    columns["compared_steps"] = len(differences)
    if differences:
        greatest, step = max(differences)
        columns |= {"greatest_loss_difference": greatest, "greatest_loss_difference_step": -step}
    return columns


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class HeadResult:
    """The training of one head."""

    head: str
    training: Row
    """Its row of TrainingComparison."""
    evaluations: tuple[Row, ...]
    """HEAD_COLUMNS, and `scores` by name, in order; one for each evaluation."""
    best_by: str

    @property
    def best(self) -> Row | None:
        """The best evaluation, the earliest of several; None without any."""
        return next((row for row in self.evaluations if row["best"]), None)


def compare_heads(
    runs: Mapping[str, TrainRun], samples_per_epoch: int, best_by: str, higher_is_better: bool
) -> list[HeadResult]:
    """Return the results of trainings that differ in their head alone, given by head.

    The best evaluation is chosen as the trainings choose their best checkpoint. Raises SchemaError: a record is
    damaged.
    """
    variants = [VariantRun(strategy=head, devices=1, run=run) for head, run in runs.items()]
    results = []
    for variant, row in zip(variants, compare_trainings(variants, samples_per_epoch).rows, strict=True):
        curve = {entry["applied_steps"]: entry for entry in variant.run.read_curve()}
        evaluations: list[dict[str, Any]] = []
        before = 0
        for steps, event in evaluations_of(variant.run).items():
            if steps not in curve:
                continue  # the steps before it were lost, with what it says
            losses = [one["loss"] for step, one in curve.items() if before < step <= steps and one["loss"] is not None]
            scores = scores_in(event)
            evaluations.append({
                "head": variant.strategy, "epoch": curve[steps]["samples"] / samples_per_epoch, "applied_steps": steps,
                "training_loss": sum(losses) / len(losses) if losses else None, "best": False, "scores": scores,
                **{name: scores.get(name) for name in ("log_loss", "accuracy")},
            })  # fmt: skip
            before = steps
        known = [one for one in evaluations if one["scores"].get(best_by) is not None]
        if known:
            choose = max if higher_is_better else min
            choose(known, key=lambda one: float(one["scores"][best_by]))["best"] = True
        results.append(HeadResult(variant.strategy, row, tuple(evaluations), best_by))
    return results


def evaluations_of(run: TrainRun) -> dict[int, dict[str, Any]]:
    """Return the events of a run's evaluations by updates made; one that was made again after a resume counts once."""
    events = [event for directory in run.attempts() for event in read_events(directory)]
    made = {event["applied_steps"]: event for event in events if event["event"] == "evaluated"}
    return dict(sorted(made.items()))


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
    state = run.read_state() or {}
    status, reason = status_of(state)
    row["status"], row["reason"] = (status, reason or "the training has not ended") if end is None else (REACHED, "")
    if row["status"] == FINISHED:
        losses = [one[SCORE] for one in evaluations.values() if one.get(SCORE) is not None]
        lowest = f"its lowest evaluation is {min(losses):.4f}" if losses else "no evaluation was finite"
        row["status"] = NOT_REACHED
        row["reason"] = f"all {state['total_steps']:,} steps were made, and {lowest}, above {target:g}"
    curve = run.read_curve()
    last = next((entry for entry in curve if entry["applied_steps"] == end), curve[-1] if curve else None)
    if last is None:
        return row
    row |= {"steps": last["applied_steps"], "samples": last["samples"]}
    evaluations = {steps: one for steps, one in evaluations.items() if steps <= last["applied_steps"]}
    row["evaluations"] = len(evaluations)
    row[SCORE] = [*evaluations.values()][-1].get(SCORE) if evaluations else None
    made = {number: entry for number, entry in _steps_made(attempts).items() if number <= last["step"]}
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
    ordered = sorted(made)
    ends = accumulate(made[step][1]["step_time_ms"] / 1000 for step in ordered)
    seconds = dict(zip(ordered, ends, strict=True))
    step_of = {entry["applied_steps"]: entry["step"] for entry in reversed(curve)}
    row["readings"] = [
        {"steps": applied, "step_seconds": seconds[step_of[applied]], SCORE: one.get(SCORE)}
        for applied, one in evaluations.items()
        if step_of.get(applied) in seconds
    ]
    unknown, end_ns = row["unknown"], max(*(entry["end_ns"] for entry in steps), int(behind["time_ns"]))
    row["total_seconds"] = _wall_seconds(attempts, end_ns, unknown)
    row["energy_joules"] = _energy(attempts, last["step"], unknown)
    if "total_seconds" in unknown:
        unknown["cost"] = unknown["total_seconds"]
    elif price_per_hour is None:
        unknown["cost"] = "no price was given (--price-per-hour)"
    else:
        row["cost"] = price_per_hour / 3600 * row["total_seconds"]
    return row


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


def load_speedrun(path: Path, document: Row) -> dict[str, Any]:
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


def compare_speedruns(a: Row, b: Row) -> dict[str, Any]:
    """Decide whether speedrun B reaches the target in less training time than A, both as `load_speedrun` returns them.

    Keys: verdict (faster, slower, not reached: B's seeds where A's did, or cannot decide), reason, ratios (B's mean /
    A's of the columns of SUMMARIZED that both have), differences, `welch`'s (None where untested), significance.

    Raises:
        InputError: the targets, the training data or the held-out data differ.
    """
    targets = [{"target": one["target"]["value"], **{name: one["data"].get(name) for name in _SAME}} for one in (a, b)]
    if unlike := differing(targets):
        raise InputError(
            "run-mismatch",
            f"the two speedruns differ in {unlike[0]}: compare runs with the same target, training data and held-out "
            "data",
        )
    ratios = {
        name: b["summary"][name]["mean"] / value["mean"]
        for name in SUMMARIZED
        if (value := a["summary"][name]) and value["mean"] and b["summary"][name]
    }
    named = ({**one["machine"], **one["settings"]} for one in (a, b))
    settings = ({name: str(value) for name, value in one.items() if value not in (None, "")} for one in named)
    times = [
        [row["step_seconds"] for row in one["rows"] if row["status"] == REACHED and row.get("step_seconds") is not None]
        for one in (a, b)
    ]
    verdict, reason = "cannot decide", _undecidable(a, b, times)
    test: dict[str, Any] = dict.fromkeys(("saved_seconds", "saved_low", "saved_high", "p_faster", "p_slower"))
    reached = [bool(side["rows"]) and all(row["status"] == REACHED for row in side["rows"]) for side in (a, b)]
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
    decision = {"verdict": verdict, "reason": reason, "ratios": ratios, "differences": differing(settings, "not set")}
    return {**decision, **test, "significance": SIGNIFICANCE}


_SAME = ("fingerprint", "held_out_fingerprint", "held_out_samples")
"""Fields of the data that have to agree, besides the target."""


def _undecidable(a: Row, b: Row, times: Sequence[Sequence[float]]) -> str:
    """Return why these seeds decide nothing; "" where they do."""
    for name, side in (("A", a), ("B", b)):
        missing = [f"seed {row['seed']} {row['status']}" for row in side["rows"] if row["status"] != REACHED]
        if missing or not side["rows"]:
            return f"{name} is not a record, which needs every seed to reach the target: {', '.join(missing)}"
    for name, known in zip("AB", times, strict=True):
        if len(known) < FEWEST_PROCESSES:
            return f"{name} has {len(known)} seed(s): train at least {FEWEST_PROCESSES} on each side"
    return ""


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
