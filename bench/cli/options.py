"""Options that commands share, and the headings and choices of options in the help."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from common.errors import UsageError
from common.flags import Groups

GROUPS: Groups = {
    "model and data": (
        "file", "phase", "data", "preset", "model", "trust_remote_code", "implementation",
        "input", "vocab", "init", "checkpoint", "seq_len", "padding", "dropout", "seed", "eval_data",
    ),
    "execution": (
        "batch_size", "strategy", "zero_stage", "deepspeed_config",
        "lever", "levers", "allocator", "nodes", "device", "devices", "scaling", "grad_accum", "precision",
        "activation_checkpointing", "bucket_mib", "threads", "rounds", "max_batch_search", "max_batch_limit",
        "input_only", "global_batch_size", "micro_batch_size", "grad_accum_steps",
    ),
    "measuring": (
        "start", "stop", "min_steps", "max_steps", "max_seconds", "precision_target", "memory_limit_gib",
        "time_budget", "timeout_seconds", "retry_failed",
    ),
    "output": ("json", "out", "output", "full", "csv", "markdown", "price_per_hour", "log_to", "log_every"),
}  # fmt: skip
"""Headings in the help of every command. A dataclass of options can add its own as GROUPS."""
CHOICES: dict[str, tuple[str, ...]] = {
    "preset": ("bert.model.config:PRESETS",),
    "allocator": ("bench.run.resources:ALLOCATORS",),
    "strategy": ("auto", "bert.parallel:STRATEGIES"),
    "precision": ("auto", "records.trial:PRECISIONS"),
    "device": ("auto", "cpu", "cuda"),
    "optimizer": ("lamb", "adamw"),
    "schedule": ("poly", "linear", "constant", "cyclic"),
    "scaling": ("weak", "strong"),
    "padding": ("auto", "longest", "fixed"),
    "profiler": ("bench.profilers:PROFILERS",),
    "log_to": ("bench.loggers:LOGGERS", "none"),
    "collective": ("bench.run.comm:COLLECTIVES",),
    "dtype": ("bench.run.comm:DTYPES",),
    "tasks": ("bert.tasks.glue.tasks:TASKS",),
    "download": ("wikipedia", "pg19"),
}
"""Words that fields accept, by name; MODULE:NAME stands for the words of a registry, which is imported when needed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Printed:
    """Options of commands with a result for programs."""

    json: bool = False
    """Print the result as JSON on stdout; progress goes to stderr."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables(Printed):
    """Options of commands that print long tables."""

    full: bool = False
    """Print every table whole instead of one screen."""
    csv: Path | None = None
    """Also write every table to this folder as CSV in full precision; default no CSV files."""
    markdown: Path | None = None
    """Append every table to this file as Markdown, such as $GITHUB_STEP_SUMMARY; default no file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialOptions(Printed):
    """Options of commands that run trials."""

    out: Path
    """Run directory. The same command resumes it."""
    device: str = "auto"
    """Device type; default auto: CUDA where a GPU is present, otherwise the CPU."""
    timeout_seconds: float = 900.0
    """Time limit of a trial in s; a trial that exceeds it has the status timeout."""
    retry_failed: bool = False
    """Run failed trials again."""


def given_names(argv: Sequence[str]) -> frozenset[str]:
    """Return the names of the options on a command line, with underscores and without -- and no-."""
    words = (word.partition("=")[0] for word in argv if word.startswith("--"))
    return frozenset(word.removeprefix("--").replace("-", "_").removeprefix("no_") for word in words)


def run_folder(out: Path) -> Path:
    """Return --out as an absolute path. Raises UsageError if it is the current folder or a file."""
    if out.exists() and (not out.is_dir() or out.resolve() == Path.cwd()):
        what = "the current folder" if out.is_dir() else "a file"
        raise UsageError("path-kind", f"--out {str(out)!r} is {what}: give a folder of its own, such as runs/mine")
    return out.resolve()
