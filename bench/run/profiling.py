"""Trials under a profiler: each is run twice, unprofiled and profiled, so that what the profiler costs is known."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.profilers import load_profiler
from bench.sweep.sweep import Session, finished_result, run_trials
from common.errors import BertbenchError
from records.files import write_record
from records.run import TrialDirectory
from records.trial import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class Profiled:
    """One trial under a profiler."""

    trial: Trial
    result: Mapping[str, Any]
    """Its result.json; `profile` holds files, problem and the comparison with the unprofiled run."""
    files: tuple[Path, ...]
    """What the profiler left, exports included."""
    problem: str
    """Why there is no profile; "" where there is one. The run's own measurements stand either way."""


def unprofiled(trial: Trial) -> Trial:
    """Return the same run without the profiler. Of kind `probe`: its few steps are no throughput result."""
    return dataclasses.replace(trial, kind="probe", profiler=None, profiler_options=())


def with_unprofiled(trials: Sequence[Trial]) -> list[Trial]:
    """Return every trial behind the same run without its profiler."""
    return [item for trial in trials for item in (unprofiled(trial), trial)]


def profile_trials(session: Session, trials: Sequence[Trial]) -> list[Profiled]:
    """Run every trial without and with its profiler, collect what the profiler wrote, and record both.

    A trial whose profile could not be collected the last time is run again.
    """
    directories = [session.run.trial(trial.trial_id) for trial in trials]
    for directory in directories:
        done = finished_result(directory)
        if done is not None and (done.get("profile") or {}).get("problem"):
            directory.result_json.unlink()
    results = run_trials(session, with_unprofiled(trials))
    return [
        _collected(directory, trial, without, result)
        for directory, trial, without, result in zip(directories, trials, results[::2], results[1::2], strict=True)
    ]


def mark_unread(directory: TrialDirectory, item: Profiled, problem: str) -> Profiled:
    """Record that nothing of the profile's files can be read, so that another call makes it again."""
    whole = {**item.result, "profile": {**item.result["profile"], "problem": problem}}
    write_record(directory.result_json, whole)
    return dataclasses.replace(item, result=whole, problem=problem)


def _collected(
    directory: TrialDirectory, trial: Trial, without: Mapping[str, Any], result: Mapping[str, Any]
) -> Profiled:
    assert trial.profiler is not None
    profiler = load_profiler(trial.profiler, trial.profiler_options)
    known = result.get("profile") or {"files": []}
    files = tuple(directory.path / name for name in known["files"])
    problem = ""
    if not (files and all(file.exists() for file in files)):
        files, problem = (), str(result["reason"])
        if result["status"] == "ok":
            try:
                files, problem = tuple(profiler.collect(trial, directory.profile)), ""
            except BertbenchError as error:  # one profile that cannot be had must not cost the others theirs
                problem = str(error)
    plain, profiled = without.get("step_time_ms"), result.get("step_time_ms")
    profile = {
        "files": [str(file.relative_to(directory.path)) for file in files],
        "problem": problem,
        "waits_at_step_ends": trial.device == "cuda",
        "unprofiled_trial_id": unprofiled(trial).trial_id,
        "unprofiled_step_time_ms": plain,
        "step_time_ratio": profiled / plain if plain and profiled else None,
    }
    whole = {**result, "profile": profile}
    write_record(directory.result_json, whole)
    return Profiled(trial=trial, result=whole, files=files, problem=problem)
