"""The ledger of predictions: what was predicted, what was measured since, and how far apart they are.

A measurement checks a prediction if it is of the same configuration on the same kind of machine, in any of the run
directories, and if the prediction was not computed from it. Throughput checks times; peak memory is also checked by
probes of the search for the largest batch. Rounds of one configuration in one run directory are one measurement. Of
several, the one in the prediction's own run directory counts, otherwise the one nearest to it in time.

    error = predicted / measured - 1
"""

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from analysis.load import LoadedTrial, load_run
from analysis.metrics.comparison.ratio import typical_samples, typical_time
from analysis.wording import implementation_label, strategy_label, task_label
from common.errors import InputError
from records.prediction import KINDS, Origin, Prediction, configuration_of, machine_of, read_predictions
from records.run import RunDirectory
from records.trial import Trial

_NS = 1_000_000_000
# Fields of a configuration that may differ: `_fitting` compares nodes, and data have a key of their own.
_FREE = ("seed", "nodes", "data")
_CHECKS_TIMES = ("throughput",)
_CHECKS_MEMORY = ("throughput", "probe")
_ABOUT = (
    "task", "implementation", "strategy", "preset", "precision", "seq_len", "micro_batch_size", "grad_accum_steps",
    "world_size", "nodes", "device", "threads_per_rank",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One prediction and what was measured of it."""

    prediction: Prediction
    run: Path
    """Run directory that holds it."""
    measured: float | None = None
    """In the unit of the prediction; None while unchecked."""
    measured_low: float | None = None
    """Lower end of the 95 % interval of the measured value; None if it has none."""
    measured_high: float | None = None
    measured_in: Path | None = None
    """Run directory of the measurement."""
    rounds: int = 0
    """Trials of the measurement."""
    reason: str = ""
    """Why it is unchecked; "" if it is checked."""

    @property
    def error(self) -> float | None:
        """Predicted / measured - 1; None while unchecked."""
        return None if self.measured is None else self.prediction.value / self.measured - 1

    @property
    def inside(self) -> bool | None:
        """Whether the measured value is in the predicted interval; None without either."""
        low, high = self.prediction.low, self.prediction.high
        return None if None in (self.measured, low, high) else low <= self.measured <= high  # type: ignore[operator]

    @property
    def held(self) -> bool | None:
        """Whether the measured value is not below a predicted lower bound; None without either."""
        return None if self.measured is None or not self.prediction.bound else self.measured >= self.prediction.value

    def row(self) -> dict[str, Any]:
        """Return it as plain values: a row of predictions.csv."""
        own, trial = self.prediction, self.prediction.trial
        about = {name: getattr(trial, name) for name in _ABOUT}
        about["task"] = task_label(trial.task, trial.task_options)
        about["implementation"] = implementation_label(trial.implementation, trial.levers)
        options = trial.strategy_options, trial.activation_checkpointing, trial.allocator
        about["strategy"] = strategy_label(trial.strategy, *options)
        return {
            "kind": own.kind,
            **about,
            "machine": own.machine.get("device_name"),
            "quantity": own.quantity,
            "predicted": own.value,
            "predicted_low": own.low,
            "predicted_high": own.high,
            "bound": own.bound,
            "measured": self.measured,
            "measured_low": self.measured_low,
            "measured_high": self.measured_high,
            "rounds": self.rounds,
            "error": self.error,
            "inside": self.inside,
            "held": self.held,
            "basis": own.basis,
            "made": own.made,
            "version": own.version,
            "run": str(self.run),
            "measured_in": None if self.measured_in is None else str(self.measured_in),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Ledger:
    """All predictions of some runs."""

    checks: tuple[Check, ...]
    """By kind in the order of KINDS, there the earliest first."""
    problems: tuple[str, ...]
    """Runs, trials and predictions that could not be read."""

    def errors(self) -> list[dict[str, Any]]:
        """Return the distribution of the errors: a row per kind that has predictions.

        Columns: kind, predictions, checked, unchecked, median_error and p90_error (of the absolute errors), bias (mean
        of the signed errors; above 0: predicted too high), intervals (checked predictions with an interval), inside
        (measured values inside it), bounds (checked lower bounds), held. Errors are None where nothing was checked.
        """
        rows = []
        for kind in KINDS:
            checks = [check for check in self.checks if check.prediction.kind == kind]
            if not checks:
                continue
            errors = [check.error for check in checks if check.error is not None]
            sizes = np.abs(errors)
            inside = [check.inside for check in checks if check.inside is not None]
            held = [check.held for check in checks if check.held is not None]
            rows.append(
                {
                    "kind": kind,
                    "predictions": len(checks),
                    "checked": len(errors),
                    "unchecked": len(checks) - len(errors),
                    "median_error": float(np.median(sizes)) if errors else None,
                    "p90_error": float(np.percentile(sizes, 90)) if errors else None,
                    "bias": float(np.mean(errors)) if errors else None,
                    "intervals": len(inside),
                    "inside": sum(inside),
                    "bounds": len(held),
                    "held": sum(held),
                }
            )
        return rows


@dataclass(frozen=True, slots=True)
class _Measurement:
    """The rounds of one configuration in one run directory."""

    run: Path
    trials: tuple[LoadedTrial, ...]

    @property
    def good(self) -> list[LoadedTrial]:
        return [trial for trial in self.trials if trial.ok]

    def without(self, origins: Iterable[Origin]) -> "_Measurement":
        """Return it without the trials that a prediction was computed from."""
        known = list(origins)
        left = [trial for trial in self.trials if not any(one.is_of(_origin(trial)) for one in known)]
        return _Measurement(self.run, tuple(left))

    @property
    def began_ns(self) -> int:
        return min((start for trial in self.trials if (start := _origin(trial).start_ns) is not None), default=0)


def ledger_of(runs: Sequence[RunDirectory]) -> Ledger:
    """Collect the predictions of several run directories and check each with what any of them measured.

    Raises:
        NewerSchemaError: a trial was written by a newer bertbench.
    """
    problems: list[str] = []
    predictions: dict[str, tuple[Prediction, Path]] = {}
    measured: dict[str, list[_Measurement]] = defaultdict(list)
    for run in runs:
        found, unread = read_predictions(run)
        problems += unread
        for prediction in found:  # a copy of a run has the same ones
            predictions.setdefault(f"{prediction.content} {prediction.made}", (prediction, run.path))
        for key, measurement in _measurements(run, problems).items():
            measured[key].append(measurement)
    order = list(KINDS)
    held = sorted(predictions.values(), key=lambda pair: (order.index(pair[0].kind), pair[0].made))
    checks = [_check(prediction, run, measured) for prediction, run in held]
    return Ledger(tuple(checks), tuple(dict.fromkeys(problems)))


def configuration_key(trial: Trial, machine: Mapping[str, Any]) -> str:
    """Return what two trials agree in if one says something about the other, as text.

    Data count by their fingerprint where there is one, else by their last name, and so does a given model: a run may be
    moved.
    """
    plain = dataclasses.asdict(configuration_of(trial))
    fields = {name: value for name, value in plain.items() if name not in _FREE}
    source = str(trial.data or "")
    name = source if source.startswith("synthetic") else PurePath(source).name
    fields["data"] = "" if trial.data_fingerprint else name
    fields["model"] = "" if trial.model_fingerprint else PurePath(trial.model).name
    return json.dumps([fields, dict(machine)], sort_keys=True, default=str)


def _measurements(run: RunDirectory, problems: list[str]) -> dict[str, _Measurement]:
    """The trials of a run that check anything, by configuration."""
    if not run.trials():
        return {}
    try:
        loaded = load_run(run)
    except InputError as error:
        problems.append(str(error))
        return {}
    problems += [f"{run.path}: {problem}" for problem in loaded.problems]
    # What crashed early has not recorded where it ran.
    somewhere = next((trial.environment for trial in loaded if trial.environment.get("device_name")), {})
    groups: dict[str, list[LoadedTrial]] = defaultdict(list)
    for trial in loaded:
        if trial.trial.kind in _CHECKS_MEMORY:
            known = trial.environment.get("device_name") or not somewhere
            environment = trial.environment if known else somewhere
            groups[configuration_key(trial.trial, machine_of(environment))].append(trial)
    return {key: _Measurement(run.path, tuple(trials)) for key, trials in groups.items()}


def _origin(trial: LoadedTrial) -> Origin:
    start = trial.steps[0].get("start_ns") if trial.steps else None
    return Origin(trial_id=trial.trial.trial_id, start_ns=start)


def _check(prediction: Prediction, run: Path, measured: Mapping[str, Sequence[_Measurement]]) -> Check:
    found = measured.get(configuration_key(prediction.trial, prediction.machine), ())
    others = [one.without(prediction.origins) for one in (_fitting(prediction, one) for one in found)]
    best = min(
        (one for one in others if one.good),
        key=lambda one: (one.run != run, abs(one.began_ns - _ns(prediction.made))),
        default=None,
    )
    if best is None:
        return Check(prediction=prediction, run=run, reason=_why(prediction, others))
    value, low, high = _value(prediction.quantity, best.good)
    if value is None:
        reason = "its measurement does not record that quantity"
        return Check(prediction=prediction, run=run, reason=reason)
    return Check(
        prediction=prediction,
        run=run,
        measured=value,
        measured_low=low,
        measured_high=high,
        measured_in=best.run,
        rounds=len(best.good),
    )


def _fitting(prediction: Prediction, found: _Measurement) -> _Measurement:
    """Keep the trials that measure what was predicted; a projection is to N devices, on however many nodes."""
    kinds = _CHECKS_MEMORY if prediction.quantity == "peak_memory_bytes" else _CHECKS_TIMES
    nodes = None if prediction.kind == "projection" else prediction.trial.nodes
    kept = [trial for trial in found.trials if trial.trial.kind in kinds and nodes in (None, trial.trial.nodes)]
    return _Measurement(found.run, tuple(kept))


def _why(prediction: Prediction, others: Sequence[_Measurement]) -> str:
    """Why nothing checks a prediction."""
    failed = [trial for one in others for trial in one.trials]
    if not failed:
        return "not measured"
    if any(trial.row["status"] == "ok" for trial in failed):
        return "its trial has no measured step"
    row, limit = failed[-1].row, failed[-1].trial.memory_limit_bytes
    if row["status"] != "oom" or not limit:
        return f"its trial ended as {row['status']}"
    said = ""
    if prediction.quantity == "peak_memory_bytes":
        said = f", {'as' if prediction.value > limit else 'not as'} predicted"
    return f"its trial ended as oom with a limit of {limit / 2**30:.2f} GiB{said}"


def _value(quantity: str, trials: Sequence[LoadedTrial]) -> tuple[float | None, float | None, float | None]:
    """The measured value of a quantity, and the ends of its 95 % interval."""
    if quantity == "peak_memory_bytes":
        peaks = [float(peak) for trial in trials if (peak := trial.row.get("peak_memory_bytes")) is not None]
        return max(peaks, default=None), None, None
    time = typical_time([trial.window_times() for trial in trials])
    work = typical_samples(trials) if quantity == "sample_time_ms" else 1.0
    return time.value / work, time.low / work, time.high / work


def _ns(made: str) -> int:
    try:
        return int(datetime.strptime(made, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()) * _NS
    except ValueError:
        return 0
