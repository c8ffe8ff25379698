"""A training script as a trial of kind measure: started with the hook in its processes, and its records completed.

    trials/<trial id>/steps-<rank>.csv  rank-<rank>.json  failure-<rank>.json    written by bench.hook

How many ranks there are, and on what device, is known only when they have stepped: the trial is completed, and its
folder renamed, when its processes have ended.
"""

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

from analysis.metrics.throughput import combine, median_of
from bench.hook import on_path
from bench.hook.on_path.sitecustomize import NOTES, VARIABLE
from common.atomic import storage_errors
from common.errors import InputError
from records.files import SCHEMA_VERSION, write_record
from records.run import TrialDirectory
from records.schema import STEP_COLUMNS
from records.trial import Trial

NOTHING_STEPPED = "no optimizer step was seen"


def program_variables(trial: Trial, directory: TrialDirectory) -> dict[str, str]:
    """Return the environment variables that put the hook into the Python processes of a command."""
    settings = {
        "folder": str(directory.path),
        "columns": list(STEP_COLUMNS),
        "schema_version": SCHEMA_VERSION,
        "profile": [trial.start_iteration, trial.stop_iteration] if trial.profiler else None,
    }
    hook = Path(on_path.__file__).parent
    return {
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(hook), os.environ.get("PYTHONPATH")])),
        VARIABLE: json.dumps(settings),
    }


def settle(trial: Trial, directory: TrialDirectory) -> tuple[Trial, TrialDirectory]:
    """Return the trial as its ranks have it, and its folder under that name; its processes have ended."""
    ranks = directory.read_ranks()
    facts = next(iter(ranks.values()), None)
    if facts is None:
        return trial, directory
    settled = dataclasses.replace(trial, world_size=int(facts["world_size"]), device=str(facts["device"]))
    environment = directory.read_environment()
    libraries = {**(environment.get("libraries") or {}), "torch": facts["torch"]}
    write_record(directory.env_json, {**environment, "libraries": libraries})
    write_record(directory.trial_json, settled.to_json())
    place = TrialDirectory(directory.path.with_name(settled.trial_id))
    if place.path != directory.path:
        with storage_errors(place.path):
            directory.path.rename(place.path)
    return settled, place


def why_incomplete(trial: Trial, directory: TrialDirectory) -> str:
    """Return why the steps of a command that ended well are no measurement; "" where they are one."""
    notes = directory.path / NOTES
    names = {path.name for path in notes.glob("*")}
    present = directory.ranks()
    missing = sorted(set(range(trial.world_size)) - set(present))
    if "problem" in names:
        return f"the measurement ended early: {_text(notes / 'problem')}"
    if not present and "torch" in names:
        return f"{NOTHING_STEPPED}: no torch.optim optimizer made a step. {_text(notes / 'unseen')}".strip()
    if not present and "python" in names:
        return f"{NOTHING_STEPPED}: the command did not import PyTorch's optimizers"
    if not present:
        return f"{NOTHING_STEPPED}: no Python loaded the hook; run it without -E, -I and -S, and keep PYTHONPATH"
    if any(name.startswith("second-") for name in names):
        return f"further processes of rank {present[0]} also trained: measure a command with one per rank"
    if missing:
        return f"rank {missing[0]} of {trial.world_size} recorded no step: every rank must train, on this node"
    if not all(directory.read_steps(rank) for rank in present):
        return f"{NOTHING_STEPPED} completely"
    return _outside_window(trial, directory) if trial.profiler is None else ""


def _outside_window(trial: Trial, directory: TrialDirectory) -> str:
    """Return that no step of the script is in the trial's window; "" where one is, or there is no window."""
    if trial.start_iteration is None or trial.stop_iteration is None:
        return ""
    made = [row["step"] for row in _steps(directory)]
    if not made or any(trial.start_iteration <= number < trial.stop_iteration for number in made):
        return ""
    window = f"[{trial.start_iteration}, {trial.stop_iteration})"
    return f"the script made {max(made) + 1} steps, none in {window}: lower --start"


def _steps(directory: TrialDirectory) -> list[dict[str, Any]]:
    return combine({rank: directory.read_steps(rank) for rank in directory.ranks()})


def profile_of(trial: Trial, directory: TrialDirectory, step_time_ms: float | None) -> dict[str, Any]:
    """Return the field `profile` of a profiled script's result, as bench.run.profiling has it.

    It is compared with `step_time_ms`, the median of the steps that were not profiled; None where it is unknown.
    """
    from bench.profilers import load_profiler

    assert trial.profiler is not None and trial.start_iteration is not None and trial.stop_iteration is not None
    profiler = load_profiler(trial.profiler)
    files, problem = [], ""
    try:
        files = profiler.collect(trial, directory.profile)
    except InputError as error:
        problem = _outside_window(trial, directory) or _text(directory.path / NOTES / "profile") or str(error)
    window = [row for row in _steps(directory) if trial.start_iteration <= row["step"] < trial.stop_iteration]
    profiled = median_of(window, "step_time_ms")
    return {
        "files": [str(file.relative_to(directory.path)) for file in files],
        "problem": problem,
        "waits_at_step_ends": trial.device == "cuda",
        "unprofiled_trial_id": trial.trial_id,
        "unprofiled_step_time_ms": step_time_ms,
        "profiled_step_time_ms": profiled,
        "step_time_ratio": profiled / step_time_ms if profiled and step_time_ms else None,
    }


def add_to_result(
    trial: Trial, directory: TrialDirectory, result: dict[str, Any], exit_code: int | None
) -> dict[str, Any]:
    """Add what only a script's result has, `exit_code`, `framework` and `profile`, and remove the notes."""
    record = next(iter(directory.read_ranks().values()), {})
    whole = {**result, "exit_code": exit_code, "framework": record.get("framework")}
    if trial.profiler is not None and result["status"] == "ok":
        whole["profile"] = profile_of(trial, directory, result["step_time_ms"])
    write_record(directory.result_json, whole)
    shutil.rmtree(directory.path / NOTES, ignore_errors=True)
    return whole


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return ""
