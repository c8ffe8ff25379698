"""Ranks agree on failures: each in a thread here, joined by what a process group does."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
import torch

from bert.parallel.base import SingleStrategy
from common.errors import BertbenchError, LockedError, SchemaError, StorageError, UsageError

RANKS = 3


class Threaded(SingleStrategy):
    """One of several ranks in one process; they hand each other values in one list."""

    def __init__(self, rank: int, values: list[Any], barrier: Barrier) -> None:
        super().__init__()
        self.rank, self.world_size, self._values, self._barrier = rank, RANKS, values, barrier

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.gathered(values)).amax(0)

    def gathered(self, value: Any) -> list[Any]:
        self._values[self.rank] = value
        self._barrier.wait()
        result = list(self._values)
        self._barrier.wait()
        return result


def on_all(action: Callable[[Threaded], Any]) -> list[Any]:
    """Return what each rank returns or raises."""
    values, barrier = [None] * RANKS, Barrier(RANKS, timeout=20)

    def attempt(rank: int) -> Any:
        try:
            return action(Threaded(rank, values, barrier))
        except Exception as error:
            return error

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(attempt, range(RANKS)))


@pytest.mark.parametrize(("error", "failing"), [(StorageError, 0), (SchemaError, 1), (LockedError, 2)])
def test_the_failure_of_one_rank_is_that_of_all(error: type[BertbenchError], failing: int) -> None:
    def action(strategy: Threaded) -> None:
        def work() -> None:
            if strategy.rank == failing:
                raise error("nodes-disagree", f"Grüße: {'x' * 300}")

        strategy.together(work)

    results = on_all(action)
    assert [(type(result), result.code) for result in results] == [(error, "nodes-disagree")] * RANKS
    assert all("Grüße: " + "x" * 300 in str(result) for result in results)
    assert [str(result).startswith(f"rank {failing}: ") for result in results] == [rank != failing for rank in range(3)]


def test_a_text_that_differs_between_ranks_is_refused_on_all_and_results_stay_each_ranks_own() -> None:
    assert on_all(lambda strategy: strategy.together(lambda: strategy.rank * 10)) == [0, 10, 20]
    assert on_all(lambda strategy: strategy.any_rank(strategy.rank == 2)) == [True, True, True]
    on_all(lambda strategy: strategy.check_same("chunks+unpad", "optimizations"))
    found: list[BertbenchError] = []

    def differ(strategy: Threaded) -> None:
        with pytest.raises(UsageError) as raised:
            strategy.check_same("unpad" if strategy.rank else "fused-optimizer+unpad", "optimizations")
        found.append(raised.value)

    on_all(differ)
    assert len(found) > 1
    assert all(one.code == "unsupported-combination" and "fused-optimizer+unpad" in str(one) for one in found)
