"""LAMB against its formulas written down plainly, its state, and what it refuses."""

import copy
import math
from typing import Any

import pytest
import torch
from support.plain_optimizers import PlainLamb
from torch import nn

from bert.optim.lamb import Lamb


def odd_parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """Matrices and vectors of awkward sizes; the third is zero."""
    generator = torch.Generator().manual_seed(1)
    shapes = [(7, 5), (33,), (4, 4), (3, 2, 5), (130, 9), (1,), (64, 64)]
    values = [torch.randn(shape, generator=generator) * 0.3 for shape in shapes]
    values[2].zero_()
    return [nn.Parameter(value.to(dtype)) for value in values]


def both(
    parameters: list[nn.Parameter], reference_dtype: torch.dtype = torch.float64, **options: Any
) -> tuple[Lamb, PlainLamb]:
    """The optimizer over the parameters and the reference over copies of them, one-dimensional ones undecayed."""
    decay = options.pop("weight_decay", 0.01)
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    plain = PlainLamb(
        [p.detach().to(reference_dtype, copy=True) for p in parameters],
        [decay if p.ndim > 1 else 0.0 for p in parameters],
        **options,
    )
    return Lamb(groups, lr=0.02, **options), plain


def run_both(
    parameters: list[nn.Parameter],
    fast: Lamb,
    plain: PlainLamb,
    gradients: list[list[torch.Tensor | None]],
    rate: float = 0.02,
) -> None:
    for each in gradients:
        for parameter, gradient in zip(parameters, each, strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.dtype)
        plain.step([None if g is None else g.to(v.dtype) for g, v in zip(each, plain.values, strict=True)], rate)
        fast.step()
        for parameter, value in zip(parameters, plain.values, strict=True):
            torch.testing.assert_close(parameter.detach().double(), value.double(), rtol=1e-6, atol=1e-6)


def random_gradients(
    parameters: list[nn.Parameter], steps: int, size: float, seed: int = 2
) -> list[list[torch.Tensor | None]]:
    generator = torch.Generator().manual_seed(seed)
    return [[size * torch.randn(p.shape, generator=generator) for p in parameters] for _ in range(steps)]


@pytest.mark.parametrize("size", [1e-4, 0.01, 1.0, 100.0], ids=lambda size: f"gradients_of_{size}")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("reference_dtype", [torch.float32, torch.float64], ids=str)
def test_several_steps_equal_the_plain_formulas_below_and_above_the_clipping_norm(
    size: float, dtype: torch.dtype, reference_dtype: torch.dtype
) -> None:
    parameters = odd_parameters(dtype)
    gradients = random_gradients(parameters, 8, size)
    norm = math.sqrt(sum(float(g.square().sum()) for g in gradients[0] if g is not None))
    assert (norm > 1.0) == (size >= 0.1)
    run_both(parameters, *both(parameters, reference_dtype), gradients)


@pytest.mark.parametrize(
    "options",
    [
        {"betas": (0.8, 0.99), "eps": 1e-3},
        {"betas": (0.0, 0.0)},
        {"max_grad_norm": None},
        {"max_grad_norm": 0.05},
        {"weight_decay": 0.3},
        {"weight_decay": 0.0},
    ],
    ids=str,
)
def test_every_hyper_parameter_is_obeyed(options: dict[str, Any]) -> None:
    parameters = odd_parameters()
    run_both(parameters, *both(parameters, **options), random_gradients(parameters, 5, 0.5))


def test_zero_gradients_zero_parameters_and_parameters_without_gradient() -> None:
    parameters = odd_parameters()
    gradients = random_gradients(parameters, 6, 0.1)
    for number, each in enumerate(gradients):
        each[3] = None if number != 4 else each[3]  # joins late: its bias correction goes by the optimizer's steps
        each[0] = torch.zeros(7, 5) if number < 3 else each[0]
    everything_zero: list[torch.Tensor | None] = [torch.zeros_like(p) for p in parameters]
    fast, plain = both(parameters)
    run_both(parameters, fast, plain, [everything_zero, *gradients, everything_zero])
    assert fast.steps == 8


def test_gradients_in_another_memory_order_are_read_right() -> None:
    parameters = odd_parameters()
    gradients = random_gradients(parameters, 3, 0.5)
    for each in gradients:
        assert each[0] is not None
        each[0] = each[0].t().contiguous().t()
    run_both(parameters, *both(parameters), gradients)


def test_first_step_worked_by_hand() -> None:
    # Gradient (3, 4) of norm 5 clips to (0.6, 0.8). After one step m^ = g and sqrt(v^) = |g|, so that
    # u = (1, 1) + 0.5 p = (2.5, 3), ||p|| = 5, ||u|| = sqrt(15.25); p - 0.1 * 5 / sqrt(15.25) * u.
    parameter = nn.Parameter(torch.tensor([[3.0, 4.0]]))
    optimizer = Lamb([parameter], lr=0.1, weight_decay=0.5, eps=1e-12)
    parameter.grad = torch.tensor([[3.0, 4.0]])
    optimizer.step()
    length = 0.1 * 5 / math.sqrt(15.25)
    assert parameter.tolist() == [pytest.approx([3 - 2.5 * length, 4 - 3 * length], rel=1e-6)]


def test_large_tensors_are_clipped_and_scaled_by_their_exact_norms() -> None:
    # Squares of a whole large tensor added up in one float32 are 0.1 % off.
    parameters = [nn.Parameter(torch.full((4096, 1024), 0.02)), nn.Parameter(torch.full((64, 64), 0.5))]
    gradients: list[list[torch.Tensor | None]] = [[torch.full_like(p, 0.7).detach() for p in parameters]]
    run_both(parameters, *both(parameters), gradients, rate=0.02)


def trained(steps: int, optimizer: Lamb, parameters: list[nn.Parameter], seed: int) -> list[torch.Tensor]:
    for each in random_gradients(parameters, steps, 0.3, seed):
        for parameter, gradient in zip(parameters, each, strict=True):
            parameter.grad = gradient
        optimizer.step()
    return [parameter.detach().clone() for parameter in parameters]


def test_a_restored_state_continues_bit_by_bit() -> None:
    parameters = odd_parameters()
    optimizer, _ = both(parameters)
    trained(5, optimizer, parameters, seed=3)
    saved, values = copy.deepcopy(optimizer.state_dict()), [p.detach().clone() for p in parameters]
    expected = trained(5, optimizer, parameters, seed=4)

    again = [nn.Parameter(value) for value in values]
    restored, _ = both(again, max_grad_norm=7.0)
    saved["param_groups"] = [
        {name: list(value) if isinstance(value, tuple) else value for name, value in group.items()}
        for group in saved["param_groups"]
    ]  # as JSON gives it back
    restored.load_state_dict(saved)
    assert restored.steps == 5
    assert all(torch.equal(a, b) for a, b in zip(trained(5, restored, again, seed=4), expected, strict=True))
    assert restored.steps == 10
