"""Names of options on the command line, and what marks those without a name."""

from typing import Annotated, TypeVar

T = TypeVar("T")
POSITIONAL = "positional"
Positional = Annotated[T, POSITIONAL]
"""Type of an option that is a word without a name."""


def flag(name: str) -> str:
    """Return the option of a field, such as --global-batch-size of global_batch_size."""
    return f"--{name.replace('_', '-')}"
