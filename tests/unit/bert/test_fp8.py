"""Products in FP8 are as near to float32 as the format allows, for any number of rows, and a model trains on them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support import training_runs
from support.layouts import assert_same, batch_of, loss_and_gradients, model
from support.training_runs import Recorder, run, settings
from torch import Tensor, nn

from bench.run.peak import peak_dtype
from bert.model.encoder import recompute_activations
from bert.optim.precision import Precision
from bert.optim.registry import adamw
from bert.parallel.base import SingleStrategy
from bert.speed import apply, copy_weights, fp8
from bert.speed.copies import copy_of, give_copies, linear
from bert.speed.fp8 import MARGIN, Fp8Copy, quantize, scale_of, scales_of
from common.train_spec import TrainSpec

LENGTHS = [16, 3, 9, 1]


def _off(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().float() - expected.detach()).norm() / expected.detach().norm())


def _model(precision: str = "fp8", accumulation: int = 1, recomputed: bool = False) -> Any:
    made = model(True)
    apply(made, "fast")
    if recomputed:
        recompute_activations(made)
    copy_weights(made, TrainSpec(precision=precision, strategy="single", grad_accum_steps=accumulation))
    return made


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
    for value in (1.0, 2.0):
        with torch.no_grad():
            weight.fill_(value)
        with torch.no_grad(), Precision("bf16", "cpu").autocast():
            assert torch.equal(linear(x, weight, bias).float(), torch.full((16, 16), value))


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_cast_weight_is_that_of_the_last_update_with_the_scale_of_the_one_before(accumulation: int) -> None:
    made = _model("fp8", accumulation)
    optimizer, strategy, precision = adamw(made, 1e-1), SingleStrategy(), Precision("bf16", "cpu")
    weight = made.encoder.layers[0].intermediate.weight
    casts, largest = [], []
    for _ in range(3):
        largest.append(weight.detach().bfloat16().abs().amax().float())
        with precision.autocast():
            loss = made(batch_of(LENGTHS, 20)).loss
        copy = copy_of(weight)
        assert isinstance(copy, Fp8Copy)
        low, transposed, scale = copy.cast(weight)
        expected_scale = scale_of(max(largest[:-1], default=largest[0]), torch.float8_e4m3fn, MARGIN)
        expected = quantize(weight.detach().bfloat16(), torch.float8_e4m3fn, expected_scale)
        assert torch.equal(scale, expected_scale)
        assert torch.equal(low.float(), expected.float()) and torch.equal(transposed.float(), expected.float().t())
        casts.append(low.float() * scale)
        strategy.backward(loss, precision)
        strategy.step(optimizer, precision)
    assert not torch.equal(casts[0], casts[1]) and not torch.equal(casts[1], casts[2])


@pytest.mark.parametrize(("precision", "step", "strategy", "dtype"), [
    ("fp8", "plain", "single", torch.float8_e4m3fn), ("fp8", "fast", "ddp", torch.float8_e4m3fn),
    ("bf16", "fast", "single", torch.bfloat16), ("bf16", "plain", "single", torch.bfloat16),
])  # fmt: skip
def test_products_are_in_fp8_where_a_weight_has_such_a_copy(
    precision: str, step: str, strategy: str, dtype: torch.dtype
) -> None:
    made = model(True)
    copy_weights(made, TrainSpec(precision=precision, strategy=strategy, step=step))
    assert peak_dtype(made, Precision(precision, "cpu").matmul_dtype, torch.device("cuda"))[0] == dtype


def test_a_model_learns_a_batch_as_in_bf16() -> None:
    losses = {}
    for text in ("bf16", "fp8"):
        made = _model(text)
        kinds = {type(copy_of(parameter)) for parameter in made.encoder.layers.parameters() if parameter.ndim == 2}
        assert kinds == {Fp8Copy} if text == "fp8" else Fp8Copy not in kinds
        optimizer, strategy, precision = adamw(made, 1e-2), SingleStrategy(), Precision("bf16", "cpu")
        batch = batch_of(LENGTHS, 20)
        for _ in range(12):
            with precision.autocast():
                loss = made(batch).loss
            strategy.backward(loss, precision)
            strategy.step(optimizer, precision)
            losses.setdefault(text, []).append(loss.item())
    low, narrow = losses.values()
    assert narrow[-1] < 0.7 * narrow[0]
    assert max(abs(a - b) / a for a, b in zip(low, narrow, strict=True)) < 0.1


def _trained(updates: int, *, accumulation: int = 1, recomputed: bool = False, evaluated: bool = False) -> Any:
    """Train a model, and return loss and gradients of one more step."""
    made = _model("fp8", accumulation, recomputed)
    optimizer, strategy, precision = adamw(made, 1e-3), SingleStrategy(), Precision("bf16", "cpu")
    for update in range(updates):
        for micro_step in range(accumulation):
            with precision.autocast():
                loss = made(batch_of(LENGTHS, 20, seed=10 * update + micro_step)).loss / accumulation
            strategy.backward(loss, precision)
        strategy.step(optimizer, precision)
        if evaluated:
            with torch.inference_mode(), precision.autocast():
                made.eval()(batch_of([64, 64], 64, seed=update))
            made.train()
    with precision.autocast():
        loss = made(batch_of(LENGTHS, 20, seed=99)).loss
    return loss_and_gradients(made, loss), made


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("updates", [0, 2])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_step_is_near_that_in_float32(updates: int, accumulation: int) -> None:
    found, made = _trained(updates, accumulation=accumulation)
    plain = model(True)
    plain.load_state_dict(made.state_dict())
    expected = loss_and_gradients(plain, plain(batch_of(LENGTHS, 20, seed=99)).loss)
    assert _off(found["loss"], expected["loss"]) < 0.02
    pairs = [(found[name].float().flatten(), value.flatten()) for name, value in expected.items()]
    # E5M2 rounds each number to within 1/8, E4M3 to within 1/16, at random; here through two layers.
    assert _off(torch.cat([one for one, _ in pairs]), torch.cat([other for _, other in pairs])) < 0.15


@pytest.mark.parametrize("fast", [False, True])
def test_sums_of_gradients_are_fast_where_they_are_asked_to_be(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, multiply = list[bool](), fp8.scaled_product

    def noted(*given: Any, fast: bool, **more: Any) -> Tensor:
        seen.append(fast)
        return multiply(*given, fast=fast, **more)

    monkeypatch.setattr(fp8, "scaled_product", noted)
    made = model(True)
    copy_weights(made, TrainSpec(precision="fp8", strategy="single"), fp8_fast_gradients=fast)
    with Precision("fp8", "cpu").autocast():
        loss = made(batch_of(LENGTHS, 20)).loss
    forward = len(seen)
    loss.backward()
    assert seen == [True] * forward + [fast] * 2 * forward and forward > 0


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("updates", "how"), [(0, "recomputed"), (2, "recomputed"), (3, "evaluated")])
def test_recomputed_layers_and_evaluation_between_steps_change_nothing(updates: int, how: str) -> None:
    expected, made = _trained(updates)
    found, other = _trained(updates, **{how: True})
    assert_same(found, expected, 0.0)
    states = [scales.state() for each in (made, other) if (scales := scales_of(each.parameters())) is not None]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("accumulation", "eval_every", "optimizer"), [pytest.param(1, 3, "adamw", marks=pytest.mark.slow), (2, 5, "lamb")]
)
def test_a_stopped_run_goes_on_with_identical_losses(
    tmp_path: Path, accumulation: int, eval_every: int, optimizer: str
) -> None:
    data = training_runs.shards(tmp_path / "data")
    wanted = settings(
        data, precision="fp8", optimizer=optimizer, grad_accum_steps=accumulation,
        eval_every=eval_every, eval_samples=4, micro_batch_size=2, steps=5,
    )  # fmt: skip
    whole, begun, ended = Recorder(), Recorder(stop_after=3), Recorder()
    assert run(wanted, tmp_path / "whole", whole).finished
    stopped = run(wanted, tmp_path / "parts", begun)
    assert (stopped.checkpoint / "fp8-0.safetensors").is_file()
    assert run(wanted, tmp_path / "parts", ended).finished
    assert list(ended.losses) == [3, 4]
    assert {**begun.losses, **ended.losses} == whole.losses
    assert all(event.fp8_saturated >= 0 for event in whole.progress)


def test_a_checkpoint_without_scales_measures_them_anew(tmp_path: Path) -> None:
    data = training_runs.shards(tmp_path / "data")
    plain = settings(data, precision="bf16", steps=4, save_every=4)
    begun = Recorder()
    saved = run(plain, tmp_path / "run", begun).checkpoint
    assert {event.fp8_saturated for event in begun.progress} == {None}
    assert not (saved / "fp8-0.safetensors").exists()
    resumed = Recorder()
    wanted = settings(data, precision="fp8", steps=6, save_every=1)
    assert run(wanted, tmp_path / "run", resumed).finished
    assert list(resumed.losses) == [4, 5] and (tmp_path / "run/step-0000006/fp8-0.safetensors").is_file()
