"""Agreement between ranks: whether an action worked on all of them, and a number or text of one of them."""

import math
from collections.abc import Callable
from typing import TypeVar, get_args

import torch

from bert.parallel.base import Strategy
from common.errors import BertbenchError, Code, InputError, LockedError, SchemaError, StorageError, UsageError

T = TypeVar("T")

# How a failure travels: the places of its class and of its code here.
_KINDS: tuple[type[BertbenchError], ...] = (
    BertbenchError, UsageError, InputError, StorageError, LockedError, SchemaError
)  # fmt: skip
_CODES: tuple[Code, ...] = get_args(Code)


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
    failed = -float(strategy.maximum(_vector(-math.inf if failure is None else -strategy.rank)))
    if failed == math.inf:
        return result
    first = strategy.rank == failed
    message = _broadcast(strategy, _in_words(failure) if first and failure is not None else "")
    kind = _KINDS[int(strategy.maximum(_vector(_kind(failure) if first else 0)))]
    code = _CODES[int(strategy.maximum(_vector(_CODES.index(_code(failure)) if first else 0)))]
    if first and failure is not None:
        raise failure
    raise kind(code, f"rank {int(failed)}: {message}") from failure


def known_to_first(strategy: Strategy, value: int) -> int:
    """Return rank 0's value, of at least 0, on every rank."""
    return int(strategy.maximum(_vector(value if strategy.rank == 0 else -1)))


def text_of_first(strategy: Strategy, text: str) -> str:
    """Return rank 0's text on every rank."""
    return _broadcast(strategy, text if strategy.rank == 0 else "")


def same_on_all(strategy: Strategy, text: str, what: str) -> None:
    """Refuse a text that is not the same on all ranks; every rank must call it.

    Raises:
        UsageError: a rank has another one than rank 0.
    """
    first = text_of_first(strategy, text)

    def check() -> None:
        if text != first:
            raise UsageError(
                "unsupported-combination",
                f"{what}: {text} here, but {first} on rank 0; install the same on all nodes, or give --levers",
            )

    together(strategy, check)


def any_rank(strategy: Strategy, value: bool) -> bool:
    """Whether the value is true on any rank."""
    return bool(strategy.maximum(_vector(value)) > 0)


def _broadcast(strategy: Strategy, text: str) -> str:
    """Return the text of the one rank that has one; empty if none has."""
    own = text.encode()
    length = int(strategy.maximum(_vector(len(own))))
    if not length:
        return ""
    letters = torch.zeros(length, dtype=torch.float64)
    letters[: len(own)] = torch.tensor(list(own), dtype=torch.float64)
    return bytes(int(letter) for letter in strategy.maximum(letters)).decode(errors="replace")


def _in_words(failure: Exception) -> str:
    return str(failure) if isinstance(failure, BertbenchError) else f"{type(failure).__name__}: {failure}"


def _kind(failure: Exception | None) -> int:
    fitting = [place for place, kind in enumerate(_KINDS) if isinstance(failure, kind)]
    return fitting[-1] if fitting else 0


def _code(failure: Exception | None) -> Code:
    return failure.code if isinstance(failure, BertbenchError) else "rank-failed"


def _vector(value: float) -> torch.Tensor:
    return torch.tensor([float(value)], dtype=torch.float64)
