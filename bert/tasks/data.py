"""What a plan asks of a task's data before anything runs. Imports no torch."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class DataSource:
    """The data of a sweep, looked at once before anything runs."""

    source: str
    """What Trial.data becomes."""
    fingerprint: str
    """Hash of the data, or of the lengths drawn from; empty for synthetic data of a named distribution."""
    seq_len: int | None
    """Tokens per sequence of real data; None where any length is possible."""
    max_predictions: int | None
    """Predicted positions per sequence of a folder; None for a named distribution."""
    vocab_size: int
    """Word pieces."""
    samples: int | None = None
    """Samples of an epoch; None for made-up data, which have no end."""


class TaskData(Protocol):
    """The data of one task. Implementations are stateless; bert.tasks.DATA lists them."""

    seq_len: int
    """Tokens per sequence where no other length is asked for."""
    paddings: tuple[str, ...]
    """Ways to pad a batch, the default first; empty where batches come padded."""

    def inspect(self, data: str, seq_len: int | None = None) -> DataSource:
        """Look at data, real or made up.

        Raises:
            InputError: there is none, or it is damaged (the message names the file).
            UsageError: no such synthetic data.
        """

    def max_predictions(self, seq_len: int) -> int:
        """Predicted positions per sequence where the data do not say."""

    def prepare_command(self, seq_len: int) -> str:
        """The command that prepares data of this length."""
