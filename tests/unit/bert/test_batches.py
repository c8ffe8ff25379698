"""Batches of rows: what is in them, their order over epochs and ranks, positions, one pass to predict."""

import itertools
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.refusals import refused
from support.row_task import VOCAB, made_rows
from support.squad_windows import FIRST_ID, squad_windows

from bert.data.batch import Batch
from bert.data.batches import DataSpec, RowBatches, check_rows, evaluation_rows, row_batch
from bert.data.rows import Ragged, TokenRows
from bert.tasks.squad.task import put_values

FEATURES = squad_windows(50)
WINDOWS = FEATURES.rows
"""Each has its number in its first document token."""


def spec(**changes: object) -> DataSpec:
    return DataSpec(**{"data": "rows", "seq_len": 24, "micro_batch_size": 4, "vocab_size": VOCAB, **changes})


def stream(rows: TokenRows = WINDOWS, **changes: object) -> RowBatches:
    return RowBatches(spec(**{"seq_len": 64, "vocab_size": rows.vocab_size, **changes}), rows)


def numbers(batch: Batch) -> list[int]:
    """Which windows a batch consists of."""
    rows, segments = batch.tensors["input_ids"], batch.tensors["token_type_ids"]
    return [int(row[segment == 1][0]) - FIRST_ID for row, segment in zip(rows, segments, strict=True)]


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


def test_a_window_is_question_then_document_and_has_the_places_of_its_answer() -> None:
    chosen = np.array([7, 3, 11])
    batch = row_batch(WINDOWS, chosen)
    assert numbers(batch) == chosen.tolist() and all(tensor.dtype == torch.int64 for tensor in batch.tensors.values())
    starts = batch.tensors["token_type_ids"].argmax(1).tolist()
    assert starts == FEATURES.document_starts[chosen].tolist() and "labels" not in batch.tensors
    for name in ("start_positions", "end_positions"):
        assert batch.tensors[name].tolist() == getattr(FEATURES, name)[chosen].tolist()


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
        stream(squad_windows(50, seed=9).rows).load_state_dict(state)
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


def test_what_a_model_says_of_tokens_goes_back_to_their_windows() -> None:
    found = np.full(int(FEATURES.lengths.sum()), -1)
    for chosen, batch in evaluation_rows(WINDOWS, 7):
        put_values(FEATURES, chosen, batch.tensors["input_ids"].numpy(), found)
    assert found.tolist() == FEATURES.input_ids.values.tolist()


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
