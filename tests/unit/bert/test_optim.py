"""LAMB and AdamW against their formulas written down plainly, their state and groups; schedules worked out by hand."""

import copy
import math
from typing import Any

import pytest
import torch
from support.plain_optimizers import PlainAdamW, PlainLamb
from support.refusals import refused
from torch import nn

from bert.model.config import ModelConfig
from bert.model.heads import BertForPretraining
from bert.optim.lamb import Lamb
from bert.optim.registry import OPTIMIZERS, SELF_CLIPPING, adamw, parameter_groups
from bert.optim.schedule import PHASES, Phase, Schedule
from common.errors import Code


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


CONFIG = ModelConfig(num_layers=2, hidden_size=16, num_heads=2, intermediate_size=32, vocab_size=21, max_positions=8)


def test_biases_and_layer_norms_do_not_decay_and_all_else_does():
    model = BertForPretraining(CONFIG)
    decayed, undecayed = parameter_groups(model, 0.01)
    assert (decayed["weight_decay"], undecayed["weight_decay"]) == (0.01, 0.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    exempt = {names[id(parameter)] for parameter in undecayed["params"]}
    assert exempt == {name for name in names.values() if name.endswith("bias") or "norm" in name}
    assert len(decayed["params"]) + len(undecayed["params"]) == len(names)


def test_tied_parameters_appear_once_and_frozen_ones_never():
    model = nn.ModuleDict({"one": nn.Linear(3, 3), "two": nn.Linear(3, 3)})
    model["two"].weight = model["one"].weight
    model["two"].bias.requires_grad_(False)
    decayed, undecayed = parameter_groups(model, 0.01)
    assert len(decayed["params"]) == 1 and len(undecayed["params"]) == 1


def test_step_is_the_published_update():
    torch.manual_seed(0)
    model = nn.Linear(5, 4)
    optimizer = adamw(model, learning_rate=0.1, weight_decay=0.3)
    assert all(group["fused"] for group in optimizer.param_groups)
    plain = PlainAdamW([p.detach().double() for p in model.parameters()], [0.3, 0.0], max_grad_norm=None)
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        plain.step([parameter.grad.double() for parameter in model.parameters()], 0.1)
        optimizer.step()
    for parameter, value in zip(model.parameters(), plain.values, strict=True):
        torch.testing.assert_close(parameter.detach().double(), value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_decays_matrices_only_and_has_the_constants_of_bert(name):
    model = BertForPretraining(CONFIG)
    optimizer = OPTIMIZERS[name](model, learning_rate=2e-3, weight_decay=0.02)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.02, 0.0]
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (2e-3, (0.9, 0.999), 1e-6)


@pytest.mark.parametrize("name", sorted(SELF_CLIPPING))
def test_those_that_clip_take_the_norm_and_are_lamb(name):
    optimizer = OPTIMIZERS[name](nn.Linear(2, 2), learning_rate=1e-3, max_grad_norm=0.5)
    assert isinstance(optimizer, Lamb)
    assert [group["max_grad_norm"] for group in optimizer.param_groups] == [0.5, 0.5]


def rates(name: str, total_steps: int, warmup: float) -> list[float]:
    schedule = Schedule(name=name, learning_rate=1.0, total_steps=total_steps, warmup=warmup)
    return [schedule(applied) for applied in range(total_steps)]


def of_phase(phase: Phase) -> Schedule:
    return Schedule(learning_rate=phase.learning_rate, total_steps=phase.total_steps, warmup=phase.warmup)


def test_poly_climbs_from_one_step_and_falls_as_the_square_root_to_zero() -> None:
    # t = 1 ... 10, x = t / 10: below 0.4 x / 0.4, then sqrt(1 - x).
    expected = [0.25, 0.5, 0.75, *(math.sqrt(rest / 10) for rest in (6, 5, 4, 3, 2, 1, 0))]
    assert rates("poly", 10, 0.4) == pytest.approx(expected, abs=1e-7)


def test_linear_climbs_to_the_base_rate_and_falls_straight_to_zero() -> None:
    expected = [0.25, 0.5, 0.75, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0]
    assert rates("linear", 10, 0.4) == pytest.approx(expected)


def test_constant_climbs_and_stays() -> None:
    assert rates("constant", 10, 0.4) == pytest.approx([0.25, 0.5, 0.75, *[1.0] * 7])


@pytest.mark.parametrize("half", [1, 3, 7, 40])
def test_cyclic_is_pytorchs_triangular_cycliclr(half: int) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight], lr=1.0)
    theirs = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.25, 1.0, step_size_up=half, cycle_momentum=False)
    found = []
    for _ in range(100):
        optimizer.step()
        theirs.step()
        found.append(optimizer.param_groups[0]["lr"])
    assert rates("cyclic", 100, half / 100) == pytest.approx(found)


def test_cyclic_without_a_half_cycle_of_at_least_one_step_is_refused() -> None:
    with refused("option-value", "--warmup 0.05", "--warmup 0.1 "):
        Schedule(name="cyclic", learning_rate=1.0, total_steps=10, warmup=0.05)


@pytest.mark.parametrize(("name", "end"), [("poly", 0.0), ("linear", 0.0), ("constant", 1.0)])
def test_beyond_the_last_step_the_rate_stays_where_it_ended(name: str, end: float) -> None:
    schedule = Schedule(name=name, learning_rate=1.0, total_steps=5, warmup=0.2)
    assert [schedule(applied) for applied in (4, 5, 100)] == [end] * 3


def test_the_phases_of_nvidia_end_their_warm_up_and_their_decay_where_published() -> None:
    # 0.2843 * 7038 = 2000.9: update 2000 still climbs, update 2001 is the first of the decay; 0.128 * 1563 = 200.06.
    one, two = of_phase(PHASES[1]), of_phase(PHASES[2])
    assert one(0) == pytest.approx(6e-3 / 2000.9034, rel=1e-9)
    assert one(1999) == pytest.approx(6e-3 * 2000 / 2000.9034, rel=1e-9)
    assert one(2000) == pytest.approx(6e-3 * math.sqrt(5037 / 7038), rel=1e-9)
    assert one(7036) == pytest.approx(6e-3 * math.sqrt(1 / 7038), rel=1e-9)
    assert one(7037) == 0.0
    assert two(199) == pytest.approx(4e-3 * 200 / 200.064, rel=1e-9)
    assert two(200) == pytest.approx(4e-3 * math.sqrt(1362 / 1563), rel=1e-9)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"name": "polly"}, "option-choice", "'poly'"),
        ({"learning_rate": -1.0}, "option-value", "--learning-rate -1.0"),
        ({"learning_rate": math.nan}, "option-value", "--learning-rate nan"),
        ({"total_steps": 0}, "option-value", "--steps 0"),
        ({"warmup": 1.0}, "option-value", "--warmup 1.0"),
        ({"warmup": -0.1}, "option-value", "--warmup -0.1"),
        ({"warmup": 200}, "option-value", "--warmup 200"),
    ],
    ids=str,
)
def test_settings_without_a_meaning_are_refused(options: dict[str, Any], code: Code, words: str) -> None:
    with refused(code, words):
        Schedule(**{"learning_rate": 1.0, "total_steps": 10, "warmup": 0.1, **options})
