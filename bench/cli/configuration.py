"""Options of commands that measure one configuration, or the fastest one of a run."""

from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from bench.cli.options import RetryOptions
from bench.cli.progress import describe, note
from bench.machine.devices import Devices
from bench.sweep.options import AUTO, TaskFlags
from bench.sweep.trials import Sweep
from common.errors import UsageError
from common.flags import Positional, flag
from records.trial import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class OneConfiguration(RetryOptions):
    """Model, data and precision of one configuration, by the names that `Sweep` has for several."""

    task: Positional[str] = "pretrain"
    """Task to train."""
    task_flags: TaskFlags = field(default_factory=TaskFlags)
    preset: str = "base"
    """Model size."""
    seq_len: int | None = None
    """Maximum tokens per sequence; default squad: 384; gap: 512; others: 128."""
    padding: str = AUTO
    """Padding of fine-tuning batches: to the longest sequence, or to --seq-len; default auto: longest."""
    precision: str = AUTO
    """Numeric precision; default auto: bf16 where the hardware supports it, otherwise fp32."""
    data: str = "synthetic"
    """Data of the batches: synthetic, synthetic:<lengths or path>, or a path."""
    dropout: float = 0.1
    """Dropout probability everywhere, attention included."""
    seed: int = 42
    """Seed of weights, data order and dropout."""
    threads: int | None = None
    """CPU threads per rank; default an equal share."""

    def sweep(self, **own: Any) -> Sweep:
        """Return the sweep of this configuration; `own` are the fields of `Sweep` that these options do not have."""
        return Sweep(
            task=self.task,
            task_flags=self.task_flags,
            presets=(self.preset,),
            seq_lens=() if self.seq_len is None else (self.seq_len,),
            padding=self.padding,
            precisions=(self.precision,),
            data=self.data,
            dropout=self.dropout,
            seed=self.seed,
            threads=self.threads,
            **own,
        )


def check_winner(options: Any, besides: Collection[str]) -> None:
    """Refuse options other than `besides` with --winner-of. Raises UsageError."""
    default = type(options)()
    names = (item.name for item in fields(options) if item.name not in besides)
    if other := [flag(name) for name in names if getattr(options, name) != getattr(default, name)]:
        problem = f"--winner-of takes the configuration from the run: omit {' '.join(other)}"
        raise UsageError("option-conflict", problem)


def trial_of_winner(
    folder: Path, task: str, devices: Devices, implementation: str | None = None, **changes: Any
) -> Trial:
    """Return the trial of another kind of the fastest configuration of a run; `changes` are its own fields."""
    from bench.sweep.winner import fastest_trial

    winner = fastest_trial(folder, task, devices, implementation)
    trial = replace(winner, round=0, relative_half_width=Sweep().precision_target, **changes)
    note(f"the fastest configuration of {folder}: {describe(trial)}")
    return trial
