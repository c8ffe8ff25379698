"""Batches of rows: what is in them, their order over epochs and ranks, positions, and their way to a device."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.refusals import refused
from support.row_task import FIRST_ID, VOCAB, made_rows

from bert.data.batch import Batch, BatchCounts
from bert.data.batches import DataSpec, RowBatches, check_rows, evaluation_rows, row_batch
from bert.data.rows import Ragged, TokenRows
from bert.parallel import make_strategy
from bert.tasks.pretrain.batches import SyntheticBatches
from bert.train.feed import POOL, Feed, data_spec
from common.train_spec import TrainSpec

ROWS = made_rows(50)


def spec(**changes: object) -> DataSpec:
    return DataSpec(**{"data": "rows", "seq_len": 24, "micro_batch_size": 4, "vocab_size": VOCAB, **changes})


def stream(rows: TokenRows = ROWS, **changes: object) -> RowBatches:
    return RowBatches(spec(**changes), rows)


def numbers(batch: Batch) -> list[int]:
    """Which rows a batch consists of."""
    return (batch.tensors["input_ids"][:, 2] - FIRST_ID - 50).tolist()


def drawn(batches: RowBatches, count: int) -> list[list[int]]:
    return [numbers(batch) for batch in itertools.islice(batches, count)]


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(lists))


@given(
    count=st.integers(1, 40),
    seed=st.integers(0, 99),
    padding=st.sampled_from(["longest", "fixed"]),
    regression=st.booleans(),
    data=st.data(),
)
def test_a_padded_batch_holds_exactly_its_rows(count, seed, padding, regression, data):
    columns = {"places": np.arange(3 * count).reshape(count, 3)}
    rows = made_rows(count, seed=seed, regression=regression, columns=columns)
    numbers = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=9)))
    batch = row_batch(rows, numbers, padding)
    tensors = {name: tensor.numpy() for name, tensor in batch.tensors.items()}
    lengths = rows.lengths[numbers]
    width = rows.max_seq_length if padding == "fixed" else min(rows.max_seq_length, -(-int(lengths.max()) // 8) * 8)
    assert tensors["input_ids"].shape == (len(numbers), width)
    for row, number in enumerate(numbers):
        length, begins = rows.lengths[number], rows.second[number]
        assert tensors["input_ids"][row].tolist() == [*rows.ids[number], *[0] * (width - length)]
        assert tensors["attention_mask"][row].tolist() == [1] * length + [0] * (width - length)
        segments = [0] * begins + [1] * (length - begins) + [0] * (width - length)
        assert tensors["token_type_ids"][row].tolist() == segments
    assert tensors["labels"].tolist() == rows.labels[numbers].tolist()
    assert tensors["labels"].dtype == (np.float32 if regression else np.int64)
    assert tensors["places"].tolist() == columns["places"][numbers].tolist()
    counts = batch.counts
    assert (counts.samples, counts.real_tokens) == (len(numbers), lengths.sum())
    assert (counts.padded_tokens, counts.squared_lengths) == (len(numbers) * width, (lengths**2).sum())


@pytest.mark.parametrize(("rank", "world_size", "size"), [(0, 1, 4), (1, 2, 2), (0, 1, 7), (2, 3, 1)])
def test_a_saved_position_continues_exactly_with_another_batch_size_or_number_of_ranks_too(
    rank: int, world_size: int, size: int
) -> None:
    order = flat(drawn(stream(micro_batch_size=1), 200))
    begun = stream()
    drawn(begun, 9)
    state = begun.state_dict()
    assert state["samples"] == 36 and state["fingerprint"] == ROWS.fingerprint
    resumed = stream(rank=rank, world_size=world_size, micro_batch_size=size)
    resumed.load_state_dict(state)
    again = stream(micro_batch_size=1)
    for step, batch in enumerate(drawn(resumed, 10)):
        start = 36 + step * size * world_size + rank * size
        assert batch == order[start : start + size]
    again.load_state_dict(resumed.state_dict())
    assert drawn(again, 3) == [[number] for number in order[36 + 10 * size * world_size :][:3]]


def test_a_position_of_other_rows_or_another_seed_is_refused() -> None:
    state = stream().state_dict()
    with refused("data-mismatch"):
        stream(made_rows(50, seed=9)).load_state_dict(state)
    with refused("settings-changed", "seed 42", "seed 1"):
        stream(seed=1).load_state_dict(state)


@given(count=st.integers(1, 30), ranks=st.integers(1, 5), size=st.integers(1, 7))
def test_an_evaluation_sees_every_row_on_exactly_one_rank(count, ranks, size):
    rows = made_rows(count)
    seen = []
    for rank in range(ranks):
        for numbers, batch in evaluation_rows(rows, size, rank, ranks):
            assert batch.tensors["labels"].tolist() == rows.labels[numbers].tolist()
            seen += numbers.tolist()
    assert sorted(seen) == list(range(count))
    lengths = [batch.tensors["input_ids"].shape[1] for _, batch in evaluation_rows(rows, size)]
    assert lengths == sorted(lengths, reverse=True), "the longest come first: a lack of memory shows at once"


def test_rows_that_do_not_fit_are_refused():
    rows = made_rows(4)
    unlabelled = replace(rows, labels=np.empty(0, dtype=np.int64))
    assert "labels" not in row_batch(unlabelled, np.arange(4)).tensors
    with refused("labels-invalid"):
        check_rows(unlabelled, "rows", 24, True)
    with refused("data-missing"):
        RowBatches(spec(), made_rows(0))
    with refused("data-mismatch", "24 tokens", "16"):
        check_rows(rows, "rows", 16, True)
    with refused("vocabulary-mismatch", 300, 100):
        RowBatches(spec(vocab_size=100), rows)
    with refused("rows-invalid", "0 to 1 tokens"):
        replace(rows, ids=Ragged.of([[], [1], [1], [1]]))


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
