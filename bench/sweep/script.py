"""Measure a training script in a run directory: every call adds a trial, a further round of the same command."""

import contextlib
import dataclasses
import hashlib
import itertools
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.machine.devices import Devices
from bench.machine.environment import capture
from bench.run.supervise import LaunchOptions, finish, run_trial
from bench.sweep.sweep import record_request, tidy, write_results
from common.errors import SchemaError, UsageError
from common.redact import redact_text
from records.run import RunDirectory, TrialDirectory
from records.trial import Trial

_INTERPRETERS = ("python", "torchrun", "accelerate", "deepspeed")
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


def check_program(command: Sequence[str]) -> None:
    """Refuse a command that cannot be started. Raises UsageError."""
    if shutil.which(command[0]) is not None:
        return
    if Path(command[0]).suffix == ".py" and Path(command[0]).is_file():
        raise UsageError("option-value", f"{command[0]} is a Python script: measure -- python {command[0]}")
    raise UsageError("tool-missing", f"program {command[0]!r} was not found: give its path, or install it")


def name_of(command: Sequence[str]) -> str:
    """Return a name for a command: that of its first Python script, of the module after -m, or of its program."""
    program = Path(command[0]).name
    for place, word in enumerate(command):
        if word.endswith(".py"):
            return Path(word).name
        module = command[place + 1] if word == "-m" and place + 1 < len(command) else None
        if module is not None and module not in _LAUNCHERS and program.startswith(_INTERPRETERS):
            return module
    return program


def script_folder(command: Sequence[str]) -> str | None:
    """Return the name of the folder of a command's first Python script; None for a command without one."""
    scripts = [word for word in command if word.endswith(".py")]
    return Path(scripts[0]).resolve().parent.name if scripts else None


def script_sha256(command: Sequence[str]) -> str | None:
    """Return the SHA-256 of the scripts of a command: its Python files, or that of the module after -m.

    A module is sought below the current folder, as Python does. None where no file is found: a module that is
    installed, a program of another kind. What a script imports is not part of it.
    """
    paths = [Path(word) for word in command if word.endswith(".py")]
    for before, name in itertools.pairwise(command):
        if before == "-m":
            place = Path(*name.split("."))
            paths += [place.with_name(f"{place.name}.py"), place / "__main__.py"]
    contents = []
    for path in paths:
        with contextlib.suppress(OSError):
            contents.append(path.read_bytes())
    if not contents:
        return None
    return hashlib.sha256(b"".join(hashlib.sha256(content).digest() for content in contents)).hexdigest()


def plan_script(
    run: RunDirectory,
    command: Sequence[str],
    name: str | None = None,
    start: int | None = None,
    stop: int | None = None,
    profile: bool = False,
) -> Trial:
    """Return the next trial of a command: its round is one more than the last of its kind in the run directory.

    Args:
        run: the run directory.
        command: a program and its arguments.
        name: what tables call it; None takes the script's.
        start: first measured step; None, with `stop`, finds the end of warm-up.
        stop: one past the last measured step.
        profile: profile [start, stop) and measure the other steps.

    Raises:
        UsageError: the name or the window is empty, one end of the window is missing, or there is none to profile, or
            it begins with the first step.
    """
    if name is not None and not name.strip():
        raise UsageError("option-value", "the name of a measurement is empty: give one word or more")
    if profile and (start is None or stop is None):
        raise UsageError("option-missing", "--profile needs the steps to profile: give --start and --stop")
    if (start is None) != (stop is None):
        raise UsageError("option-missing", "--start and --stop go together: give both or neither")
    if profile and start == 0:
        raise UsageError(
            "option-value", "--profile with --start 0: when the first step begins is not known; give --start 1 or more"
        )
    named = name or name_of(command)
    words = tuple(redact_text(" ".join(command)).split(" "))
    first = Trial(
        kind="measure",
        implementation=named,
        command=words,
        start_iteration=start,
        stop_iteration=stop,
        profiler="torch" if profile else None,
        **_WITHOUT_MODEL,
    )
    return in_next_round(run, first)


def in_next_round(run: RunDirectory, trial: Trial) -> Trial:
    """Return a trial of kind measure in the round after the last one of its name and command in the run directory."""
    # A damaged trial may be a round of this command: nothing is measured into its folder.
    folder = re.compile(re.escape(trial.trial_id.rsplit("-n", 1)[0]) + r"-n\d+-r(\d+)-[0-9a-f]{8}")
    rounds = []
    for directory in run.trials():
        try:
            other = directory.read_trial()
        except SchemaError:
            found = folder.fullmatch(directory.path.name)
            rounds += [int(found[1])] if found else []
            continue
        if (other.kind, other.implementation, other.command) == ("measure", trial.implementation, trial.command):
            rounds.append(other.round)
    return dataclasses.replace(trial, round=max(rounds, default=-1) + 1)


# Fields of a model, which a script does not tell.
_WITHOUT_MODEL: dict[str, Any] = {
    "task": "measure", "strategy": "", "preset": "", "precision": "", "data": "", "seq_len": 1, "micro_batch_size": 1,
}  # fmt: skip


def measure_script(
    run: RunDirectory,
    trial: Trial,
    request: dict[str, Any],
    devices: Devices,
    options: LaunchOptions,
    begun: Callable[[TrialDirectory], None],
) -> TrialDirectory:
    """Run a trial of `plan_script` to its end and return its folder; the run directory must be locked."""
    tidy(run)
    for directory in run.trials():
        with contextlib.suppress(SchemaError):
            before = directory.read_trial()
            if before.kind == "measure" and directory.read_result() is None:  # another kind is resumed
                reason = "killed with its launcher before it recorded a result"
                finish(before, directory, "crashed", reason, options, code="worker-lost")
    record_request(run, [trial], request)
    directory = run.trial(trial.trial_id)
    begun(directory)
    try:
        about = {"script_sha256": script_sha256(options.program), "script_folder": script_folder(options.program)}
        environment = {**capture(devices), **about}
        result = run_trial(trial, directory, devices, environment, options)
    finally:
        write_results(run)
    measured = run.trial(str(result["trial_id"]))
    record_request(run, [measured.read_trial()], request)  # under the number of ranks that it turned out to have
    return measured
