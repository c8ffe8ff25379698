"""`bertbench submit SCHEDULER ... -- COMMAND`: render a job, write it, hand it over."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.cli.options import parse, split_command
from bench.cli.progress import note
from bench.cluster.schedulers import SCHEDULERS, load_scheduler
from bench.cluster.schedulers.base import JobOptions, Rendered, Scheduler
from bench.cluster.schedulers.words import quote
from common.atomic import storage_errors, write_text
from common.errors import MissingToolError, UsageError
from common.redact import REDACTED, redact_environment

_HELP = {
    "slurm": "a batch script: srun and torchrun, arrays, unequal nodes, a stop before the time limit",
    "kubernetes": "a TrainJob of Kubeflow Trainer, or a JobSet",
    "azureml": "a command job or a sweep job of Azure Machine Learning",
}
_OURS = "Written by `bertbench submit"


def main(argv: list[str]) -> int:
    """Run the command; 0 when the job is written or handed over, 1 when the scheduler refuses it."""
    if not argv or argv[0] in ("-h", "--help"):
        print(_usage(), end="", file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    if argv[0].startswith("-"):
        raise UsageError(
            "option-missing",
            f"bertbench submit needs a scheduler first: bertbench submit {' | '.join(SCHEDULERS)} [options]",
        )
    scheduler = load_scheduler(argv[0])
    words, command = split_command(argv[1:])
    options = parse(scheduler.options, words, f"bertbench submit {argv[0]}")
    rendered = scheduler.render(options, command)
    for text in (*rendered.notes, *_secrets(options)):
        note(text)
    if options.submit:
        return _hand_over(scheduler, options, rendered)
    if options.out is None:
        missing = [quote(str(folder)) for folder in rendered.folders if not folder.is_dir()]
        if missing:
            note(f"before this job starts: mkdir -p {' '.join(missing)}")
        print(rendered.text, end="")
        return 0
    _write(options.out, rendered)
    handing_over = " ".join(map(quote, scheduler.submission(options, options.out)))
    print(f"wrote {options.out}; to submit: {handing_over}", file=sys.stderr)
    return 0


def _secrets(options: JobOptions) -> list[str]:
    """Say which variables look like secrets."""
    shown = redact_environment(options.variables)
    return [
        f"--env {name} looks like a secret and will stand in the file: leave it to the scheduler's own means"
        for name, value in options.variables.items()
        if shown[name] != value or REDACTED in shown[name]
    ]


def _write(path: Path, rendered: Rendered) -> None:
    if path.exists():
        with storage_errors(path):
            before = path.read_text(encoding="utf-8", errors="replace")
        if _OURS not in before:
            raise UsageError(
                "folder-occupied", f"{path} exists and is no job that bertbench wrote: give another --out, or remove it"
            )
    write_text(path, rendered.text)
    for folder in rendered.folders:  # Slurm fails a job whose log cannot be opened, and leaves no log that says so
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)


def _hand_over(scheduler: Scheduler, options: JobOptions, rendered: Rendered) -> int:
    if shutil.which(scheduler.tool) is None:
        raise MissingToolError(
            "tool-missing", f"--submit needs {scheduler.tool}, which is not installed here: {scheduler.remedy}"
        )
    path = options.out or Path(f"{options.name}{rendered.suffix}")
    _write(path, rendered)
    words = scheduler.submission(options, path)
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False
    )
    print(done.stdout.rstrip() or f"{scheduler.tool} said nothing", file=sys.stderr if done.returncode else sys.stdout)
    if done.returncode:
        print(f"bertbench: {scheduler.tool} refused {path} (exit code {done.returncode})", file=sys.stderr)
    return 1 if done.returncode else 0


def _usage() -> str:
    width = max(map(len, SCHEDULERS))
    lines = "\n".join(f"  {name:<{width}}  {_HELP[name]}" for name in SCHEDULERS)
    return (
        "usage: bertbench submit SCHEDULER [options] -- COMMAND\n\n"
        f"{lines}\n\n  bertbench submit SCHEDULER --help   options of a scheduler\n"
    )


def __getattr__(name: str) -> Any:
    """Return the options of all schedulers as OPTIONS, for the reference page."""
    if name != "OPTIONS":
        raise AttributeError(name)
    return {f"submit {scheduler} -- COMMAND": load_scheduler(scheduler).options for scheduler in SCHEDULERS}
