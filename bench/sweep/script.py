"""Measure a training script in a run directory: every call adds a trial, a further round of the same command."""

import contextlib
import dataclasses
import hashlib
import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.machine.devices import Devices, capture
from bench.run.supervise import LaunchOptions, finish, run_trial
from bench.sweep.sweep import record_request, write_results
from common.errors import SchemaError, UsageError
from common.redact import redact_text
from records.run import RunDirectory, TrialDirectory
from records.trial import Trial

_INTERPRETERS = ("python", "torchrun", "accelerate", "deepspeed")
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


def check_program(command: Sequence[str]) -> None:
    """Refuse a command that cannot be started. Raises UsageError."""
    if shutil.which(command[0]) is None:
        if Path(command[0]).suffix == ".py" and Path(command[0]).is_file():
            raise UsageError("option-value", f"{command[0]} is a Python script: measure -- python {command[0]}")
        raise UsageError("tool-missing", f"program {command[0]!r} was not found: give its path, or install it")


def name_of(command: Sequence[str]) -> str:
    """Return a name for a command: of its first Python or shell script, of the module after -m, or of its program."""
    program = Path(command[0]).name
    for word, following in itertools.zip_longest(command, command[1:], fillvalue=""):
        if word.endswith((".py", ".sh")):
            return Path(word).name
        if word == "-m" and following and following not in _LAUNCHERS and program.startswith(_INTERPRETERS):
            return following
    return program


def script_sha256(command: Sequence[str]) -> str | None:
    """Return the SHA-256 of the Python files of a command, not of what they import; None where no file is found."""
    paths = [Path(word) for word in command if word.endswith(".py")]
    for place in (Path(*name.split(".")) for before, name in itertools.pairwise(command) if before == "-m"):
        paths += [place.with_name(f"{place.name}.py"), place / "__main__.py"]
    contents = [path.read_bytes() for path in paths if path.is_file()]
    digests = b"".join(hashlib.sha256(content).digest() for content in contents)
    return hashlib.sha256(digests).hexdigest() if contents else None


def plan_script(
    run: RunDirectory,
    command: Sequence[str],
    name: str | None = None,
    start: int | None = None,
    stop: int | None = None,
    profile: bool = False,
) -> Trial:
    """Return the next trial of a command: its round is one more than the last of its kind in the run directory.

    With `profile` the steps [start, stop) are profiled, and the others measured. Raises UsageError.
    """
    if profile and not start:
        problem = "--profile needs the steps to profile: give --start (1 or more, since the start of step 0 is unknown)"
        raise UsageError("option-missing" if start is None else "option-value", f"{problem} and --stop")
    first = Trial(
        kind="measure",
        implementation=name or name_of(command),
        command=tuple(redact_text(" ".join(command)).split(" ")),
        start_iteration=start,
        stop_iteration=stop,
        profiler="torch" if profile else None,
        # What a script does not tell.
        task="measure",
        strategy="",
        preset="",
        precision="",
        data="",
        seq_len=1,
        micro_batch_size=1,
    )
    return in_next_round(run, first)


def in_next_round(run: RunDirectory, trial: Trial) -> Trial:
    """Return a trial of kind measure in the round after the last one of its name and command in the run directory."""
    same = ("measure", trial.implementation, trial.command)
    rounds = [one.round for _, one in _trials(run) if (one.kind, one.implementation, one.command) == same]
    return dataclasses.replace(trial, round=max(rounds, default=-1) + 1)


def _trials(run: RunDirectory) -> Iterator[tuple[TrialDirectory, Trial]]:
    for directory in run.trials():
        with contextlib.suppress(SchemaError):
            yield directory, directory.read_trial()


def measure_script(
    run: RunDirectory,
    trial: Trial,
    request: dict[str, Any],
    devices: Devices,
    options: LaunchOptions,
) -> TrialDirectory:
    """Run a trial of `plan_script` to its end and return its folder; the run directory must be locked."""
    for directory, before in _trials(run):
        if before.kind == "measure" and not directory.result_json.exists():  # another kind is resumed
            reason = "killed with its launcher before it recorded a result"
            finish(before, directory, "crashed", reason, options, code="worker-lost")
    record_request(run, [trial], request)
    directory = run.trial(trial.trial_id)
    about = {"script_sha256": script_sha256(options.program)}
    try:
        result = run_trial(trial, directory, devices, {**capture(devices), **about}, options)
    finally:
        write_results(run)
    measured = run.trial(str(result["trial_id"]))
    record_request(run, [measured.read_trial()], request)  # under the number of ranks that it turned out to have
    return measured
