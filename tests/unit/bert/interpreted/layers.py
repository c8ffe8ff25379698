"""Kernels of a layer in Triton's interpreter against PyTorch's functions in float64, for values and gradients.

Run by tests/unit/bert/test_kernels_interpreted.py, in a process of its own.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.philox import factors, key_of, philox
from torch import Tensor

from bert.speed import kernels
from bert.speed.kernels import gelu, norm

SEED, EPS = 3, 1e-12
TYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(1, 1), (2, 3, 40), (7, 33)]
# One step of the type, times what adds up: results are rounded once, from float32.
STEP = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}


@pytest.fixture(params=[132, 1], ids=["a tile each", "two programs"])
def multiprocessors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one of them two programs have to loop over all rows."""
    monkeypatch.setattr(kernels, "processor", lambda device: kernels.Processor(9, request.param))


def numbers(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = True) -> Tensor:
    return torch.randn(*shape).to(dtype).requires_grad_(grad)


def exact(*tensors: Tensor) -> list[Tensor]:
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def agree(found: Tensor | None, expected: Tensor | None, dtype: torch.dtype) -> None:
    assert found is not None and expected is not None and found.shape == expected.shape
    scale = float(expected.detach().abs().max()) + 1e-3  # of sums, whose terms cancel
    torch.testing.assert_close(found.double(), expected, rtol=STEP[dtype], atol=STEP[dtype] * scale)


def test_the_random_bits_are_those_of_the_paper() -> None:
    # Known answers of the authors' library, Random123 (kat_vectors).
    pi = ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], (0xA4093822, 0x299F31D0))
    known = [
        ([0] * 4, (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, (0xFFFFFFFF, 0xFFFFFFFF), [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (*pi, [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
    ]
    for counter, key, answer in known:
        assert [int(word) for word in philox([np.array(part) for part in counter], key)] == answer


@pytest.mark.usefixtures("multiprocessors")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("probability", [0.0, 0.3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_residual_norm(shape: tuple[int, ...], probability: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    width = shape[-1]
    x, residual = numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype)
    weight, shift, bias = (numbers(width) for _ in range(3))
    grads = [numbers(*shape, dtype=dtype, grad=False) for _ in range(2)]
    torch.manual_seed(SEED)
    results = norm.residual_norm(x, residual, weight, shift, 1e-3, probability, bias)[:2]
    found = torch.autograd.grad(results, [x, residual, weight, shift, bias], grads)
    mine = exact(x, residual, weight, shift, bias)
    kept = factors(key_of(SEED), x.numel() // width, width, probability).view(shape)
    expected = F.layer_norm((mine[0] + mine[4]) * kept + mine[1], (width,), mine[2], mine[3], 1e-3)
    wanted = torch.autograd.grad(expected, mine, grads[0].double() + grads[1].double())
    assert results[0].data_ptr() == results[1].data_ptr() and results[0].dtype == dtype
    agree(results[1], expected, dtype)
    for one, other in zip(found, wanted, strict=True):
        agree(one, other, dtype)


@pytest.mark.parametrize("which", [0, 1])
def test_a_norm_of_mixed_types_with_one_gradient_and_no_bias(which: int) -> None:
    torch.manual_seed(0)
    x, residual, weight, shift = numbers(5, 24, dtype=torch.bfloat16), numbers(5, 24), numbers(24), numbers(24)
    results = norm.residual_norm(x, residual, weight, shift, EPS, 0.0, None)
    found = torch.autograd.grad(results[which].float().square().sum(), [x, residual, weight, shift])
    mine = exact(x, residual, weight, shift)
    expected = F.layer_norm(mine[0] + mine[1], (24,), mine[2], mine[3], EPS)
    wanted = torch.autograd.grad(expected.square().sum(), mine)
    assert results[0].dtype == found[0].dtype == torch.bfloat16 and found[1].dtype == torch.float32
    for one, other in zip(found, wanted, strict=True):
        agree(one, other, torch.bfloat16)


def test_dropout_draws_one_number_of_the_generator_for_the_bits_of_the_paper() -> None:
    rows, width, probability = 16, 128, 0.1
    x, zeros = torch.ones(rows, width, requires_grad=True), torch.zeros(rows, width, requires_grad=True)
    for seed in (SEED, SEED + 1):
        torch.manual_seed(seed)
        result, *_ = norm.residual_norm(x, zeros, torch.ones(width), torch.zeros(width), EPS, probability, None)
        state = torch.get_rng_state()
        key = key_of(seed)
        assert torch.equal(state, torch.get_rng_state())  # whatever the size
        assert torch.equal(result > 0, factors(key, rows, width, probability) > 0)  # the mean lies between 0 and 1


@pytest.mark.usefixtures("multiprocessors")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7, 40), (19, 300)], ids=str)
def test_gelu(shape: tuple[int, ...], with_bias: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, bias, grad = numbers(*shape, dtype=dtype), numbers(shape[-1]), numbers(*shape, dtype=dtype, grad=False)
    result, _ = gelu.gelu(x, bias if with_bias else None)
    mine = exact(x, bias)
    expected = F.gelu(mine[0] + mine[1] if with_bias else mine[0])
    agree(result, expected, dtype)
    count = 1 + with_bias
    found = torch.autograd.grad(result, [x, bias][:count], grad)
    for one, other in zip(found, torch.autograd.grad(expected, mine[:count], grad.double()), strict=True):
        agree(one, other, dtype)
