"""What a task does for the commands `data`, `predict` and `eval`: options that become flags, and what a call came to.
Imports no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from bert.optim.precision import Precision
    from bert.predict import Opened


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a call came to, for programs and for people."""

    document: Any
    """Plain JSON values: what --json prints."""
    lines: Sequence[str]
    notes: Sequence[str] = ()
    """What the user should know besides; each is said once."""
    following: Sequence[str] | None = None
    """The words of the command that comes next, without `bertbench`; None where there is none."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A model where it is to compute."""

    model: "torch.nn.Module"
    """On `device`, in evaluation mode."""
    device: "torch.device"
    precision: "Precision"
    batch_size: int


class Host(Protocol):
    """What the command line does for a task: it alone prints, chooses devices and knows run directories."""

    def note(self, text: str) -> None:
        """Tell the user something at once."""

    def progress(self, stage: str, done: int, total: int | None) -> None:
        """Show how far a stage is; see bert.data.pool.Progress."""

    def checkpoint(self, path: Path) -> Path:
        """Return the best checkpoint of a run that knows one, else its latest; a path that is no run as it is."""

    def ready(self, opened: "Opened") -> Ready:
        """Put a model on the device that was asked for. Raises UsageError: no such device or precision."""


class TaskCommand(Protocol):
    """One command of a task. It is made with the name of the task; its docstring is the command's help."""

    options: type[Any]
    """A dataclass: its fields are the flags, the docstrings below them the help."""
    computes: bool
    """Whether it runs a model: the command then has --device, --precision and --batch-size."""

    def run(self, options: Any, host: Host) -> Outcome:
        """Do it. Raises BertbenchError."""


def rows_of(*pairs: tuple[str, object]) -> list[str]:
    """Return one line for each name and what there is to say of it."""
    return [f"{name:<11} {text}" for name, text in pairs]


def with_casing_note(summaries: Sequence[Any], config: Any) -> list[Any]:
    """Return summaries (dataclasses with `notes`), with a note where vocabulary and casing of `config` do not fit."""
    from bert.data.vocabulary import casing_note, load_vocabulary

    casing = casing_note(load_vocabulary(config.vocab, config.lower_case))
    return [summary if casing is None else replace(summary, notes=(*summary.notes, casing)) for summary in summaries]
