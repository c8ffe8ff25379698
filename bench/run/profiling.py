"""Trials under a profiler: each is run twice, unprofiled and profiled, so that what the profiler costs is known."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bench.profilers import load_profiler
from bench.sweep.sweep import Session, finished_result, run_trials
from common.errors import BertbenchError
from records.files import write_record
from records.run import TrialDirectory
from records.trial import Trial


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
