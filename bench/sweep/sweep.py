"""Run the trials of a sweep in a run directory that a later call can resume."""

import dataclasses
import math
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.machine.devices import Devices, capture
from bench.profilers import load_profiler
from bench.run.supervise import LaunchOptions, run_trial
from common import locks
from common.atomic import remove_left_overs, storage_errors
from common.errors import BertbenchError, SchemaError
from common.reading import read_notes
from records.files import write_record
from records.run import RunDirectory, TrialDirectory
from records.trial import Trial

# Time of a trial besides its steps: imports, the first step, the end.
_START_SECONDS = 8.0
Progress = Callable[[int, int, Trial, Mapping[str, Any] | None, bool], None]
"""Called with (number from 1, count, trial, its result or None at the start, whether it was already finished)."""
Measure = Callable[[Trial], Mapping[str, Any]]
"""Runs a trial, or reads its result."""


@contextmanager
def locked(run: RunDirectory) -> Iterator[None]:
    """Lock a run directory, and leave no file half-written. Raises LockedError: another call uses it; StorageError."""
    with locks.locked(run.path, "another call", "wait for it, or choose another --out"):
        try:
            yield
        finally:
            remove_left_overs(run.path, "trials/*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Session:
    """A call that runs trials of a run directory. Used inside `locked(run)`."""

    run: RunDirectory
    request: Mapping[str, Any]
    """The recorded options of the command."""
    devices: Devices
    options: LaunchOptions
    progress: Progress
    retry_failed: bool = False


def run_trials(session: Session, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Run unfinished trials, update results.csv after every trial, and return the results in order."""
    run, options = session.run, session.options
    environment = capture(session.devices)
    record_request(run, trials, session.request)
    results = []
    for number, trial in enumerate(trials, start=1):
        directory = run.trial(trial.trial_id)
        result = finished_result(directory, session.retry_failed, options.timeout_seconds or math.inf)
        if result is not None:
            session.progress(number, len(trials), trial, result, True)
        else:
            session.progress(number, len(trials), trial, None, False)
            try:
                if directory.path.exists():
                    with storage_errors(directory.path):
                        shutil.rmtree(directory.path)
                result = run_trial(trial, directory, session.devices, environment, options)
            finally:
                write_results(run)
            session.progress(number, len(trials), trial, result, False)
        results.append(result)
    write_results(run)
    return results


def measured_trials(session: Session) -> Measure:
    """Return a function that runs a trial, or reads its result if it is finished."""
    return lambda trial: run_trials(session, [trial])[0]


def expected_seconds(run: RunDirectory, trials: Sequence[Trial]) -> float | None:
    """Estimate the total time of trials in s from finished ones of the kind and model, else their longest time.

    None if --start and --stop are given and no similar trial is finished.
    """
    rows = [row for row in result_rows(run) if row["status"] == "ok" and row.get("wall_seconds")]
    total = 0.0
    for trial in trials:
        alike = (trial.preset, trial.device, trial.kind)
        walls = [float(row["wall_seconds"]) for row in rows if (row["preset"], row["device"], row["kind"]) == alike]
        if not walls and trial.stop_iteration is not None:
            return None
        total += statistics.median(walls) if walls else _START_SECONDS + trial.max_seconds
    return total


def finished_result(
    directory: TrialDirectory, retry_failed: bool = False, timeout_seconds: float = 0.0
) -> dict[str, Any] | None:
    """Return the result of a finished trial; None if it must run again: unfinished, damaged, interrupted, refused (what
    was missing may be there now), or out of a time that is longer now.
    """
    try:
        result = directory.read_result()
        directory.read_trial()
    except SchemaError:
        return None
    if result is None or result["status"] in ("interrupted", "refused"):
        return None
    if result["status"] == "timeout" and timeout_seconds > float(result.get("timeout_seconds") or 0.0):
        return None
    return None if retry_failed and result["status"] != "ok" else result


def record_request(run: RunDirectory, trials: Sequence[Trial], request: Mapping[str, Any]) -> None:
    """Write sweep.json: the latest request, and those before it that used the same folder."""
    before = read_notes(run.sweep_json)
    earlier = [*before.get("earlier", []), before.get("request")]
    earlier = earlier[: -1 if earlier[-1] in (None, dict(request)) else None]
    ids = [trial.trial_id for trial in trials]
    write_record(run.sweep_json, {"request": dict(request), "trials": ids, "earlier": earlier})


def write_results(run: RunDirectory) -> None:
    """Write results.csv from every trial of the run that has a result."""
    run.write_results(result_rows(run))


def result_rows(run: RunDirectory) -> list[dict[str, Any]]:
    """Return one row per trial with a result: its configuration (None for fields without meaning) and its metrics."""
    rows = []
    for directory in run.trials():
        try:
            trial, result = directory.read_trial(), directory.read_result()
        except SchemaError:
            continue
        if result is not None:
            rows.append({**trial.row(), **result, "trial_id": trial.trial_id})
    return rows


def unprofiled(trial: Trial) -> Trial:
    """Return the same run without the profiler. Of kind `probe`: its few steps are no throughput result."""
    return dataclasses.replace(trial, kind="probe", profiler=None, profiler_options=())


def with_unprofiled(trials: Sequence[Trial]) -> list[Trial]:
    """Return every trial behind the same run without its profiler."""
    return [item for trial in trials for item in (unprofiled(trial), trial)]


def profile_trials(session: Session, trials: Sequence[Trial]) -> list[dict[str, Any]]:
    """Run every trial without and with its profiler, and return the results of those with it.

    `profile` of a result has the files, the `problem` why there are none, and the comparison with the unprofiled run.
    """
    for trial in trials:
        directory = session.run.trial(trial.trial_id)
        done = finished_result(directory)
        if done is not None and (done.get("profile") or {}).get("problem"):
            directory.result_json.unlink()
    results = run_trials(session, with_unprofiled(trials))
    return [
        _with_profile(session.run.trial(trial.trial_id), trial, plain, result)
        for trial, plain, result in zip(trials, results[::2], results[1::2], strict=True)
    ]


def _with_profile(
    directory: TrialDirectory, trial: Trial, plain: Mapping[str, Any], result: dict[str, Any]
) -> dict[str, Any]:
    files: list[str] = (result.get("profile") or {"files": []})["files"]
    problem = ""
    if not (files and all((directory.path / file).exists() for file in files)):
        files, problem = [], str(result["reason"])
        if result["status"] == "ok":
            try:
                written = load_profiler(str(trial.profiler), trial.profiler_options).collect(trial, directory.profile)
                files = [str(file.relative_to(directory.path)) for file in written]
            except BertbenchError as error:  # one profile that cannot be had must not cost the others theirs
                problem = str(error)
    unprofiled_ms, profiled_ms = plain.get("step_time_ms"), result.get("step_time_ms")
    result["profile"] = {
        "files": files,
        "problem": problem,
        "waits_at_step_ends": trial.device == "cuda",
        "unprofiled_trial_id": unprofiled(trial).trial_id,
        "unprofiled_step_time_ms": unprofiled_ms,
        "step_time_ratio": profiled_ms / unprofiled_ms if unprofiled_ms and profiled_ms else None,
    }
    write_record(directory.result_json, result)
    return result
