"""Batches of rows, their order, positions and way to a device, and what tasks on whole rows have in common."""

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
from support.row_task import FIRST_ID, NAME, VOCAB, made_rows, write_rows

from bert.data.batch import Batch, BatchCounts
from bert.data.batches import DataSpec, RowBatches, check_rows, evaluation_rows, row_batch
from bert.data.rows import TokenRows
from bert.model.config import preset
from bert.model.heads import BertForSequenceClassification
from bert.optim.precision import Precision
from bert.parallel import make_strategy
from bert.tasks import TASKS, given_options, make_task, resolve_options
from bert.tasks.base import DataSource, EvaluationSpec
from bert.tasks.pretrain.batches import SyntheticBatches
from bert.train.feed import POOL, Feed, data_spec
from common.errors import Code
from common.train_spec import TrainSpec

ROWS = made_rows(50)


def spec(source: Any = "rows", **changes: Any) -> DataSpec:
    return DataSpec(**{"data": str(source), "seq_len": 24, "micro_batch_size": 4, "vocab_size": VOCAB, **changes})


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


SHAPE = preset("tiny").replace(vocab_size=VOCAB, hidden_size=16, num_heads=2, intermediate_size=32)


@pytest.fixture(autouse=True)
def rows_task(monkeypatch):
    monkeypatch.setitem(TASKS, NAME, "support.row_task:RowTask")


@pytest.fixture
def folder(tmp_path):
    return write_rows(tmp_path / "rows", made_rows(40), made_rows(11, seed=1))


def task(**options: Any) -> Any:
    source = DataSource("synthetic", "", None, None, VOCAB)
    return make_task(NAME, resolve_options(NAME, given_options(NAME, {"labels": 3, **options}), source))


def test_a_batch_without_labels_has_logits_and_no_loss() -> None:
    rows = replace(made_rows(3), labels=np.empty(0, dtype=np.int64))
    output = BertForSequenceClassification(SHAPE, 5).eval()(row_batch(rows, np.arange(3)))
    assert output.loss is None and output.logits.shape == (3, 5)


@pytest.mark.parametrize("samples", [0, 5])
@pytest.mark.parametrize("ranks", [2, 3])
def test_an_evaluation_by_several_ranks_equals_that_of_one(folder, ranks, samples):
    found = task()
    torch.manual_seed(1)
    model = found.build_model(SHAPE).eval()
    device, precision = torch.device("cpu"), Precision("fp32", "cpu")

    def evaluator(rank: int, world_size: int) -> Any:
        wanted = EvaluationSpec(samples=samples)
        return found.evaluator(spec(folder, rank=rank, world_size=world_size, micro_batch_size=3), wanted)

    alone = evaluator(0, 1)
    expected = alone.score(alone.measure(model, device, precision))
    parts = [evaluator(rank, ranks).measure(model, device, precision) for rank in range(ranks)]
    together = evaluator(0, ranks).score(torch.stack(parts).sum(0))
    assert together.samples == expected.samples == (samples or 11)
    assert set(together.values) == set(found.scores)
    assert together.values == pytest.approx(dict(expected.values), abs=1e-6)


def test_scores_are_those_of_the_rows_one_by_one(folder):
    found = task()
    model = found.build_model(SHAPE).eval()
    evaluator = found.evaluator(spec(folder), EvaluationSpec())
    total = evaluator.measure(model, torch.device("cpu"), Precision("fp32", "cpu"))
    rows: TokenRows = evaluator.rows
    right, loss = 0, 0.0
    for number in range(len(rows)):
        ids = torch.tensor(np.array([rows.ids[number]]), dtype=torch.int64)
        segments = (torch.arange(ids.shape[1]) >= int(rows.second[number])).long()[None]
        with torch.no_grad():
            logits = model.classifier(model.encoder(ids, None, segments).pooled)[0]
        label = int(rows.labels[number])
        right += int(logits.argmax()) == label
        loss -= float(torch.log_softmax(logits.double(), 0)[label])
    values = evaluator.score(total).values
    assert values["accuracy"] == right / len(rows)
    assert values["log_loss"] == pytest.approx(loss / len(rows), abs=1e-6)


def test_logits_that_are_no_numbers_are_refused(folder):
    found = task()
    evaluator = found.evaluator(spec(folder), EvaluationSpec())
    with refused("logits-not-finite", "3 of 33"):
        evaluator.score(torch.tensor([[float("nan")] * 3] + [[0.0] * 3] * 10).flatten())


def test_labels_that_the_task_has_not_are_refused_before_anything_is_trained(tmp_path):
    folder = write_rows(tmp_path / "rows", made_rows(20, labels=3), made_rows(5, labels=5, seed=3))
    with refused("labels-invalid", "0 to 1"):
        task(labels=2).identify(spec(folder))
    with refused("labels-invalid", "0 to 2"):
        task(labels=3).evaluator(spec(folder), EvaluationSpec())
    folder = write_rows(tmp_path / "values", made_rows(20, regression=True), made_rows(5))
    with refused("labels-invalid", "int64"):
        task().batches(spec(folder))


@pytest.mark.parametrize("source", ["synthetic", "synthetic:uniform"])
def test_made_up_batches_differ_by_rank_and_have_all_labels(source):
    found = task(labels=4)
    ours, others = (
        next(iter(found.batches(spec(source, seq_len=64, rank=rank, world_size=2, micro_batch_size=16))))
        for rank in (0, 1)
    )
    assert not torch.equal(ours.tensors["labels"], others.tensors["labels"])
    assert set(ours.tensors["labels"].tolist()) == {0, 1, 2, 3}
    assert found.build_model(SHAPE)(ours).loss.item() > 0


def test_options_are_filled_and_kept_as_one_text():
    assert given_options(NAME, {"head": None, "labels": 2}) == {"labels": 2, "head": "concat", "train_on_all": False}
    source = DataSource("synthetic", "", None, None, VOCAB)
    text = resolve_options(NAME, {"head": "mul", "labels": 7}, source)
    assert text == '{"head":"mul","labels":7,"train_on_all":false}'
    assert make_task(NAME, text).values == {"head": "mul", "labels": 7, "train_on_all": False}


@pytest.mark.parametrize(
    ("name", "options", "code", "fact"),
    [
        (NAME, {"head": "sum"}, "option-choice", "concat, mul"),
        (NAME, {"tail": 1}, "option-not-applicable", "labels, head"),
        (NAME, {"sample_limit": 0}, "option-value", 1),
        (NAME, {"sample_limit": True}, "option-value", "whole number"),
        (NAME, {"train_on_all": 1}, "option-value", "true or false"),
        ("squad", {"head": "mul"}, "option-not-applicable", "squad"),
    ],
)
def test_options_that_a_task_has_not_are_refused(name: str, options: dict[str, object], code: Code, fact: object):
    with refused(code, *options, fact):
        given_options(name, options)
