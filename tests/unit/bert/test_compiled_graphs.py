"""Compiled layers: the same graphs whoever looks on, and steps that PyTorch's CUDA graphs can tell apart.

Nothing is compiled to machine code here: PyTorch's own counting and eager backends stand in for it.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import training_runs
from support.layouts import SHAPE, batch_of, model
from support.pretraining_shards import PIECES
from support.refusals import refused
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend
from torch._inductor.cudagraph_trees import CUDAGraphTreeManager, MarkStepBox

from bench.implementations.ours import BertbenchImplementation
from bench.profilers.base import Cycle
from bench.profilers.kineto_trace import TraceObserver
from bench.profilers.ranges import RangeObserver
from bench.run.clock import StepClock
from bert.model.config import model_config
from bert.model.encoder import BertEncoder, Layer
from bert.model.heads import BertForPretraining
from bert.model.packing import Bounds
from bert.optim.precision import Precision
from bert.parallel.single import SingleStrategy
from bert.speed.registry import balances, check_precision, use_levers
from bert.tasks.base import DataSpec
from bert.tasks.pretrain.task import TestShards
from bert.train.evaluate import evaluate
from bert.train.observer import Observer, Observers
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


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> BertForPretraining:
    """A model with cuda-graphs whose layers are traced as they are there, and run without a graph."""
    monkeypatch.setattr(Layer, "compile", lambda self, mode: torch.nn.Module.compile(self, backend="eager"))
    monkeypatch.setattr(MarkStepBox, "mark_step_counter", 0)
    torch.manual_seed(0)
    made = BertForPretraining(model_config(training_runs.settings("synthetic")))
    use_levers(made, frozenset({"cuda-graphs"}))
    return made


def generations(made: BertForPretraining) -> list[list[int]]:
    """Collects what PyTorch holds for the current step, in every layer of each forward pass to come.

    A layer of another generation than the layer before it is replayed over what that one has returned, where no
    backward pass is pending (CUDAGraphTreeManager.can_start_new_generation).
    """
    found: list[list[int]] = []
    call = made.encoder.run_layer

    def run(layer: Any, hidden: Any, where: Any) -> Any:
        if layer is made.encoder.layers[0]:
            found.append([])
        result = call(layer, hidden, where)
        found[-1].append(CUDAGraphTreeManager.get_curr_generation())
        return result

    made.encoder.run_layer = run
    return found


def test_every_forward_pass_is_one_step_of_cuda_graphs_in_training_and_evaluation(
    replayed: BertForPretraining, data: Path
) -> None:
    spec = DataSpec(data=str(data), seq_len=32, micro_batch_size=8, vocab_size=len(PIECES), rank=0, world_size=1)
    test = TestShards(spec, 0)
    found = generations(replayed)
    strategy, precision = SingleStrategy(), Precision("fp32", "cpu")
    training = batch_of([20, 3], 20)
    training.tensors["input_ids"] %= len(PIECES)
    training.tensors["masked_labels"] %= len(PIECES)
    for _ in range(2):
        replayed(training).loss.backward()
        evaluate(replayed, test, strategy, precision)
    # 2 of training, and after each 20 samples in batches of 8: 3.
    assert len(found) == 2 * (1 + 3) and {len(one) for one in found} == {len(replayed.encoder.layers)}
    assert all(len(set(one)) == 1 for one in found), found
    assert len({one[0] for one in found}) == len(found), found


def test_without_cuda_graphs_no_step_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    marked: list[int] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marked.append(1))
    monkeypatch.setattr(Layer, "compile", lambda self, mode: None)
    made = model(None)
    for names, marks in (({"compile"}, 0), ({"cuda-graphs"}, 1), (set(), 1)):
        use_levers(made, frozenset(names))
        made(batch_of([4], 4))
        assert len(marked) == marks, names


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


def test_cuda_graphs_are_refused_with_activation_checkpointing_and_nothing_else_is() -> None:
    made = model(None)
    with refused("unsupported-combination", "cuda-graphs", "activation checkpointing", "compile"):
        use_levers(made, frozenset({"cuda-graphs", "unpad"}), activation_checkpointing=True)
    assert not made.encoder.replays, "nothing was switched"
    use_levers(made, frozenset({"unpad"}), activation_checkpointing=True)
    assert made.encoder.unpads


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


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
@pytest.mark.parametrize("lever", ["compile", "cuda-graphs"])
def test_compiled_layers_without_padding_are_refused_where_flash_attention_has_no_type(
    precision: str, lever: str
) -> None:
    with refused("unsupported-combination", f"unpad+{lever}", precision, "bf16", "unpad"):
        check_precision(f"unpad+{lever}", precision)
    check_precision("unpad", precision)
    check_precision(f"unpad+{lever}", "bf16")
