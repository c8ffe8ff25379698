"""The choice of the operator for attention without padding, with a clock that is set by hand."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any

import pytest
import torch
from support.layouts import batch_of, model
from torch import Tensor

from bert.data.batch import Batch
from bert.model.attention import SelfAttention
from bert.model.packing import Bounds
from bert.model.varlen import Kind, Operator
from bert.optim.precision import Precision
from bert.parallel.single import SingleStrategy
from bert.speed import attention_choice
from bert.speed.attention_choice import Choice, ShapeClass, choose
from bert.train.attention import choose_attention
from bert.train.events import AttentionChosen

LENGTHS, HEADS, DROPOUT = (40, 7, 64, 21), 2, 0.1
KIND = Kind(torch.device("cpu"), torch.float32, 16)


@pytest.fixture(autouse=True)
def nothing_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_choice, "_chosen", {})


def attention(qkv: Tensor, bounds: Bounds, probability: float) -> Tensor:
    """Attention with dropout, sequence by sequence."""
    found = []
    for part in qkv.split(bounds.ends.diff().tolist()):
        query, key, value = part.transpose(0, 2).unbind(1)
        weights = torch.softmax(query @ key.transpose(1, 2) / query.shape[-1] ** 0.5, -1)
        dropped = weights * (torch.rand_like(weights) >= probability) / (1 - probability)
        found.append((dropped @ value).transpose(0, 1))
    return torch.cat(found)


def gradients_of_another_mask(qkv: Tensor, bounds: Bounds, probability: float, *_: Any) -> Tensor:
    other = attention(qkv, bounds, probability)
    return attention(qkv, bounds, probability).detach() + other - other.detach()


def operator(change: Callable[[Tensor], Tensor] = lambda context: context, missing: str | None = None) -> Operator:
    return Operator(lambda qkv, bounds, probability, *_: change(attention(qkv, bounds, probability)), lambda _: missing)


def refusing(message: str, kind: type[Exception] = RuntimeError) -> Operator:
    def run(*_: Any) -> Tensor:
        raise kind(message)

    return Operator(run, lambda _: None)


class Clock:
    """Gives each operator its time, in the order in which they are measured."""

    def __init__(self, *times: float) -> None:
        self.times, self.calls = times, 0

    def __call__(self, work: Callable[[], None]) -> float:
        work()
        self.calls += 1
        return self.times[(self.calls - 1) % len(self.times)]


def chosen(operators: dict[str, Operator], clock: Clock, lengths: tuple[int, ...] = LENGTHS) -> Choice:
    return choose(lengths, HEADS, DROPOUT, KIND, timer=clock, operators=operators)


@pytest.mark.parametrize(
    ("times", "expected"), [((2.0, 1.0, 3.0), "b"), ((2.0, 1.99, 3.0), "a"), ((1.0, 1.0, 0.5), "c")]
)
def test_the_fastest_is_chosen_unless_it_is_within_the_noise(times: tuple[float, ...], expected: str) -> None:
    found = chosen({"a": operator(), "b": operator(), "c": operator()}, Clock(*times))
    assert found.operator == expected and found.times_ms == dict(zip("abc", times, strict=True))
    assert found.left_out == {}


def test_a_class_is_measured_once_and_another_one_again() -> None:
    clock, operators = Clock(1.0, 2.0), {"a": operator(), "b": operator()}
    first = chosen(operators, clock)
    calls = clock.calls
    assert chosen(operators, clock, (39, 8, 64, 20)) is first and clock.calls == calls
    assert chosen(operators, clock, (40, 7, 65, 21)).shape.longest == 128 and clock.calls == 2 * calls
    choose(LENGTHS, HEADS, 0.0, KIND, timer=clock, operators=operators)
    assert clock.calls == 3 * calls


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (operator(missing="needs PyTorch 9"), "needs PyTorch 9"),
        (refusing("no plan\nsupports it"), "failed: no plan"),
        (refusing("Could not run 'aten::x'. This could be because ...\nCPU: registered"), "failed: Could not run"),
        (refusing("out of resource: shared memory", OSError), "failed: out of resource: shared memory"),
        (operator(lambda context: 1.1 * context), "wrong results"),
        (operator(lambda context: context * float("nan")), "wrong results"),
        (operator(lambda context: context + 0.2 * (context.detach() - context)), "wrong results"),
        (Operator(gradients_of_another_mask, lambda _: None), "wrong gradients with dropout"),
    ],
    ids=["missing", "failing", "of the dispatcher", "of a compiler", "values", "nan", "gradients", "dropout"],
)
def test_an_operator_that_fails_or_is_wrong_is_left_out_with_its_reason(bad: Operator, said: str) -> None:
    torch.manual_seed(0)
    found = chosen({"bad": bad, "good": operator()}, Clock(1.0))
    assert found.operator == "good" and list(found.times_ms) == ["good"]
    assert list(found.left_out) == ["bad"] and said in found.left_out["bad"]


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("Could not run 'aten::x' on 2.13 builds. This could be because the operator\nCPU: registered at", 39),
        ("word " * 100, 200),
        ("\n", len("RuntimeError")),
    ],
)
def test_of_an_error_one_sentence_is_kept(message: str, said: int) -> None:
    reason = chosen({"bad": refusing(message)}, Clock(1.0)).left_out["bad"]
    assert len(reason) == len("failed: ") + said and "\n" not in reason


def test_without_an_operator_none_is_chosen() -> None:
    found = chosen({"bad": refusing("")}, Clock(1.0))
    assert found.operator is None and found.times_ms == {} and "RuntimeError" in found.left_out["bad"]


class Away(SingleStrategy):
    """One of several ranks, on a device that is no CPU."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank, self.device = rank, torch.device("meta")


def batches(read: list[int]) -> Callable[[], list[Batch]]:
    def opened() -> list[Batch]:
        read.append(1)
        return [batch_of([40, 7, 64, 21], 64)]

    return opened


def test_all_ranks_use_what_rank_0_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[Kind] = []

    def measured(lengths: list[int], heads: int, dropout: float, kind: Kind, *, columns: int) -> Choice:
        kinds.append(kind)
        shape = ShapeClass.of(lengths, columns, heads, kind.width, dropout, kind.dtype)
        return Choice("efficient", shape, {"efficient": 1.5}, {"flash": "failed: x"})

    said: list[str] = []

    def text_of_first(strategy: Away, text: str) -> str:
        said.extend([text] if strategy.rank == 0 else [])
        return said[0]

    monkeypatch.setattr("bert.train.attention.choose", measured)
    monkeypatch.setattr("bert.train.attention.text_of_first", text_of_first)
    monkeypatch.setattr("torch.random.fork_rng", lambda *_, **__: nullcontext())
    precision, read, records = Precision("bf16", "cpu"), [], []
    for rank in range(3):
        made = model(True)
        records.append(choose_attention(made, batches(read), precision, Away(rank)))
        layers = [part for part in made.modules() if isinstance(part, SelfAttention)]
        assert layers and {layer.operator for layer in layers} == {"efficient"}
    assert records[0] == records[1] == records[2] and len(read) == 1
    assert kinds == [Kind(torch.device("meta"), torch.bfloat16, 8)]
    assert records[0]["shape"]["sequences"] == 4 and records[0]["shape"]["tokens"] == 1024


@pytest.mark.parametrize(("unpads", "device"), [(True, "cpu"), (False, "meta")])
def test_nothing_is_measured_on_a_cpu_or_with_padding(unpads: bool, device: str) -> None:
    strategy = Away(0)
    strategy.device = torch.device(device)
    read: list[int] = []
    assert choose_attention(model(unpads), batches(read), Precision("bf16", "cpu"), strategy) is None
    assert read == []


def test_the_record_holds_all_that_decided() -> None:
    found = chosen({"a": operator(), "b": operator(missing="needs x")}, Clock(1.0))
    record = json.loads(json.dumps(asdict(found)))
    assert record == {
        "operator": "a",
        "shape": {
            "tokens": 1024, "sequences": 4, "longest": 64, "heads": HEADS, "width": 16, "dropout": DROPOUT,
            "dtype": "float32",
        },
        "times_ms": {"a": 1.0},
        "left_out": {"b": "needs x"},
    }  # fmt: skip
    assert AttentionChosen(record).choice["operator"] == "a"


def test_operators_are_measured_at_the_columns_of_the_batch() -> None:
    seen: list[int] = []

    def run(qkv: Tensor, bounds: Bounds, *_: Any) -> Tensor:
        seen.append(bounds.longest)
        return qkv[:, 0]

    found = choose(
        LENGTHS, HEADS, DROPOUT, KIND, columns=512, timer=Clock(1.0), operators={"a": Operator(run, lambda kind: None)}
    )
    assert set(seen) == {512} and found.shape.longest == 512
