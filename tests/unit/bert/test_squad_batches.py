"""Batches of SQuAD's windows: what they hold, their order over epochs and ranks, positions, one pass to predict."""

import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.refusals import refused
from support.squad_windows import CLS, FIRST_ID, PAD, SEP, VOCAB, squad_windows

from bert.data.batch import Batch
from bert.data.loading.batches import lengths_fingerprint
from bert.data.loading.squad_batches import (
    SquadBatches,
    evaluation_batches,
    put_values,
    window_batch,
)
from bert.tasks.base import DataSpec
from bert.tasks.squad.features import SquadFeatures
from bert.tasks.squad.task import SquadTask

WINDOWS = 50
FEATURES = squad_windows(WINDOWS)


def stream(features: SquadFeatures = FEATURES, **changes: object) -> SquadBatches:
    values = {"data": "made", "seq_len": 64, "micro_batch_size": 4, "vocab_size": VOCAB, **changes}
    return SquadBatches(DataSpec(**values), features)  # type: ignore[arg-type]


def numbers(batch: Batch) -> list[int]:
    """Which windows a batch consists of: each has its number in its first document token."""
    rows, segments = batch.tensors["input_ids"], batch.tensors["token_type_ids"]
    return [int(row[segment == 1][0]) - FIRST_ID for row, segment in zip(rows, segments, strict=True)]


def drawn(batches: SquadBatches, count: int) -> list[list[int]]:
    return [numbers(batch) for batch in itertools.islice(batches, count)]


def flat(lists: Iterable[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(lists))


def test_a_batch_holds_its_windows_padded_to_a_multiple_of_8() -> None:
    chosen = np.array([7, 3, 11])
    batch = window_batch(FEATURES, chosen)
    longest = int(FEATURES.lengths[chosen].max())
    columns = -(-longest // 8) * 8
    assert all(tensor.dtype == torch.int64 for tensor in batch.tensors.values())
    for row, number in enumerate(chosen):
        ids, length = FEATURES.input_ids[number].tolist(), int(FEATURES.lengths[number])
        assert batch.tensors["input_ids"][row].tolist() == ids + [PAD] * (columns - length)
        assert batch.tensors["attention_mask"][row].tolist() == [1] * length + [0] * (columns - length)
        second = ids.index(SEP) + 1
        assert batch.tensors["token_type_ids"][row].tolist() == (
            [0] * second + [1] * (length - second) + [0] * (columns - length)
        )
        assert ids[0] == CLS and ids[second] == FIRST_ID + number
    assert batch.tensors["start_positions"].tolist() == FEATURES.start_positions[chosen].tolist()
    assert batch.tensors["end_positions"].tolist() == FEATURES.end_positions[chosen].tolist()
    counts, lengths = batch.counts, FEATURES.lengths[chosen]
    assert (counts.samples, counts.real_tokens, counts.padded_tokens) == (3, lengths.sum(), 3 * columns)
    assert (counts.predicted_positions, counts.squared_lengths) == (0, (lengths**2).sum())


def test_fixed_padding_is_the_greatest_length_and_the_longest_never_exceeds_it() -> None:
    assert window_batch(FEATURES, np.array([0]), "fixed").tensors["input_ids"].shape == (1, 64)
    odd = squad_windows(400, max_seq_length=61)
    number = int(np.argmax(odd.lengths))
    assert odd.lengths[number] == 61 and window_batch(odd, np.array([number])).tensors["input_ids"].shape == (1, 61)
    with refused("option-choice", "longest", "fixed"):
        stream(padding="short")


def test_every_window_comes_once_per_epoch_in_another_order() -> None:
    one = drawn(stream(micro_batch_size=5), 20)
    first, second = (sorted(flat(epoch)) for epoch in (one[:10], one[10:]))
    assert first == second == list(range(WINDOWS)) and one[:10] != one[10:]
    uneven = Counter(flat(drawn(stream(micro_batch_size=4), 25)))
    assert uneven == dict.fromkeys(range(WINDOWS), 2), "an incomplete batch is filled from the next epoch"
    assert drawn(stream(seed=1), 3) != drawn(stream(), 3) == drawn(stream(), 3)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_any_number_of_ranks_walks_the_same_global_batches(world_size: int) -> None:
    whole = drawn(stream(micro_batch_size=12), 12)
    size = 12 // world_size
    ranks = [drawn(stream(micro_batch_size=size, rank=rank, world_size=world_size), 12) for rank in range(world_size)]
    assert [flat(parts) for parts in zip(*ranks, strict=True)] == whole


def test_fewer_windows_than_a_global_batch_work() -> None:
    few = squad_windows(3)
    assert Counter(flat(drawn(stream(few, micro_batch_size=4), 3))) == {0: 4, 1: 4, 2: 4}


@pytest.mark.parametrize(("rank", "world_size", "size"), [(0, 1, 4), (1, 2, 2), (0, 1, 7), (2, 3, 1)])
def test_a_saved_position_continues_exactly_with_another_batch_size_or_number_of_ranks_too(
    rank: int, world_size: int, size: int
) -> None:
    order = flat(drawn(stream(micro_batch_size=1), 200))
    begun = stream()
    drawn(begun, 9)
    state = begun.state_dict()
    assert state["samples"] == 36 and state["fingerprint"] == FEATURES.fingerprint
    resumed = stream(rank=rank, world_size=world_size, micro_batch_size=size)
    resumed.load_state_dict(state)
    again = stream(micro_batch_size=1)
    for step, batch in enumerate(drawn(resumed, 10)):
        start = 36 + step * size * world_size + rank * size
        assert batch == order[start : start + size]
    again.load_state_dict(resumed.state_dict())
    assert drawn(again, 3) == [[number] for number in order[36 + 10 * size * world_size :][:3]]


def test_a_position_of_other_features_or_another_seed_is_refused() -> None:
    state = stream().state_dict()
    with refused("data-mismatch"):
        stream(squad_windows(WINDOWS, seed=9)).load_state_dict(state)
    with refused("settings-changed", "seed 42", "seed 1"):
        stream(seed=1).load_state_dict(state)
    with refused("file-damaged"):
        stream().load_state_dict({**state, "batches": "x"})


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 4, 64])
def test_predicting_sees_every_window_once_on_one_rank_with_little_padding(size: int, world_size: int) -> None:
    seen = []
    for rank in range(world_size):
        for chosen, batch in evaluation_batches(FEATURES, size, rank, world_size):
            assert numbers(batch) == chosen.tolist() and len(chosen) <= size
            seen += chosen.tolist()
    assert sorted(seen) == list(range(WINDOWS))
    lengths = [batch.tensors["input_ids"].shape[1] for _, batch in evaluation_batches(FEATURES, size)]
    assert lengths == sorted(lengths, reverse=True), "the longest come first: a lack of memory shows at once"


def test_what_a_model_says_of_tokens_goes_back_to_their_windows() -> None:
    found = np.full(int(FEATURES.lengths.sum()), -1)
    for chosen, batch in evaluation_batches(FEATURES, 7):
        put_values(FEATURES, chosen, batch.tensors["input_ids"].numpy(), found)
    assert found.tolist() == FEATURES.input_ids.values.tolist()


@pytest.mark.parametrize(
    ("size", "rank", "world_size", "facts"),
    [
        (0, 0, 1, ("micro_batch_size=0", 1)),
        (4, 2, 2, ("rank 2 of 2",)),
        (4, -1, 2, ("rank -1 of 2",)),
        (4, 0, 0, ("rank 0 of 0",)),
    ],
)
def test_ranks_and_sizes_that_are_none_are_refused(
    size: int, rank: int, world_size: int, facts: tuple[object, ...]
) -> None:
    with refused("option-value", *facts):
        list(evaluation_batches(FEATURES, size, rank, world_size))


def test_features_of_a_larger_vocabulary_or_without_windows_are_refused() -> None:
    with refused("vocabulary-mismatch", "1000 word pieces", "only 999"):
        stream(vocab_size=999)
    with refused("data-missing"):
        stream(squad_windows(0))


def test_missing_features_stop_with_the_command_that_makes_them(tmp_path: Path) -> None:
    spec = DataSpec(data=str(tmp_path / "none"), seq_len=384, micro_batch_size=4)
    with refused("data-unprepared", "bertbench data squad --input"):
        SquadTask().batches(spec)


def test_the_lengths_of_the_batches_to_come_are_known_without_making_them() -> None:
    coming = stream(rank=1, world_size=2)
    drawn(coming, 3)
    found = coming.lengths_of_batches(5)
    batches = itertools.islice(coming, 5)
    assert [row.tolist() for row in found] == [b.tensors["attention_mask"].sum(1).tolist() for b in batches]


def test_features_are_told_apart_by_the_lengths_of_their_windows() -> None:
    found = lengths_fingerprint(64, FEATURES.lengths)
    assert lengths_fingerprint(64, squad_windows(WINDOWS).lengths) == found
    assert lengths_fingerprint(64, squad_windows(WINDOWS, seed=1).lengths) != found
    assert lengths_fingerprint(65, FEATURES.lengths) != found
