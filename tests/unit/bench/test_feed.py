"""Batches keep their order and their errors on the way."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch

from bench.run.feed import feed
from bert.data.batch import Batch, BatchCounts


def batches(count: int, fail: bool = False) -> Iterator[Batch]:
    for number in range(count):
        yield Batch({"x": torch.tensor([number])}, BatchCounts(1, 1, 1, 1, 1))
    if fail:
        raise OSError("shard went away")


def doubled(batch: Batch) -> Batch:
    return Batch({"x": batch.tensors["x"] * 2}, batch.counts)


@pytest.mark.parametrize("pinned", [False, True])
def test_order_content_and_end_are_kept(pinned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batch, "pin", lambda batch: dataclasses.replace(batch))  # pinning itself needs a GPU
    assert [int(batch.tensors["x"]) for batch in feed(batches(5), doubled, pinned)] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("pinned", [False, True])
def test_an_error_of_the_source_arrives_after_the_batches_before_it(
    pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Batch, "pin", lambda batch: dataclasses.replace(batch))
    stream = feed(batches(2, fail=True), doubled, pinned)
    assert int(next(stream).tensors["x"]) == 0
    assert int(next(stream).tensors["x"]) == 2
    with pytest.raises(OSError, match="shard went away"):
        next(stream)


def test_batches_are_pinned_from_the_gpu_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(Batch, "pin", lambda batch: dataclasses.replace(batch))
    assert len(list(feed(batches(2), doubled, True))) == 2
    assert chosen == [3]
