"""Compiled layers: the same graphs whoever looks on, for every number of tokens.

Nothing is compiled to machine code here: PyTorch's own counting and eager backends stand in for it.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.layouts import SHAPE, batch_of, model
from support.refusals import refused
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend

from bench.implementations.ours import BertbenchImplementation
from bench.profilers.kineto import Cycle
from bench.profilers.kineto_trace import TraceObserver
from bench.profilers.range_observer import RangeObserver
from bench.run.clock import StepClock
from bert.model.encoder import BertEncoder, Layer
from bert.model.heads import lay_out
from bert.model.packing import Bounds
from bert.observer import Observer, Observers
from bert.speed.registry import balances, check_precision, use_levers
from records.trial import Trial

DEPTH = 12


class Listening(Observer):
    """Writes down what it is told of."""

    model_phases = True

    def __init__(self) -> None:
        self.names: list[str] = []

    def phase(self, name: str) -> Any:
        self.names.append(name)
        return super().phase(name)


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def graphs(observer: Observer | None) -> int:
    """How many graphs a training step of compiled layers is made of."""
    torch._dynamo.reset()
    encoder = BertEncoder(SHAPE.replace(num_layers=DEPTH), observer)
    counter = CompileCounter()
    for layer in encoder.layers:
        layer.compile(backend=counter)
    encoder.unpads = False
    encoder(torch.ones(2, 16, dtype=torch.int64)).hidden.sum().backward()
    return int(counter.frame_count)


def observed(kind: str, folder: Path) -> Iterator[Observer]:
    """An observer of each kind that a trial has, in the middle of what it records."""
    clock = StepClock("cpu", lambda counts: 0.0, lambda row: None)
    if kind == "clock":
        yield clock
    elif kind == "kineto":
        trace = TraceObserver(folder / "trace.json.gz", 0, [Cycle(0, 0, 2)])
        trace.step_begin(0)
        yield Observers([trace, clock])
        trace.run_end()
    else:
        pytest.importorskip("nvtx")
        ranges = RangeObserver(0, 0, 2)
        ranges.run_begin()
        ranges.step_begin(0)
        yield Observers([ranges, clock])
        ranges.run_end()


@pytest.mark.parametrize("kind", ["clock", "kineto", "ranges"])
def test_a_profile_shows_the_graphs_that_are_timed(kind: str, tmp_path: Path) -> None:
    # All layers have one shape, so that all of them use what was compiled for the first: 1 graph, and no part of it.
    assert graphs(None) == 1
    for observer in observed(kind, tmp_path):
        assert graphs(observer) == 1


def test_phases_around_compiled_layers_are_told_and_those_inside_are_not() -> None:
    compiled, plain = Listening(), Listening()
    graphs(compiled)
    around = [name for index in range(DEPTH) for name in (f"layer.{index}",)]
    assert compiled.names == ["embeddings", *around, "pooler"]
    BertEncoder(SHAPE, plain)(torch.ones(1, 4, dtype=torch.int64))
    assert plain.names == [
        "embeddings", "layer.0", "layer.0.attention", "layer.0.mlp", "layer.1", "layer.1.attention", "layer.1.mlp",
        "pooler",
    ]  # fmt: skip


@pytest.mark.parametrize("lever", ["fp8", "bf16-weights"])
@pytest.mark.parametrize(("precision", "fits"), [("fp32", False), ("tf32", False), ("fp16", False), ("bf16", True)])
def test_levers_of_bf16_are_refused_by_name_in_other_precisions(lever: str, precision: str, fits: bool) -> None:
    trial = Trial(preset="tiny", precision=precision, levers=f"{lever}+unpad")
    ours = BertbenchImplementation()
    ours.check(dataclasses.replace(trial, levers=""))  # what is on where nothing is said
    if fits:
        ours.check(trial)
        return
    with refused("unsupported-combination", precision, lever, "bf16"):
        ours.check(trial)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_balance_is_refused_by_name_without_a_layout_of_real_tokens(precision: str) -> None:
    trial = Trial(preset="tiny", precision=precision, levers="balance+chunks")
    with refused("unsupported-combination", "balance", "unpad"):
        BertbenchImplementation().check(trial)
    for layout in ("unpad", "unpad+chunks"):
        BertbenchImplementation().check(dataclasses.replace(trial, levers=f"balance+{layout}"))
        assert balances(frozenset({"balance", "unpad"})) and not balances(frozenset({"balance", "chunks"}))


def test_one_compilation_serves_every_number_of_tokens() -> None:
    """Attention by bounds is traced whole, both ways, and no number of tokens makes PyTorch compile again."""
    shape = SHAPE.replace(num_layers=3)
    counter = CompileCounterWithBackend("aot_eager")
    layers = [Layer(shape, index, Observer()).to("meta", torch.bfloat16) for index in range(shape.num_layers)]
    for layer in layers:
        layer.compile(backend=counter)
    for tokens in (100, 57, 1024):
        given = torch.empty(tokens, shape.hidden_size, device="meta", dtype=torch.bfloat16, requires_grad=True)
        hidden: Any = given * 1
        torch._dynamo.maybe_mark_dynamic(hidden, 0)
        for layer in layers:
            hidden = layer(hidden, Bounds(torch.empty(9, dtype=torch.int32, device="meta"), 512))
        hidden.sum().backward()
        assert given.grad is not None and given.grad.shape == given.shape
    assert counter.frame_count == 1


def by_bounds(qkv: torch.Tensor, where: Any, probability: float, **how: Any) -> torch.Tensor:
    """Attention of concatenated sequences by their ends alone, as on a GPU: nothing depends on a length."""
    owners = torch.searchsorted(where.ends, torch.arange(qkv.shape[0]), right=True)
    query, key, value = qkv.permute(1, 2, 0, 3).unbind(0)
    mask = owners[:, None] == owners[None, :]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=probability).transpose(0, 1)


@pytest.mark.parametrize("more", [frozenset(), frozenset({"fused-elementwise"})])
def test_one_compilation_serves_batches_of_every_width_and_those_without_padding(
    more: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = CompileCounterWithBackend("eager")
    monkeypatch.setattr("bert.model.attention.attend", by_bounds)
    monkeypatch.setattr(Layer, "compile", lambda self: torch.nn.Module.compile(self, backend=counter))
    made = model(None)
    use_levers(made, frozenset({"unpad", "compile"}) | more)
    for lengths, columns in (([5, 9, 3, 7], 16), ([16, 9, 3, 7], 16), ([20, 2, 9, 24], 24), ([24] * 4, 24)):
        batch = lay_out(made, batch_of(lengths, columns))
        assert batch.layout is not None and batch.layout.tokens == sum(lengths)
        made(batch).loss.backward()
    assert counter.frame_count == 1


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_compiled_layers_without_padding_are_refused_where_flash_attention_has_no_type(precision: str) -> None:
    with refused("unsupported-combination", "unpad+compile", precision, "bf16"):
        check_precision("unpad+compile", precision)
    check_precision("unpad", precision)
    check_precision("unpad+compile", "bf16")
