"""Batches of labelled rows: what is in them, their order, and how ranks share them."""

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.refusals import refused
from support.row_task import VOCAB, made_rows

from bert.data.loading.batches import RowBatches, evaluation_rows, row_batch
from bert.data.rows import Ragged, TokenRows
from bert.tasks.base import DataSpec


def spec(**changes: object) -> DataSpec:
    return DataSpec(**{"data": "rows", "seq_len": 24, "micro_batch_size": 4, "vocab_size": VOCAB, **changes})


def numbers_of(batch, rows: TokenRows) -> list[int]:
    """Which rows a batch holds, by their content."""
    known = {tuple(rows.ids[number].tolist()): number for number in range(len(rows))}
    lengths = batch.tensors["attention_mask"].sum(1).tolist()
    return [
        known[tuple(ids[:length])] for ids, length in zip(batch.tensors["input_ids"].tolist(), lengths, strict=True)
    ]


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


def test_every_row_comes_once_per_epoch_and_ranks_have_disjoint_ones():
    rows = made_rows(24)
    epochs = []
    for rank in (0, 1):
        stream = RowBatches(spec(rank=rank, world_size=2), rows)
        epochs.append([numbers_of(batch, rows) for batch in islice(stream, 6)])
    for epoch in (slice(0, 3), slice(3, 6)):
        seen = [number for rank in epochs for batch in rank[epoch] for number in batch]
        assert sorted(seen) == list(range(24))
    assert epochs[0][:3] != epochs[0][3:], "epochs have orders of their own"


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_saved_position_is_continued_with_any_number_of_ranks(ranks):
    rows = made_rows(30)
    stream = RowBatches(spec(micro_batch_size=4), rows)
    batches = iter(stream)
    list(islice(batches, 3))
    state = stream.state_dict()
    following = [numbers_of(batch, rows) for batch in islice(batches, 4)]
    streams = [
        RowBatches(spec(micro_batch_size=4 // ranks, rank=rank, world_size=ranks), rows) for rank in range(ranks)
    ]
    for other in streams:
        other.load_state_dict(state)
    parts = [[numbers_of(batch, rows) for batch in islice(other, 4)] for other in streams]
    assert [[number for part in parts for number in part[step]] for step in range(4)] == following


def test_a_position_of_other_rows_is_refused():
    state = RowBatches(spec(), made_rows(8)).state_dict()
    with refused("data-mismatch"):
        RowBatches(spec(), made_rows(8, seed=1)).load_state_dict(state)


@given(count=st.integers(1, 30), ranks=st.integers(1, 5), size=st.integers(1, 7))
def test_an_evaluation_sees_every_row_on_exactly_one_rank(count, ranks, size):
    rows = made_rows(count)
    seen = []
    for rank in range(ranks):
        for numbers, batch in evaluation_rows(rows, size, rank, ranks):
            assert batch.tensors["labels"].tolist() == rows.labels[numbers].tolist()
            seen += numbers.tolist()
    assert sorted(seen) == list(range(count))


def test_rows_without_labels_can_be_predicted_but_not_trained_on():
    rows = replace(made_rows(4), labels=np.empty(0, dtype=np.int64))
    assert "labels" not in row_batch(rows, np.arange(4)).tensors
    with refused("labels-invalid"):
        RowBatches(spec(), rows)


def test_rows_that_do_not_fit_are_refused_with_the_reason():
    with refused("data-missing"):
        RowBatches(spec(), made_rows(0))
    with refused("data-mismatch", "24 tokens", "the 16"):
        RowBatches(spec(seq_len=16), made_rows(4))
    with refused("vocabulary-mismatch", "300 word pieces", "only 100"):
        RowBatches(spec(vocab_size=100), made_rows(4))
    with refused("option-choice", "shortest"):
        RowBatches(spec(padding="shortest"), made_rows(4))


def test_columns_that_do_not_belong_together_are_refused():
    rows = made_rows(4)
    with refused("rows-invalid", "4 rows", "second 3"):
        replace(rows, second=rows.second[:3])
    with refused("rows-invalid", "4 rows", "labels 2"):
        replace(rows, labels=rows.labels[:2])
    with refused("labels-invalid", "float64"):
        replace(rows, labels=rows.labels.astype(np.float64))
    with refused("rows-invalid", "labels"):
        replace(rows, columns={"labels": rows.labels})
    with refused("rows-invalid", "0 to 1 tokens", "1 to 24"):
        replace(rows, ids=Ragged.of([[], [1], [1], [1]]))
