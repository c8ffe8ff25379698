"""Options of commands that measure one configuration: the flags that name it, and the sweep that has it alone."""

from dataclasses import dataclass, field
from typing import Any

from bench.cli.options import RetryOptions
from bench.sweep.options import AUTO, TaskFlags
from bench.sweep.trials import Sweep
from common.flags import Positional


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
