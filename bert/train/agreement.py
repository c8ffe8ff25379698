"""Agreement between ranks: whether an action worked on all of them, and whether they have the same."""

from collections.abc import Callable
from typing import TypeVar

import torch

from bert.parallel.base import Strategy
from common.errors import BertbenchError, UsageError

T = TypeVar("T")


def together(strategy: Strategy, action: Callable[[], T]) -> T:
    """Run an action on every rank and return its local result; every rank must call it, at the same place.

    Raises:
        BertbenchError: it failed on a rank: the failure of the lowest such rank, of the same class and code on every
            rank; what is no BertbenchError there is one with the code rank-failed on the others.
    """
    result: T
    failure: Exception | None = None
    try:
        result = action()
    except Exception as error:  # whatever it is, the other ranks would wait for this one forever
        failure = error
    if not any_rank(strategy, failure is not None):
        return result
    known = failure if isinstance(failure, BertbenchError | None) else _unknown(failure)
    rank, first = next((rank, each) for rank, each in enumerate(strategy.gathered(known)) if each is not None)
    if rank == strategy.rank and failure is not None:
        raise failure
    raise type(first)(first.code, f"rank {rank}: {first}") from failure


def _unknown(failure: Exception) -> BertbenchError:
    return BertbenchError("rank-failed", f"{type(failure).__name__}: {failure}")


def same_on_all(strategy: Strategy, text: str, what: str) -> None:
    """Raise UsageError, on every rank, unless all ranks have the same text; every rank must call it."""
    first, *others = strategy.gathered(text)
    for rank, other in enumerate(others, 1):
        if other != first:
            raise UsageError("unsupported-combination", f"{what}: {other} on rank {rank}, but {first} on rank 0")


def any_rank(strategy: Strategy, value: bool) -> bool:
    """Whether the value is true on any rank."""
    return bool(strategy.maximum(torch.tensor([float(value)], dtype=torch.float64)) > 0)
