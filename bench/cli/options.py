"""Options that commands share, and those that the help of a command leaves to --help-all."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from bench.sweep.options import DEVICE, POSITIVE
from common.errors import UsageError

RARE = frozenset({
    "activation_checkpointing", "best_by", "bucket_mib", "deepspeed_config", "delimiter", "dropout", "encoding",
    "eval_every", "eval_samples", "fp8_fast_gradients", "grad_accum", "grad_accum_steps", "head", "header",
    "implementation", "keep", "log_every", "log_to", "logfile", "max_batch_limit", "max_grad_norm", "max_steps",
    "memory_limit_gib", "micro_batch_size", "min_steps", "model", "optimizer", "padding", "phase", "precision_target",
    "prep_only", "price_per_hour", "profile_steps", "quoting", "retry_failed", "sample_limit", "save_every", "scaling",
    "schedule", "seed", "test", "threads", "timeout_seconds", "train_on_all", "trust_remote_code", "validation",
    "warmup", "weight_decay", "zero_stage", "zero_stages",
})  # fmt: skip
"""Fields that --help leaves to --help-all, so that it fits one screen."""


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
    """Append the answer to this file as Markdown of at most 60 lines; with --full every table; default no file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialOptions(Printed):
    """Options of commands that run trials."""

    out: Path
    """Run directory. The same command resumes it."""
    device: Annotated[str, DEVICE] = "auto"
    """Device type; default auto: a GPU where one is present."""
    timeout_seconds: Annotated[float, POSITIVE] = 900.0
    """Time limit of a trial in s; a trial that exceeds it has the status timeout."""
    retry_failed: bool = False
    """Run failed trials again."""


def run_folder(out: Path) -> Path:
    """Return --out as an absolute path. Raises UsageError if it is the current folder or a file."""
    if out.exists() and (not out.is_dir() or out.resolve() == Path.cwd()):
        what = "the current folder" if out.is_dir() else "a file"
        raise UsageError("path-kind", f"--out {str(out)!r} is {what}: give a folder of its own, such as runs/mine")
    return out.resolve()
