"""Ranks agree on failures: each in a thread here, joined by what a process group does."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from support import training_runs

from bert.checkpoints.read import saved_steps
from bert.model.config import model_config
from bert.model.heads import BertForPretraining
from bert.optim.registry import lamb
from bert.parallel.base import SingleStrategy
from bert.tasks.base import DataIdentity
from bert.train.checkpoint import TrainState, save, versions
from bert.train.settings import TrainSettings
from common.errors import BertbenchError, LockedError, SchemaError, StorageError, UsageError

RANKS = 3


class Group:
    """Values that ranks in threads hand each other."""

    def __init__(self) -> None:
        self.values: list[Any] = [None] * RANKS
        self.barrier = Barrier(RANKS, timeout=20)


class Threaded(SingleStrategy):
    """One of several ranks in one process."""

    def __init__(self, rank: int, group: Group) -> None:
        super().__init__()
        self.rank, self.world_size, self._group = rank, RANKS, group

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        return torch.stack(self.gathered(values)).amax(0)

    def gathered(self, value: Any) -> list[Any]:
        self._group.values[self.rank] = value
        self._group.barrier.wait()
        result = list(self._group.values)
        self._group.barrier.wait()
        return result


def on_all(action: Callable[[Threaded], Any]) -> list[Any]:
    """Return what each rank returns or raises."""
    group = Group()

    def attempt(rank: int) -> Any:
        try:
            return action(Threaded(rank, group))
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


def saver(folder: Path, wanted: TrainSettings) -> Callable[[int], Callable[[Threaded], tuple[Path, int]]]:
    """Return what saves, on a rank, a checkpoint after some updates."""
    model = BertForPretraining(model_config(wanted))
    optimizer = lamb(model, 1e-3)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()

    def after(step: int) -> Callable[[Threaded], tuple[Path, int]]:
        state = TrainState(
            settings=wanted, data=DataIdentity(source="synthetic"), position={"step": step},
            progress={"applied_steps": step, "skipped_steps": 0, "skipped_in_a_row": 0}, samples_seen=step, scaler={},
            optimizer_steps=step, evaluation=None, versions=versions(),
        )  # fmt: skip
        return lambda strategy: save(folder, model, optimizer, state, strategy)

    return after


def test_a_checkpoint_that_one_rank_cannot_write_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = training_runs.settings("synthetic", world_size=RANKS, strategy="ddp")
    save_after = saver(tmp_path, wanted)
    results = on_all(save_after(1))
    assert [path.name for path, _ in results] == ["step-0000001"] * RANKS
    assert {path.name for path in (tmp_path / "step-0000001").glob("rng*")} == {
        f"rng-{r}.safetensors" for r in range(3)
    }

    def full(path: Path, device: torch.device) -> None:
        if path.name == "rng-1.safetensors":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("bert.train.checkpoint.save_rng", full)
    failures = on_all(save_after(2))
    assert [(type(failure), failure.code) for failure in failures] == [(StorageError, "disk-full")] * RANKS
    assert saved_steps(tmp_path) == [1] and [path.name for path in tmp_path.iterdir()] == ["step-0000001"]
