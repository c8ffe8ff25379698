"""The loops in C of a CPU, for dropout, LayerNorm, GELU and softmax, give what PyTorch's functions do."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from support.layouts import assert_same, batch_of, loss_and_gradients, model
from support.philox import philox
from torch import Tensor, nn

from bert.model.encoder import recompute_activations
from bert.speed import native
from bert.speed.elementwise import (
    gelu,
    keep_scale,
    random_levels,
    residual_norm,
    softmax_dropout,
    softmax_dropout_backward,
    threshold,
)
from common.errors import MissingToolError

FACTOR = 0.3
KINDS = pytest.mark.parametrize("kind", [torch.bfloat16, torch.float32], ids=str)


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops, with the random numbers that PyTorch's functions get."""
    monkeypatch.setenv(native.VARIABLE, "1")
    assert native.loops() is not None
    monkeypatch.setattr("bert.speed.elementwise.random_levels", lambda like, by_loop=False: random_levels(like))


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("probability", [0.0, 0.1])
@pytest.mark.parametrize("rows", [(0,), (1,), (2, 3), (700,)], ids=str)
@pytest.mark.parametrize("width", [3, 31, 768])
@KINDS
def test_loops_are_the_formulas(
    monkeypatch: pytest.MonkeyPatch, threads: int, probability: float, kind: torch.dtype, rows: tuple[int, ...],
    width: int,
) -> None:  # fmt: skip
    before = torch.get_num_threads()
    torch.manual_seed(0)
    norm = nn.LayerNorm(width, eps=1e-3)  # of three values some vary hardly
    nn.init.normal_(norm.weight)
    inputs = [torch.randn(*rows, width).to(kind), torch.randn(*rows, width)]
    upstream = [torch.randn(*rows, width).to(each) for each in (torch.float32, kind, kind)]
    found = []
    torch.set_num_threads(threads)
    try:
        for wanted, computed in (("0", torch.float32), ("1", kind)):  # the formula rounds nothing to bf16
            monkeypatch.setenv(native.VARIABLE, wanted)
            torch.manual_seed(3)
            leaves = [inputs[0].to(computed).requires_grad_(), inputs[1].clone().requires_grad_()]
            wide, narrow, _ = residual_norm(*leaves, norm, probability)
            given = [wide, narrow, gelu(leaves[0])[0]]
            first, second, third = (grad.to(one.dtype) for grad, one in zip(upstream, given, strict=True))
            grads = torch.autograd.grad(given[:2], [*leaves, *norm.parameters()], [first, second])
            found.append([*given, *grads, *torch.autograd.grad(given[2], leaves[0], third)])
    finally:
        torch.set_num_threads(before)
    assert [each.dtype for each in found[1][:3]] == [torch.float32, kind, kind]
    for formula, loop in zip(*found, strict=True):
        rounding = 2e-5 * max(1.0, len(formula) ** 0.5 if formula.dim() == 1 else 1.0)
        tolerance, least = (2**-7, 2**-6) if loop.dtype == torch.bfloat16 else (1e-4, rounding)
        torch.testing.assert_close(loop.float(), formula.float(), rtol=tolerance, atol=least)


@pytest.mark.usefixtures("loops")
@KINDS
def test_the_slope_of_gelu_is_right_everywhere(kind: torch.dtype) -> None:
    x = torch.linspace(-40, 40, 400_001).to(kind).requires_grad_()
    exact = x.detach().double().requires_grad_()
    (found,) = torch.autograd.grad(gelu(x)[0].sum(), x)
    (expected,) = torch.autograd.grad(nn.functional.gelu(exact).sum(), exact)
    torch.testing.assert_close(found.double(), expected, rtol=2**-8 if kind == torch.bfloat16 else 0, atol=4e-7)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@KINDS
def test_what_is_not_finite_stays_so_in_its_row(bad: float, kind: torch.dtype) -> None:
    x = torch.ones(3, 40)
    x[1, 7] = bad
    wide, narrow, _ = residual_norm(x.to(kind), torch.randn(3, 40), nn.LayerNorm(40), 0.0)
    for given in (wide, narrow):
        assert given.isnan().all(1).tolist() == [False, True, False] and given[::2].isfinite().all()


@pytest.mark.usefixtures("loops", "one_thread")
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("lengths", [[16, 3, 9, 1], [4, 0, 7], [7, 7]], ids=str)
def test_a_model_with_loops_is_the_one_without(lengths: list[int], bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for wanted, recomputed in (("0", False), ("1", False), ("1", True)):
        monkeypatch.setenv(native.VARIABLE, wanted)
        made = model(True, hidden_dropout=0.1, attention_dropout=0.1)
        if recomputed:
            recompute_activations(made)
        torch.manual_seed(7)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = made(batch_of(lengths, max(lengths))).loss
        found.append(loss_and_gradients(made, loss))
    assert_same(found[2], found[1], 0.0)
    least = 1e-3 * max(value.norm() for value in found[0].values())
    for name, value in found[0].items():
        assert (found[1][name] - value).norm() <= (2e-2 if bf16 else 1e-5) * max(value.norm(), least), name


ROWS = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.bool)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("probability", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("rows", [None, ROWS[:2], ROWS[1:]], ids=["none", "padded", "nothing allowed"])
@KINDS
def test_softmax_and_its_gradient_are_the_formulas(kind: torch.dtype, rows: Tensor | None, probability: float) -> None:
    """e^s / sum e^s over the keys that are allowed, equal weights where none is, of 2 sequences, 3 heads, 5 tokens."""
    torch.manual_seed(0)
    scores, upstream = torch.randn(2, 6, 5, 5).to(kind).unbind(0)
    mask = None if rows is None else rows[:, None, None, :]
    torch.manual_seed(3)
    kept, weights = softmax_dropout(scores.clone(), mask, FACTOR, probability)
    back, again = softmax_dropout_backward(upstream.clone(), weights, FACTOR, probability)
    assert torch.equal(kept, again)
    exact = scores.double().requires_grad_()
    powers = (exact * FACTOR).exp()
    if mask is not None:
        allowed = mask.expand(2, 3, 5, 5).flatten(0, 1)
        powers = torch.where(allowed.any(-1, keepdim=True), powers * allowed, powers / powers.detach())
    formula = powers / powers.sum(-1, keepdim=True)
    if probability:
        torch.manual_seed(3)
        levels = random_levels(scores)
        formula = torch.where(levels >= threshold(probability), formula * keep_scale(probability), 0)
    (formula_back,) = torch.autograd.grad(formula, exact, upstream.double())
    step = 2**-7 if kind == torch.bfloat16 else 1e-5  # one step of bf16 is 2^-8
    assert torch.equal(kept == 0, formula == 0)
    torch.testing.assert_close(kept.double(), formula.detach(), rtol=step, atol=1e-6)
    torch.testing.assert_close(back.double(), formula_back, rtol=step, atol=step * float(formula_back.abs().max()))


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("length", [1, 3, 16, 33, 257])
@pytest.mark.parametrize("spread", [0.01, 1.0, 50.0, 1e4])
def test_softmax_is_its_formula_to_the_last_digits_of_float32(length: int, spread: float) -> None:
    torch.manual_seed(0)
    scores = torch.randn(6, length, length) * spread
    kept, _ = softmax_dropout(scores, None, 1.0, 0.0)
    rounded = 2**-24 * min(87, 8 * spread)  # the difference to the greatest score, in float32
    torch.testing.assert_close(kept.double(), scores.double().softmax(-1), rtol=1e-6 + rounded, atol=1e-37)


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_softmax_passes_on_what_is_not_a_number(value: float) -> None:
    scores = torch.zeros(2, 4, 4)
    scores[0, 1, 2] = value
    kept, _ = softmax_dropout(scores, None, 1.0, 0.0)
    assert torch.equal(kept.isnan(), scores.softmax(-1).isnan()) and kept[0, 1].isnan().all()


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("count", [1, 7, 128, 1000, 4096 + 5])
def test_random_levels_are_philox_whatever_the_threads(count: int) -> None:
    before, found = torch.get_num_threads(), []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(5)
        found.append(random_levels(torch.empty(count), by_loop=True))
    torch.set_num_threads(before)
    assert torch.equal(*found) and found[0].dtype == torch.int16
    torch.manual_seed(5)
    key = int(torch.empty((), dtype=torch.int64).random_(-(2**63), None)) % 2**64
    numbers = np.arange(-(-count // 128) * 16)
    words = philox([numbers, *3 * [numbers * 0]], (key & 0xFFFFFFFF, key >> 32))
    blocks = [[part for word in each for part in (word & 0xFFFF, word >> 16)] for each in np.stack(words, 1).tolist()]
    # In each 16 blocks the first words of all come first.
    expected = [blocks[16 * many + block][2 * word + half] for many in range(-(-count // 128)) for word in range(4)
                for block in range(16) for half in range(2)]  # fmt: skip
    assert [number % 2**16 for number in found[0].tolist()] == expected[:count]


def test_other_types_and_evaluation_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.VARIABLE, "1")
    monkeypatch.setattr("bert.speed.elementwise._run", lambda *given: pytest.fail("a loop ran"))
    x, low = torch.ones(2, 8, dtype=torch.bfloat16), nn.LayerNorm(8, dtype=torch.bfloat16)
    assert residual_norm(x, x, low, 0.1).wide.dtype == torch.bfloat16
    assert residual_norm(x.float(), x.float(), nn.LayerNorm(8).eval(), 0.1).wide.dtype == torch.float32
    assert gelu(x.double().requires_grad_())[0].dtype == torch.float64


def test_it_is_compiled_once_for_each_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path))
    first = native.compiled()
    written = first.stat().st_mtime_ns
    assert native.compiled() == first and first.stat().st_mtime_ns == written
    assert [path.name for path in first.parent.iterdir()] == [first.name]
    monkeypatch.setattr(native, "_processor", lambda: "flags: none")
    assert native.compiled() != first


def test_without_a_compiler_pytorch_computes_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(native.VARIABLE, "1")
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    missing = native._loaded.__wrapped__()
    assert isinstance(missing, MissingToolError) and "no-such-compiler" in str(missing)
    monkeypatch.setattr(native, "_loaded", lambda: missing)
    assert native.loops() is None and native.loops_missing() is missing
    x = torch.randn(3, 8, requires_grad=True)
    torch.testing.assert_close(residual_norm(x, x, nn.LayerNorm(8), 0.0).wide, nn.functional.layer_norm(2 * x, (8,)))
