"""Fused optimizers in Triton's interpreter: values against float64, overflows, checkpoints, bytes and launches.

Run by tests/unit/bert/test_kernels_interpreted.py, in a process of its own.
"""

import copy
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.layouts import scaled
from support.plain_optimizers import PlainAdamW, PlainLamb
from torch import Tensor, nn
from triton.runtime.interpreter import InterpreterBuilder

from bert.optim.adamw import AdamW
from bert.optim.fused import FusedAdamW, FusedLamb
from bert.optim.lamb import Lamb
from bert.optim.precision import Precision
from bert.parallel.base import SingleStrategy
from bert.speed.copies import LOW, copy_of, give_copies
from bert.speed.kernels import optimizers
from bert.train.checkpoint import shared_steps

# Less than a tile, whole tiles, a chunk and more, one element, a whole tile, and one that starts as zero.
SHAPES = [(7, 5), (33,), (4, 32), (9, 17), (1,), (64,), (4, 4)]
FEW = 4
RATE, BETAS, EPS, DECAY = 0.02, (0.9, 0.999), 1e-6, 0.1


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(optimizers.TILING, "chunk", 128)
    monkeypatch.setitem(optimizers.TILING, "tile", 64)
    monkeypatch.setattr(optimizers, "_BLOCK", 4)  # fewer than there are tensors and chunks


def made(copies: bool = True, count: int = len(SHAPES)) -> list[nn.Parameter]:
    """Parameters of odd sizes; three matrices have copies, and two of them gradients in bf16."""
    generator = torch.Generator().manual_seed(1)
    parameters = [nn.Parameter(torch.randn(shape, generator=generator) * 0.3) for shape in SHAPES[:count]]
    with torch.no_grad():
        for parameter in parameters[6:]:
            parameter.zero_()
    if copies:
        give_copies([parameters[0], parameters[2]], gradients=True)
        give_copies([parameters[3]], gradients=False)
    return parameters


def groups(parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": DECAY},
        {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
    ]


def fused_adamw(parameters: list[nn.Parameter]) -> FusedAdamW:
    return FusedAdamW(groups(parameters), RATE, BETAS, EPS, DECAY)


def fused_lamb(parameters: list[nn.Parameter], max_norm: float | None = 1.0) -> FusedLamb:
    return FusedLamb(groups(parameters), RATE, BETAS, EPS, DECAY, max_norm)


def gradients_of(parameters: list[nn.Parameter], seed: int, size: float = 0.5) -> list[Tensor]:
    """Gradients in the types of the parameters; float32 ones are views whose addresses are no multiple of 16 bytes."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number, parameter in enumerate(parameters):
        values = size * torch.randn(parameter.shape, generator=generator)
        if getattr(parameter, "grad_dtype", None) == LOW:
            values = values.to(LOW)
        elif number % 2:
            bucket = torch.empty(values.numel() + 1)
            bucket[1:] = values.flatten()
            values = bucket[1:].view(values.shape)
        found.append(values)
    return found


def give(parameters: list[nn.Parameter], gradients: list[Tensor | None]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def assert_close(parameters: list[nn.Parameter], expected: list[Tensor], tolerance: float = 1e-6) -> None:
    for parameter, value in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.detach().double(), value.double(), rtol=tolerance, atol=tolerance)
        held = copy_of(parameter)
        if held is not None:
            # The interpreter truncates.
            torch.testing.assert_close(held.values.float(), parameter.detach(), rtol=2**-7, atol=0.0)
            assert held.version == parameter._version


@pytest.mark.parametrize("max_norm", [0.5, *(pytest.param(each, marks=pytest.mark.slow) for each in (None, 1e6))])
@pytest.mark.parametrize("kind", ["adamw", "lamb"])
def test_updates_are_the_formulas_in_float64(kind: str, max_norm: float | None) -> None:
    parameters = made()
    optimizer: torch.optim.Optimizer = fused_adamw(parameters) if kind == "adamw" else fused_lamb(parameters, max_norm)
    decays = [DECAY if parameter.ndim > 1 else 0.0 for parameter in parameters]
    formulas = PlainAdamW if kind == "adamw" else PlainLamb
    plain = formulas([p.detach().double() for p in parameters], decays, BETAS, EPS, max_norm)
    for step in range(3):
        gradients: list[Tensor | None] = [*gradients_of(parameters, step)]
        if step < 2:
            gradients[5] = None  # joins late, in AdamW with a count of its own
        if step == 0:
            gradients[1] = torch.zeros(SHAPES[1])
        give(parameters, gradients)
        before = [None if each is None else each.clone() for each in gradients]
        rate = RATE * (step + 1)
        for group in optimizer.param_groups:
            group["lr"] = rate
        if max_norm is not None and kind == "adamw":
            SingleStrategy().clip(nn.ParameterList(parameters), optimizer, max_norm, Precision("bf16", "cpu"))
        optimizer.step()
        plain.step([None if each is None else each.double() for each in gradients], rate)
        assert_close(parameters, plain.values)
        for kept, gradient in zip(before, gradients, strict=True):
            assert kept is None or (gradient is not None and torch.equal(kept, gradient))
        optimizer.zero_grad()
    state = optimizer.state_dict()
    if isinstance(optimizer, FusedLamb):
        assert optimizer.steps == shared_steps(optimizer) == 3
        assert [group["step"] for group in state["param_groups"]] == [3, 3]
    else:
        assert [float(optimizer.state[parameter]["step"]) for parameter in parameters] == plain.counts
        assert all(each.keys() == {"step", "exp_avg", "exp_avg_sq"} for each in state["state"].values())


@pytest.mark.parametrize("kind", ["adamw", "lamb"])
@pytest.mark.parametrize("clips", [True, False])
def test_fp16_unscales_and_skips_as_without_fusion(kind: str, clips: bool) -> None:
    results = []
    for fuses in (True, False):
        parameters = made(False, FEW)
        if kind == "lamb":
            options = (groups(parameters), RATE, BETAS, EPS, DECAY, 0.5 if clips else None)
            optimizer: torch.optim.Optimizer = FusedLamb(*options) if fuses else Lamb(*options)
        else:
            cls = FusedAdamW if fuses else AdamW
            optimizer = cls(groups(parameters), RATE, BETAS, EPS, DECAY)
        precision, strategy, applied = scaled("fp16", 1024.0), SingleStrategy(), []
        for step in range(4):
            scale = float(precision.scale(torch.ones(1)))
            gradients = [each * scale for each in gradients_of(parameters, step)]
            if step in (0, 2):
                gradients[3][-1, -1] = math.nan if step else -math.inf
            give(parameters, [*gradients])
            if clips and kind == "adamw":
                strategy.clip(nn.ParameterList(parameters), optimizer, 0.5, precision)
            before = [parameter.detach().clone() for parameter in parameters]
            applied.append(strategy.step(optimizer, precision))
            same = all(torch.equal(*pair) for pair in zip(parameters, before, strict=True))
            assert same == (step in (0, 2))
        results.append((parameters, applied, precision.state_dict()["scale"], optimizer.state_dict()))
    (parameters, applied, scale, state), (others, *expected, other_state) = results
    assert [applied, scale] == expected and applied == [False, True, False, True] and scale == 256.0
    assert_close(parameters, [other.detach() for other in others])
    assert_same_state(state, other_state)


@pytest.mark.parametrize("kind", [fused_adamw, fused_lamb])
def test_without_scaling_gradients_that_are_not_finite_change_nothing_and_do_not_count(kind: Any) -> None:
    results = []
    for numbers in ((0, 1, 2), (0, 2)):
        parameters, precision, strategy = made(False, FEW), Precision("bf16", "cpu"), SingleStrategy()
        optimizer, applied = kind(parameters), []
        for number in numbers:
            gradients = gradients_of(parameters, number)
            if number == 1:
                gradients[3][-1, -1] = math.nan
            give(parameters, [*gradients])
            if isinstance(optimizer, FusedAdamW):
                strategy.clip(nn.ParameterList(parameters), optimizer, 0.5, precision)
            applied.append(strategy.step(optimizer, precision))
        results.append((parameters, optimizer.state_dict(), applied))
    (parameters, state, applied), (others, other_state, _) = results
    assert applied == [True, False, True]
    assert all(torch.equal(*pair) for pair in zip(parameters, others, strict=True))
    assert_same_state(state, other_state)


def assert_same_state(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["param_groups"] == expected["param_groups"]
    assert found["state"].keys() == expected["state"].keys()
    for index, each in expected["state"].items():
        assert found["state"][index].keys() == each.keys()
        for key, value in each.items():
            assert found["state"][index][key].dtype == value.dtype
            torch.testing.assert_close(found["state"][index][key], value, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", ["adamw", "lamb"])
@pytest.mark.parametrize("fused_first", [True, False])
def test_a_checkpoint_continues_with_the_other(kind: str, fused_first: bool) -> None:
    def optimizer_of(parameters: list[nn.Parameter], fuses: bool) -> torch.optim.Optimizer:
        if kind == "lamb":
            return fused_lamb(parameters) if fuses else Lamb(groups(parameters), RATE, BETAS, EPS, DECAY, 1.0)
        return (FusedAdamW if fuses else AdamW)(groups(parameters), RATE, BETAS, EPS, DECAY)

    def train(model: nn.ParameterList, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            give([*model], [*gradients_of([*model], step)])
            optimizer.step()
            optimizer.zero_grad()

    plain, first = (nn.ParameterList(made(False, FEW)) for _ in range(2))
    reference, strategy = optimizer_of([*plain], False), SingleStrategy()
    train(plain, reference, range(3))
    before = optimizer_of([*first], fused_first)
    train(first, before, range(2))
    moments: dict[str, dict[str, Tensor]] = {}
    for name, key, value in strategy.moments(first, before):
        moments.setdefault(name, {})[key] = value.clone()
    second = copy.deepcopy(first)
    after = optimizer_of([*second], not fused_first)
    strategy.load_moments(second, after, moments, shared_steps(before))
    train(second, after, range(2, 3))
    assert_close([*second], [parameter.detach() for parameter in plain])
    assert_same_state(after.state_dict(), reference.state_dict())


@pytest.mark.parametrize("kind", [fused_adamw, fused_lamb])
def test_tensors_that_were_replaced_are_found(kind: Any) -> None:
    parameters, others = made(False, FEW), made(False, FEW)
    optimizers = [kind(parameters), kind(others)]
    for step in range(2):
        for each, optimizer in zip((parameters, others), optimizers, strict=True):
            give(each, [*gradients_of(each, step)])
            optimizer.step()
        for parameter in others:
            parameter.data = parameter.data.clone()
        optimizers[1].load_state_dict(copy.deepcopy(optimizers[1].state_dict()))
    assert all(torch.equal(*pair) for pair in zip(parameters, others, strict=True))


def test_nothing_to_update() -> None:
    parameters = made()
    for optimizer in (fused_adamw(parameters), fused_lamb(parameters)):
        optimizer.step()
        assert not optimizer.overflow() and not optimizer.state
    assert optimizer.steps == 0


@pytest.fixture
def accessed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Count the bytes that the interpreter loads and stores, masked elements apart."""
    counts = Counter[str]()

    def count(name: str, pointers: Any, mask: Any) -> None:
        present = np.broadcast_to(mask.data, pointers.data.shape)
        counts[name] += int(present.sum()) * pointers.get_element_ty().primitive_bitwidth // 8

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def counted_load(self: Any, pointers: Any, mask: Any, *others: Any) -> Any:
        count("read", pointers, mask)
        return load(self, pointers, mask, *others)

    def counted_store(self: Any, pointers: Any, value: Any, mask: Any, *others: Any) -> Any:
        count("written", pointers, mask)
        return store(self, pointers, value, mask, *others)

    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", counted_load)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_store", counted_store)
    yield counts


# Read and written for each parameter: parameter, gradient and two moments in; all but the gradient out.
BYTES = {
    ("adamw", "bare"): (16, 12),
    ("adamw", "clipped, with a copy"): (4 + 16, 12 + 2),
    ("adamw", "clipped, with a copy, bf16 gradient"): (2 + 14, 12 + 2),
    ("lamb", "bare"): (16 + 12, 8 + 4),
    ("lamb", "clipped, with a copy"): (4 + 16 + 12, 8 + 4 + 2),
    ("lamb", "clipped, with a copy, bf16 gradient"): (2 + 14 + 12, 8 + 4 + 2),
}


@pytest.mark.parametrize(("kind", "form"), BYTES)
def test_the_budget(kind: str, form: str, accessed: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizers, "TILING", {"chunk": 16384, "tile": 2048, "warps": 8})
    parameter, clips = nn.Parameter(torch.ones(8, 2048)), form != "bare"
    if clips:
        give_copies([parameter], gradients="bf16" in form)
    parameter.grad = torch.ones_like(parameter, dtype=LOW if "bf16" in form else torch.float32)
    optimizer = fused_adamw([parameter]) if kind == "adamw" else fused_lamb([parameter], 1.0 if clips else None)
    if isinstance(optimizer, FusedAdamW) and clips:
        optimizer.clip(1.0)
    optimizer.step()
    read, written = (accessed[name] / parameter.numel() for name in ("read", "written"))
    most_read, most_written = BYTES[kind, form]
    # Rows of tables and sums are the rest: for each tile, program or tensor.
    assert most_read <= read <= most_read + 0.3 and most_written <= written <= most_written + 0.01


@pytest.mark.parametrize(("kind", "most"), [(fused_adamw, 3), (fused_lamb, 5)])
def test_the_number_of_launches_does_not_depend_on_the_number_of_tensors(
    kind: Any, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(optimizers, "launch", lambda kernel, *given, **how: calls.append(kernel.__name__))
    found = []
    for count in (2, 300):
        parameters = [nn.Parameter(torch.ones(3, 3)) for _ in range(count)]
        optimizer = kind(parameters)
        give(parameters, [torch.ones(3, 3) for _ in parameters])
        if isinstance(optimizer, FusedAdamW):
            optimizer.clip(1.0)
        optimizer.step()
        found.append([*calls])
        calls.clear()
    assert found[0] == found[1] and len(found[0]) == most


def test_a_gradient_that_is_not_in_rows_is_read_as_it_is() -> None:
    parameters, expected = made(copies=False, count=1), made(copies=False, count=1)
    reference = torch.optim.AdamW(groups(expected), RATE, BETAS, EPS, DECAY)
    gradient = torch.randn(5, 7, generator=torch.Generator().manual_seed(3)).t()
    parameters[0].grad, expected[0].grad = gradient, gradient.clone()
    optimizer = fused_adamw(parameters)
    optimizer.clip(1e9)
    # What is freed here would be written over by the next allocations of the same size.
    scratch = [torch.full((7, 5), 1e6) for _ in range(8)]
    optimizer.step()
    reference.step()
    assert len(scratch) == 8
    assert_close(parameters, [each.detach() for each in expected])


@pytest.mark.parametrize("kind", [fused_adamw, fused_lamb])
def test_the_table_is_made_again_only_where_an_address_changes(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tables: list[Any] = []
    make = optimizers.rows_of
    monkeypatch.setattr(optimizers, "rows_of", lambda groups: (tables.append(groups), make(groups))[1])
    parameters = [nn.Parameter(torch.ones(3, 3)) for _ in range(4)]
    optimizer, gradients = kind(parameters), [torch.full((3, 3), 0.5) for _ in range(4)]
    for rate in (0.1, 0.01):
        give(parameters, gradients)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
    assert len(tables) == 1
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()
    give(parameters, [gradient.clone() for gradient in gradients])
    optimizer.step()
    assert len(tables) == 3
