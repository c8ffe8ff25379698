"""Products in FP8 are as near to float32 as the format allows, for any number of rows, and a model trains on them."""

import pytest
import torch
from support.layouts import batch_of, model
from torch import nn

from bert.optim.precision import Precision
from bert.optim.registry import adamw
from bert.parallel.single import SingleStrategy
from bert.speed.copies import copy_of, give_copies, linear
from bert.speed.fp8 import Fp8Copy, products_dtype, quantize
from bert.speed.registry import resolve_levers, use_levers, use_weight_copies


def _off(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.detach().float() - expected.detach()).norm() / expected.detach().norm())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_the_largest_number_is_the_formats(dtype: torch.dtype, size: float) -> None:
    values = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)) * size
    low, scale = quantize(values, dtype)
    assert float(low.float().abs().max()) == torch.finfo(dtype).max
    assert _off(low.float() * scale, values) < (0.04 if dtype == torch.float8_e4m3fn else 0.08)
    zeros, scale = quantize(torch.zeros(16), dtype)
    assert torch.equal(zeros.float() * scale, torch.zeros(16))


@pytest.mark.parametrize("shape", [(16,), (1,), (3, 7), (2, 16)], ids=str)
def test_a_layer_and_its_gradients(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = nn.Parameter(torch.randn(64, 32, generator=generator) * 0.1)
    bias = nn.Parameter(torch.randn(64, generator=generator))
    x = torch.randn(*shape, 32, generator=generator).requires_grad_()
    upstream = torch.randn(*shape, 64, generator=generator)
    expected = x @ weight.t() + bias
    wanted = torch.autograd.grad(expected, [x, weight, bias], upstream)
    give_copies([weight], gradients=False, kind=Fp8Copy)
    with Precision("bf16", "cpu").autocast():
        result = linear(x, weight, bias)
    assert result.dtype == torch.bfloat16 and result.shape == expected.shape
    found = torch.autograd.grad(result, [x, weight, bias], upstream.bfloat16())
    assert _off(result, expected) < 0.04
    for mine, true in zip(found, wanted, strict=True):
        assert mine.shape == true.shape and mine.dtype == torch.float32
        assert _off(mine, true) < 0.12


def test_a_cast_weight_is_never_behind() -> None:
    weight, bias = nn.Parameter(torch.ones(16, 16)), torch.zeros(16)
    give_copies([weight], gradients=False, kind=Fp8Copy)
    x = torch.eye(16)
    for value in (1.0, 3.0):
        with torch.no_grad():
            weight.fill_(value)
        with torch.no_grad(), Precision("bf16", "cpu").autocast():
            assert torch.equal(linear(x, weight, bias).float(), torch.full((16, 16), value))


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_cast_weight_is_that_of_the_last_update(accumulation: int) -> None:
    made, names = model(None), resolve_levers("bf16-weights+fp8", "cpu")
    use_levers(made, names)
    use_weight_copies(
        made, names, precision="bf16", strategy="single", grad_accum_steps=accumulation, optimizer="adamw"
    )
    optimizer, strategy, precision = adamw(made, 1e-1), SingleStrategy(), Precision("bf16", "cpu")
    weight = made.encoder.layers[0].intermediate.weight
    casts = []
    for _ in range(3):
        with precision.autocast():
            loss = made(batch_of([16, 3, 9, 1], 20)).loss
        copy = copy_of(weight)
        assert isinstance(copy, Fp8Copy)
        low, transposed, scale = copy.cast(weight)
        expected, expected_scale = quantize(weight.detach().bfloat16(), torch.float8_e4m3fn)
        assert torch.equal(low.float(), expected.float()) and torch.equal(transposed.float(), expected.float().t())
        assert torch.equal(scale, expected_scale)
        casts.append(low.float() * scale)
        strategy.backward(loss, precision)
        strategy.step(optimizer, precision)
    assert not torch.equal(casts[0], casts[1]) and not torch.equal(casts[1], casts[2])


@pytest.mark.parametrize(("levers", "strategy", "dtype"), [
    ("fp8", "single", torch.float8_e4m3fn), ("fp8+unpad", "ddp", torch.float8_e4m3fn),
    ("bf16-weights", "single", torch.bfloat16), ("none", "single", torch.bfloat16), ("fp8", "fsdp", torch.bfloat16),
])  # fmt: skip
def test_products_are_in_fp8_where_a_weight_has_such_a_copy(levers: str, strategy: str, dtype: torch.dtype) -> None:
    made, names = model(None), resolve_levers(levers, "cpu")
    use_weight_copies(made, names, precision="bf16", strategy=strategy, grad_accum_steps=1, optimizer="adamw")
    assert products_dtype(made, Precision("bf16", "cpu").matmul_dtype) == dtype


def test_a_model_learns_a_batch_as_in_bf16() -> None:
    losses = {}
    for text in ("bf16-weights", "bf16-weights+fp8"):
        made, names = model(None), resolve_levers(text, "cpu")
        use_levers(made, names)
        use_weight_copies(made, names, precision="bf16", strategy="single", grad_accum_steps=1, optimizer="adamw")
        kinds = {type(copy_of(parameter)) for parameter in made.encoder.layers.parameters() if parameter.ndim == 2}
        assert kinds == {Fp8Copy} if "fp8" in text else Fp8Copy not in kinds
        optimizer, strategy, precision = adamw(made, 1e-2), SingleStrategy(), Precision("bf16", "cpu")
        batch = batch_of([16, 3, 9, 1], 20)
        for _ in range(12):
            with precision.autocast():
                loss = made(batch).loss
            strategy.backward(loss, precision)
            strategy.step(optimizer, precision)
            losses.setdefault(text, []).append(loss.item())
    low, fp8 = losses.values()
    assert fp8[-1] < 0.7 * fp8[0]
    assert max(abs(a - b) / a for a, b in zip(low, fp8, strict=True)) < 0.1
