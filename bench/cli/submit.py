"""`bertbench submit SCHEDULER ... -- COMMAND`: render a job, then print, write or submit it."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cli.options import split_command
from bench.cli.parser import parse
from bench.cli.result import Result
from bench.cluster.schedulers import SCHEDULERS, load_scheduler
from bench.cluster.schedulers.base import JobOptions, Rendered, Scheduler
from bench.cluster.schedulers.words import quote
from common.atomic import storage_errors, write_text
from common.errors import MissingToolError, UsageError
from common.redact import REDACTED, redact_environment

_HELP = {
    "slurm": "batch script: srun and torchrun, job arrays, unequal nodes, a stop before the time limit",
    "kubernetes": "TrainJob of Kubeflow Trainer, or JobSet",
    "azureml": "command job or sweep job of Azure Machine Learning",
}
_OURS = "Written by `bertbench submit"


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """A command with its scheduler and the options of the job."""

    scheduler: Scheduler
    options: JobOptions
    command: list[str]


def read_words(words: list[str], program: str) -> Submission | None:
    """Parse the command line; return None for help. Raises UsageError if the first word is not a scheduler."""
    if words and words[0] in ("-h", "--help"):
        return None
    if not words or words[0].startswith("-"):
        raise UsageError("option-missing", f"{program} needs a scheduler: {program} {' | '.join(SCHEDULERS)} [options]")
    scheduler = load_scheduler(words[0])
    own, command = split_command(words[1:])
    options = parse(scheduler.options, own, f"{program} {words[0]}")
    return Submission(scheduler=scheduler, options=options, command=command)


def run(asked: Submission | None) -> Result:
    """Render a job, then print, write or submit it; return exit code 1 if the scheduler rejects it."""
    from analysis.render.tables import Plain

    if asked is None:
        return Result(blocks=[Plain(_usage())])
    options = asked.options
    rendered = asked.scheduler.render(options, asked.command)
    notes = [*rendered.notes, *_secrets(options)]
    if options.submit:
        return _hand_over(asked.scheduler, options, rendered, notes)
    if options.out is None:
        missing = [quote(str(folder)) for folder in rendered.folders if not folder.is_dir()]
        if missing:
            notes.append(f"the job needs these folders before it starts: mkdir -p {' '.join(missing)}")
        return Result(raw=rendered.text, notes=notes)
    _write(options.out, rendered)
    handing_over = " ".join(map(quote, asked.scheduler.submission(options, options.out)))
    return Result(notes=[*notes, f"wrote {options.out}; to submit: {handing_over}"])


def _secrets(options: JobOptions) -> list[str]:
    shown = redact_environment(options.variables)
    return [
        f"--env {name} looks like a secret and is written to the job file: use the scheduler's secret store instead"
        for name, value in options.variables.items()
        if shown[name] != value or REDACTED in shown[name]
    ]


def _write(path: Path, rendered: Rendered) -> None:
    if path.exists():
        with storage_errors(path):
            before = path.read_text(encoding="utf-8", errors="replace")
        if _OURS not in before:
            raise UsageError(
                "folder-occupied", f"{path} exists and was not written by bertbench: give another --out, or remove it"
            )
    write_text(path, rendered.text)
    for folder in rendered.folders:  # Slurm fails a job without a message if it cannot open the log
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)


def _hand_over(scheduler: Scheduler, options: JobOptions, rendered: Rendered, notes: list[str]) -> Result:
    from analysis.render.tables import Plain

    if shutil.which(scheduler.tool) is None:
        raise MissingToolError(
            "tool-missing", f"--submit needs {scheduler.tool}, which is not installed: {scheduler.remedy}"
        )
    path = options.out or Path(f"{options.name}{rendered.suffix}")
    _write(path, rendered)
    words = scheduler.submission(options, path)
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )
    said = done.stdout.rstrip() or f"no output from {scheduler.tool}"
    if done.returncode:
        refusal = f"{scheduler.tool} rejected {path} (exit code {done.returncode}): {said}"
        return Result(notes=notes, problems=[refusal], code=1)
    return Result(blocks=[Plain(said)], notes=notes)


def _usage() -> str:
    width = max(map(len, SCHEDULERS))
    lines = "\n".join(f"  {name:<{width}}  {_HELP[name]}" for name in SCHEDULERS)
    return (
        "usage: bertbench submit SCHEDULER [options] -- COMMAND\n\n"
        f"{lines}\n\n  bertbench submit SCHEDULER --help   show the options of a scheduler"
    )


def __getattr__(name: str) -> Any:
    """Return the options of all schedulers as OPTIONS, for the reference page."""
    if name != "OPTIONS":
        raise AttributeError(name)
    return {f"submit {scheduler} -- COMMAND": load_scheduler(scheduler).options for scheduler in SCHEDULERS}
