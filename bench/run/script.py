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
from bench.hook.on_path.sitecustomize import NOTES, STOP, VARIABLE
from bench.hook.recorder import BY_PASSES
from bench.machine.devices import git_commit
from bench.profilers import load_profiler
from common.atomic import storage_errors
from common.errors import InputError
from records.files import SCHEMA_VERSION, write_record
from records.run import TrialDirectory
from records.schema import STEP_COLUMNS
from records.trial import Trial


def program_variables(trial: Trial, directory: TrialDirectory) -> dict[str, str]:
    """Return the environment variables that put the hook into the Python processes of a command."""
    settings = {
        "folder": str(directory.path),
        "columns": list(STEP_COLUMNS),
        "schema_version": SCHEMA_VERSION,
        "stop": str(directory.path / NOTES / STOP),
        "profile": [trial.start_iteration, trial.stop_iteration] if trial.profiler else None,
    }
    hook = Path(on_path.__file__).parent
    (directory.path / NOTES).mkdir()
    return {
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(hook), os.environ.get("PYTHONPATH")])),
        VARIABLE: json.dumps(settings),
    }


def settle(trial: Trial, directory: TrialDirectory) -> tuple[Trial, TrialDirectory]:
    """Return the trial as its ranks have it, and its folder under that name; its processes have ended."""
    facts = next(iter(directory.read_ranks().values()), None)
    if facts is None:
        return trial, directory
    settled = dataclasses.replace(trial, world_size=int(facts["world_size"]), device=str(facts["device"]))
    environment = directory.read_environment()
    environment |= {"libraries": facts["libraries"], "python": facts["python"]}
    environment["script_commit"] = facts["script"] and git_commit(Path(facts["script"]).parent)
    write_record(directory.env_json, environment)
    write_record(directory.trial_json, settled.to_json())
    place = TrialDirectory(directory.path.with_name(settled.trial_id))
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
    if not present:
        if "torch" in names:
            why = "no optimizer of torch.optim stepped, and no batch of a DataLoader came between backward passes: put "
            why += f"`with bertbench.measure(NAME) as m:` around the loop, with m.step(). {_text(notes / 'unseen')}"
        elif "python" in names:
            why = "the command did not import PyTorch's optimizers"
        else:
            why = "no Python loaded the hook; run it without -E, -I and -S, and keep PYTHONPATH"
        return f"no optimizer step was seen: {why}"
    if any(name.startswith("second-") for name in names):
        return f"further processes of rank {present[0]} also trained: measure a command with one per rank"
    if missing:
        return f"rank {missing[0]} of {trial.world_size} recorded no step: every rank must train, on this node"
    return _outside_window(trial, directory) if trial.profiler is None else ""


def remark(directory: TrialDirectory) -> str:
    """Return how the steps differ from those of an optimizer; "" where they are these."""
    optimizer = (directory.read_ranks().get(0) or {}).get("optimizer")
    return f"a step is the {BY_PASSES}" if optimizer == BY_PASSES else ""


def _outside_window(trial: Trial, directory: TrialDirectory) -> str:
    """Return that no step of the script is in the trial's window; "" where one is, or there is no window."""
    start, stop = trial.start_iteration, trial.stop_iteration
    made = [row["step"] for row in _steps(directory)]
    if start is None or stop is None or any(start <= number < stop for number in made):
        return ""
    return f"the script made {max(made, default=-1) + 1} steps, none in [{start}, {stop}): lower --start"


def _steps(directory: TrialDirectory) -> list[dict[str, Any]]:
    return combine({rank: directory.read_steps(rank) for rank in directory.ranks()})


def profile_of(trial: Trial, directory: TrialDirectory, step_time_ms: float | None) -> dict[str, Any]:
    """Return the field `profile` of a profiled script's result, as bench.sweep.sweep has it.

    It is compared with `step_time_ms`, the median of the steps that were not profiled; None where it is unknown.
    """
    files, problem = [], ""
    try:
        files = load_profiler(str(trial.profiler)).collect(trial, directory.profile)
    except InputError as error:
        problem = _outside_window(trial, directory) or _text(directory.path / NOTES / "profile") or str(error)
    window = range(trial.start_iteration or 0, trial.stop_iteration or 0)
    profiled = median_of([row for row in _steps(directory) if row["step"] in window], "step_time_ms")
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
    """Add what only a script's result has, `exit_code` and `profile`, and remove the notes."""
    whole = {**result, "exit_code": exit_code}
    if trial.profiler is not None and result["status"] == "ok":
        whole["profile"] = profile_of(trial, directory, result["step_time_ms"])
    write_record(directory.result_json, whole)
    shutil.rmtree(directory.path / NOTES, ignore_errors=True)
    return whole


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0] if path.is_file() else ""
