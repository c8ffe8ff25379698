"""Batches keep their order, their errors and their position on the way."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from bert.data.batch import Batch, BatchCounts
from bert.data.batches import DataSpec
from bert.parallel import make_strategy
from bert.tasks.pretrain.batches import SyntheticBatches
from bert.train.feed import POOL, Feed, data_spec
from common.train_spec import TrainSpec


class Stream:
    """So many batches, then an end or an error."""

    def __init__(self, count: int, fail: bool = False) -> None:
        self.count, self.fail, self.taken = count, fail, 0

    def __iter__(self) -> Iterator[Batch]:
        while self.taken < self.count:
            self.taken += 1
            yield Batch({"x": torch.tensor([self.taken - 1])}, BatchCounts(1, 1, 1, 1, 1))
        if self.fail:
            raise OSError("shard went away")

    def state_dict(self) -> dict[str, Any]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.taken = state["taken"]


def doubled(batch: Batch) -> Batch:
    return Batch({"x": batch.tensors["x"] * 2}, batch.counts)


@pytest.fixture(autouse=True)
def no_pinning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batch, "pin", lambda batch: batch)  # page-locked memory needs a GPU


@pytest.mark.parametrize("pinned", [False, True])
def test_an_error_of_the_source_arrives_after_the_batches_before_it(pinned: bool) -> None:
    feed = Feed(Stream(2, fail=True), pinned, doubled)
    assert [int(next(feed).tensors["x"]) for _ in range(2)] == [0, 2]
    with pytest.raises(OSError, match="shard went away"):
        next(feed)


@pytest.mark.parametrize("pinned", [False, True])
def test_batches_made_ahead_do_not_count_as_trained_on(pinned: bool) -> None:
    def stream() -> Any:
        return SyntheticBatches(DataSpec(data="synthetic", seq_len=16, micro_batch_size=2, vocab_size=99))

    feed = Feed(stream(), pinned)
    try:
        assert feed.position["samples"] == 0
        taken = [next(feed) for _ in range(3)]
        assert feed.position["samples"] == 6
    finally:
        feed.close()
    for left, right in zip(taken, stream(), strict=False):
        assert torch.equal(left.tensors["input_ids"], right.tensors["input_ids"])


def test_batches_are_pinned_from_the_gpu_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert len(list(Feed(Stream(2), True))) == 2
    assert chosen == [3]


@pytest.mark.parametrize(
    ("device", "ranks", "changes", "divided", "pool"),
    [
        ("cpu", 1, {}, False, 1),
        ("cpu", 2, {}, True, 1),
        ("cuda", 1, {}, True, POOL),
        ("cuda", 8, {"micro_batch_size": 64}, True, POOL),
        ("cuda", 8, {"micro_batch_size": 128}, True, POOL // 2),  # no more samples than a reader of shards keeps
        ("cuda", 1, {"micro_batch_size": 5000}, False, 1),
        ("cuda", 8, {"step": "plain"}, False, 1),
        ("cuda", 8, {"task": "squad"}, True, 1),  # its rows are padded to the longest
        ("cuda", 8, {"model": "folder", "preset": "none of ours"}, False, 1),
    ],
)
def test_ranks_and_micro_batches_of_a_gpu_share_the_work_of_real_tokens(
    device: str, ranks: int, changes: dict[str, Any], divided: bool, pool: int
) -> None:
    strategy = make_strategy("ddp")
    strategy.device, strategy.world_size = torch.device(device), ranks
    found = data_spec(TrainSpec(**{"preset": "large", "micro_batch_size": 8, **changes}), strategy)
    assert (found.token_work > 0, found.pool, found.world_size) == (divided, pool, ranks)
