"""Dropout, residual connection and LayerNorm by formulas of our own: what PyTorch's functions give, in every shape."""

import os
import stat
import sys
from pathlib import Path

import pytest
import torch
from support.refusals import refused
from support.softmax_formula import HEADS, LENGTH, MASKS, by_formula
from torch import Tensor, nn

from bert.model.config import ModelConfig
from bert.model.encoder import BertEncoder, recompute_activations
from bert.speed import native
from bert.speed.dropout import keep_scale, random_levels, threshold
from bert.speed.elementwise import gelu, residual_norm, softmax_dropout, softmax_dropout_backward

WIDTH = 24
FACTOR = 0.3
SHAPE = ModelConfig(
    num_layers=2, hidden_size=WIDTH, num_heads=2, intermediate_size=48, max_positions=16, vocab_size=64
)  # fmt: skip
LENGTHS = torch.tensor([9, 1, 16, 5])


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A compiler that writes a library of no use and a line into a log for each time it is called."""
    log, made = tmp_path / "calls", tmp_path / "compiler"
    made.write_text(
        f"#!{sys.executable}\nimport sys\nopen({os.fspath(log)!r}, 'a').write('called\\n')\n"
        "open(sys.argv[sys.argv.index('-o') + 1], 'w').write('library')\n"
    )
    made.chmod(made.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv(native.VARIABLE, "1")
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "cache"))
    monkeypatch.setenv("CC", os.fspath(made))
    monkeypatch.setattr(native, "compiled", native.compiled.__wrapped__)
    monkeypatch.setattr("bert.speed.registry.compiled", native.compiled)
    return log


def norm_of(width: int = WIDTH, dtype: torch.dtype = torch.float32) -> nn.LayerNorm:
    made = nn.LayerNorm(width, eps=1e-12, dtype=dtype)
    nn.init.normal_(made.weight)
    nn.init.normal_(made.bias)
    return made


def both_ways(
    norm: nn.LayerNorm, x: Tensor, residual: Tensor, probability: float, fused: bool, bf16: bool = False
) -> list[Tensor]:
    """Results and gradients, with the same random numbers and gradients of the results each time."""
    torch.manual_seed(3)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        wide, narrow, _ = residual_norm(x, residual, norm, probability, fused)
    narrow = narrow.to(x.dtype)
    grads = [torch.randn(wide.shape).to(kind) for kind in (wide.dtype, narrow.dtype)]
    return [wide, narrow, *torch.autograd.grad([wide, narrow], [x, residual, norm.weight, norm.bias], grads)]


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("rows", [(1,), (2,), (29,), (3, 7), (1, 1)], ids=str)
def test_it_gives_what_pytorchs_functions_give(rows: tuple[int, ...], probability: float) -> None:
    torch.manual_seed(0)
    norm, shape = norm_of(), (*rows, WIDTH)
    x, residual = torch.randn(shape, requires_grad=True), torch.randn(shape, requires_grad=True)
    expected = both_ways(norm, x, residual, probability, False)
    for found, wanted in zip(both_ways(norm, x, residual, probability, True), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("probability", [0.0, 0.1])
def test_under_autocast_it_rounds_as_often_as_pytorch_does(probability: float) -> None:
    torch.manual_seed(0)
    norm, shape = norm_of(), (29, WIDTH)
    x = torch.randn(shape).bfloat16().requires_grad_()
    residual = torch.randn(shape, requires_grad=True)
    expected = both_ways(norm, x, residual, probability, False, bf16=True)
    found = both_ways(norm, x, residual, probability, True, bf16=True)
    assert [each.dtype for each in found] == [each.dtype for each in expected]
    for each, wanted in zip(found, expected, strict=True):  # one step of bf16 is 2^-8
        torch.testing.assert_close(each, wanted, rtol=2**-7 if wanted.dtype == torch.bfloat16 else 1e-5, atol=1e-5)


@pytest.mark.parametrize("probability", [0.0, 0.3])
def test_gradients_are_the_derivatives(probability: float) -> None:
    torch.manual_seed(0)
    norm = norm_of(5, torch.float64)
    x, residual = (torch.randn(4, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def fixed(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        torch.manual_seed(3)
        return residual_norm(x, residual, norm, probability, True)[:2]

    assert torch.autograd.gradcheck(fixed, (x, residual, norm.weight, norm.bias))


def test_it_draws_the_random_numbers_of_dropout_alone() -> None:
    norm, x, states = norm_of(), torch.ones(7, WIDTH), []
    for fused in (False, True):
        torch.manual_seed(3)
        residual_norm(x, x, norm, 0.1, fused)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


@pytest.mark.parametrize("unpads", [True, False])
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("recomputed", [False, True])
def test_layers_with_dropout_are_the_same(unpads: bool, bf16: bool, recomputed: bool) -> None:
    mask = (torch.arange(16) < LENGTHS[:, None]).long()
    ids = torch.randint(1, 64, mask.shape, generator=torch.Generator().manual_seed(0)) * mask
    found = []
    for fused in (False, True):
        torch.manual_seed(0)
        encoder = BertEncoder(SHAPE)
        for parameter in encoder.parameters():  # wide enough that every part matters
            nn.init.normal_(parameter, std=0.2)
        encoder.unpads = unpads
        for layer in encoder.layers:
            layer.fused = fused
        if fused and recomputed:
            recompute_activations(encoder)
        torch.manual_seed(7)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            output = encoder(ids, mask)
        loss = (output.hidden * mask[..., None]).square().mean() + output.pooled.float().sum()
        loss.backward()
        found.append({"loss": loss.detach(), **{name: value.grad for name, value in encoder.named_parameters()}})
    for name, expected in found[0].items():
        given = found[1][name]
        assert given is not None and (given - expected).norm() <= (2e-2 if bf16 else 1e-5) * expected.norm() + 1e-6, (
            name
        )


def test_evaluation_and_other_types_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise AssertionError("the formula was used")

    monkeypatch.setattr("bert.speed.elementwise._norm_forward", forbidden)
    low, x = norm_of(dtype=torch.bfloat16), torch.ones(2, WIDTH, dtype=torch.bfloat16)
    assert residual_norm(x, x, low, 0.1, True).wide.dtype == torch.bfloat16
    assert residual_norm(x.float(), x.float(), norm_of().eval(), 0.1, True).wide.dtype == torch.float32
    assert gelu(x.double().requires_grad_(), True).dtype == torch.float64
    with pytest.raises(AssertionError, match="the formula was used"):
        residual_norm(x, x.float(), norm_of(), 0.1, True)


def test_it_is_compiled_once_for_all_processes(compiler: Path) -> None:
    first = native.compiled()
    assert first.read_text() == "library" and first.parent == compiler.parent / "cache" / "bertbench"
    assert native.compiled() == first and compiler.read_text() == "called\n"
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_another_processor_or_compiler_has_its_own(compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {native.compiled()}
    monkeypatch.setattr(native, "_processor", lambda: "flags: none")
    found.add(native.compiled())
    other = compiler.parent / "other"
    other.symlink_to(compiler.parent / "compiler")
    monkeypatch.setenv("CC", os.fspath(other))
    found.add(native.compiled())
    assert len(found) == 3


def test_a_cache_that_cannot_be_written_costs_a_compilation(compiler: Path) -> None:
    (compiler.parent / "cache").write_text("no folder")
    made = native.compiled()
    assert made.read_text() == "library" and native.compiled() != made


@pytest.mark.usefixtures("compiler")
def test_a_damaged_library_is_named() -> None:
    with refused("file-damaged", "elementwise-", ".so"):
        native.loops.__wrapped__()


def test_what_cannot_be_compiled_says_so(compiler: Path, tmp_path: Path) -> None:
    (tmp_path / "compiler").write_text("#!/bin/sh\necho 'no such option -fopenmp' >&2\nexit 1\n")
    with refused("tool-failed", "elementwise.c", "no such option -fopenmp"):
        native.compiled()


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("name", MASKS)
def test_softmax_is_the_formula(name: str, probability: float) -> None:
    mask = MASKS[name]
    scores = torch.randn(2 * HEADS, LENGTH, LENGTH, dtype=torch.float64)
    torch.manual_seed(3)
    found, _ = softmax_dropout(scores.clone(), mask, FACTOR, probability, False)
    torch.manual_seed(3)
    levels = random_levels(scores) if probability else None
    expected = by_formula(scores, mask, FACTOR)
    if levels is not None:
        expected = torch.where(levels >= threshold(probability), expected * keep_scale(probability), 0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("probability", [0.0, 0.3])
@pytest.mark.parametrize("name", sorted(set(MASKS) - {"nothing allowed"}))
def test_the_backward_pass_of_softmax_is_the_derivative(name: str, probability: float) -> None:
    mask = MASKS[name]
    scores = torch.randn(2 * HEADS, LENGTH, LENGTH, dtype=torch.float64, requires_grad=True)

    def fixed(scores: Tensor) -> Tensor:
        return Checked.apply(scores, mask, probability)  # type: ignore[no-untyped-call]

    assert torch.autograd.gradcheck(fixed, scores)


class Checked(torch.autograd.Function):
    """The two functions as one for autograd's check."""

    @staticmethod
    def forward(ctx, scores: Tensor, mask: Tensor | None, probability: float) -> Tensor:
        torch.manual_seed(3)
        ctx.probability = probability
        ctx.kept, ctx.saved = softmax_dropout(scores.clone(), mask, FACTOR, probability, False)
        return ctx.kept.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        grad_scores, again = softmax_dropout_backward(grad.clone(), ctx.saved, FACTOR, ctx.probability, False)
        assert torch.equal(again, ctx.kept)
        return grad_scores, None, None
