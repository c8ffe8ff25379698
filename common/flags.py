"""Names and choices of options on the command line, and the recorded form of a user's options."""

import dataclasses
import json
from typing import Annotated, Any, TypeVar

from common.errors import UsageError

LARGEST_SEED = 2**32 - 1
"""Largest seed that NumPy's legacy generator accepts, which Hugging Face also seeds."""

T = TypeVar("T")
POSITIONAL = "positional"
Positional = Annotated[T, POSITIONAL]
"""Type of an option that is a word without a name."""


class OfTasks(tuple[str, ...]):
    """Annotates an option with the only tasks that have it, for the help; its dataclass checks them."""


def flag(name: str) -> str:
    """Return the option of a field, such as --global-batch-size of global_batch_size."""
    return f"--{name.replace('_', '-')}"


def check_seed(seed: int) -> None:
    """Raise UsageError unless every random generator of a training accepts this seed."""
    if not 0 <= seed <= LARGEST_SEED:
        raise UsageError("option-value", f"--seed {seed} must be a whole number from 0 to {LARGEST_SEED}")


def request_of(options: Any) -> dict[str, Any]:
    """Return a dataclass of options as plain JSON values."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(options), default=str))
    return plain
