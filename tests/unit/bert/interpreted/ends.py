"""Kernels before and after the layers, and casts to FP8, in Triton's interpreter against float64.

Run by tests/unit/bert/test_kernels_interpreted.py, in a process of its own.
"""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from support.layouts import assert_same, batch_of, loss_and_gradients, model
from support.philox import factors, key_of
from torch import Tensor, nn

from bert.model.encoder import recompute_activations
from bert.optim.precision import Precision
from bert.speed import apply, fp8, kernels
from bert.speed.copies import LOW, Linear, give_copies
from bert.speed.elementwise import gelu as gelu_of
from bert.speed.elementwise import product
from bert.speed.fp8 import Cast, Fp8Copy, Scales, scale_of
from bert.speed.kernels import gelu, quantize, vocabulary

SEED = 3
FORMATS = [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("probability", [0.0, 0.3])
@pytest.mark.parametrize("segments", [True, False])
@pytest.mark.parametrize("multiprocessors", [132, 1])
def test_embeddings(
    dtype: torch.dtype, probability: float, segments: bool, multiprocessors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "processor", lambda device: kernels.Processor(9, multiprocessors))
    torch.manual_seed(0)
    width, shape = 24, (3, 5)
    tables = [torch.randn(count, width, requires_grad=True) for count in (11, 7, 2)]
    norm = nn.LayerNorm(width)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    which = [torch.randint(0, len(table), shape) for table in tables]
    which[0][0, :2] = 0  # the padding
    used = tables if segments else tables[:2]
    tokens = which[0], which[1], which[2] if segments else None
    torch.manual_seed(SEED)
    found = vocabulary.embed((*used, None)[:3], tokens, norm, probability, dtype, 0)
    kept = factors(key_of(SEED), 15, width, probability).view(*shape, width)
    mine = [tensor.detach().double().requires_grad_() for tensor in (*used, norm.weight, norm.bias)]
    summed = sum(
        F.embedding(ids, table, 0 if number == 0 else None)
        for number, (ids, table) in enumerate(zip(which, mine[: len(used)], strict=False))
    )
    expected = F.layer_norm(summed, (width,), mine[-2], mine[-1]) * kept
    tolerance = 1e-5 if dtype == torch.float32 else 2**-6
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    grad = torch.randn(*shape, width).to(dtype)
    gradients = torch.autograd.grad(found, [*used, norm.weight, norm.bias], grad)
    for one, other in zip(gradients, torch.autograd.grad(expected, mine, grad.double()), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_gradients_of_words_in_bf16_are_added_to_those_of_the_predictions() -> None:
    torch.manual_seed(0)
    words = nn.Parameter(torch.randn(11, 8))
    positions, norm, ids = torch.randn(4, 8, requires_grad=True), nn.LayerNorm(8), torch.tensor([[1, 2, 2, 0]])
    tokens = ids, torch.arange(4)[None], None
    result = vocabulary.embed((words, positions, None), tokens, norm, 0.0, torch.float32, 0)
    (expected,) = torch.autograd.grad(result.square().sum() + result.sum() * 3, words)
    give_copies([words], gradients=True)
    words.grad = torch.ones_like(words, dtype=LOW)
    again = vocabulary.embed((words, positions, None), tokens, norm, 0.0, torch.float32, 0)
    (again.square().sum() + again.sum() * 3).backward()
    torch.testing.assert_close(words.grad, (expected + 1).to(LOW))
    assert positions.grad is not None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (4, 30), (3, 5000), (0, 30)], ids=str)
def test_cross_entropy(shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    leaf = (torch.randn(*shape) * 5).to(dtype).requires_grad_()
    labels = torch.randint(0, shape[1], shape[:1])
    logits = leaf * 1
    found = vocabulary.mean_cross_entropy(logits, labels)
    mine = leaf.detach().double().requires_grad_()
    expected = F.cross_entropy(mine, labels, reduction="sum") / max(len(labels), 1)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad(found, logits, torch.tensor(3.0), retain_graph=True)
    (wanted,) = torch.autograd.grad(expected, mine, torch.tensor(3.0).double())
    step = 1e-5 if dtype == torch.float32 else 2**-7
    torch.testing.assert_close(gradient.double(), wanted, rtol=step, atol=1e-7)
    assert gradient.data_ptr() == logits.data_ptr()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(found, logits)


def test_large_logits_lose_nothing_and_a_label_that_is_no_class_is_seen() -> None:
    logits = torch.tensor([[1e4, 1e4, -1e4], [-3e38, 0.0, 3e38]])
    torch.testing.assert_close(
        vocabulary.mean_cross_entropy(logits, torch.tensor([0, 2])), F.cross_entropy(logits, torch.tensor([0, 2]))
    )
    for label in (3, -1, -100):
        assert vocabulary.mean_cross_entropy(logits, torch.tensor([0, label])).isnan()


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("shape", [(1, 16), (48, 32), (70, 80)], ids=str)
def test_a_cast_is_pytorchs_both_ways(shape: tuple[int, int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, recorded = (torch.randn(*shape) * 100).to(LOW), torch.zeros(3)
    into = Cast(
        dtype, scale_of(x.abs().amax().float(), dtype, 0.5), recorded[1]
    )  # above half of the largest: saturated
    expected = fp8.quantize(x, dtype, into.scale).float()
    low, transposed, _ = quantize.cast_both_ways(x, into)
    rows = shape[0]
    assert len(low) % 16 == 0 and len(low) < rows + 16
    assert torch.equal(low[:rows].float(), expected) and (expected.abs() == torch.finfo(dtype).max).any()
    assert not low[rows:].float().any()
    assert torch.equal(transposed.float(), low.float().t()) and transposed.is_contiguous()
    assert recorded.tolist() == [0, float(x.abs().max()), 0]
    again = quantize.cast_both_ways(x / 2, into)
    assert recorded[1] == x.abs().max() and not torch.equal(again.rows.float(), low.float())
    unrecorded = quantize.cast_both_ways(x, into._replace(record=None))
    assert torch.equal(unrecorded.rows.float(), low.float())


def test_weights_are_cast_together_as_alone_and_into_the_same_memory() -> None:
    torch.manual_seed(0)
    weights, form = [torch.randn(*shape).to(LOW) for shape in ((48, 32), (16, 160), (144, 80))], FORMATS[0]
    casts = [Cast(form, scale_of(one.abs().amax().float(), form, 0.5), torch.zeros(())) for one in weights]
    together, places = quantize.casts_together([*zip(weights, casts, strict=True)]), set()
    for factor in (1, -3):
        for weight, into, low in zip([w.mul_(factor) for w in weights], casts, together(), strict=True):
            alone = quantize.cast_both_ways(weight, into._replace(record=torch.zeros(())))
            assert low.scale is into.scale and into.record == weight.abs().max()
            assert torch.equal(low.rows.float(), alone.rows.float())
            assert torch.equal(low.columns.float(), alone.columns.float())
            places |= {low.rows.data_ptr(), low.columns.data_ptr()}
    assert len(places) == 2 * len(weights)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_what_is_not_finite_is_no_number_and_zeros_stay_zeros(dtype: torch.dtype) -> None:
    x, into = torch.zeros(1, 16).to(LOW), Cast(dtype, torch.ones(()), torch.zeros(()))
    assert not quantize.cast_both_ways(x, into).rows.float().any() and into.record == 0
    x[0, :4] = torch.tensor([float("nan"), float("inf"), float("-inf"), 1e30])
    low = quantize.cast_both_ways(x, into).rows.float()
    assert low[0, :3].isnan().all() and low[0, 3] == torch.finfo(dtype).max
    assert into.record is not None and not into.record.isfinite()


def _steps_apart(found: Tensor, expected: Tensor) -> tuple[float, float]:
    """Return the largest difference relative to a number, and how many differ at all."""
    off = (found.float() - expected.float()).abs() / expected.float().abs().clamp(min=2**-6)
    return float(off.max()), float((off > 0).float().mean())


@pytest.mark.parametrize("with_record", [True, False])
@pytest.mark.parametrize("rows", [1, 32, 69])
def test_gelu_in_fp8(rows: int, with_record: bool) -> None:
    torch.manual_seed(0)
    width = 80
    x, bias, grad = torch.randn(rows, width).to(LOW), torch.randn(width), torch.randn(rows, width).to(LOW)
    mine = (x.double() + bias.double()).requires_grad_()
    activated = F.gelu(mine)
    (of_x,) = torch.autograd.grad(activated, mine, grad.double())
    recorded = torch.zeros(2)
    for number, (dtype, expected) in enumerate(zip(FORMATS, (activated.detach(), of_x), strict=True)):
        into = Cast(dtype, scale_of(expected.abs().amax().float(), dtype, 0.5), recorded[number])
        if number == 0:
            values, low = gelu.gelu(x, bias, into if with_record else into._replace(record=None))
            assert low is not None and values.shape == x.shape and values.dtype == x.dtype
        else:
            low, of_bias = gelu.gelu_backward_to_fp8(x, bias, grad, into)
            torch.testing.assert_close(of_bias.double(), of_x.sum(0), rtol=1e-4, atol=1e-4)
        most, share = _steps_apart(low.rows[:rows], fp8.quantize(expected.float(), dtype, into.scale))
        assert most <= (1 / 8 if number == 0 else 1 / 4) and share < 0.01  # one step, where float32 rounds otherwise
        assert low.rows.shape == (-(-rows // 16) * 16, width) and not low.rows[rows:].float().any()
        assert torch.equal(low.columns.float(), low.rows.float().t()) and low.columns.is_contiguous()
        if with_record or number:
            assert float(recorded[number]) == pytest.approx(float(expected.abs().max()), rel=1e-6)
        else:
            assert recorded[0] == 0


@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize("shape", [(5,), (3, 16)], ids=str)
def test_layers_around_gelu_in_fp8_are_near_float32(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    first, second = layers = [Linear(32, 64), Linear(64, 32)]
    inputs = torch.randn(*shape, 32).to(LOW).requires_grad_(), *(p for layer in layers for p in layer.parameters())
    upstream, own = torch.randn(*shape, 32).to(LOW), Scales()
    inner = F.gelu(first(inputs[0].float()))
    expected = second(inner)
    wanted = torch.autograd.grad(expected, inputs, upstream.float())
    for layer in layers:
        give_copies([layer.weight], gradients=False, kind=partial(Fp8Copy, scales=own))
    for _ in range(2):  # with the scales of their own magnitudes, and with known ones
        with Precision("bf16", "cpu").autocast():
            values, bias, _ = product(second, *gelu_of(product(first, inputs[0]), second))
        found = torch.autograd.grad(values + bias, inputs, upstream)
        own.renew()
        for mine, true in zip([values + bias, *found], [expected, *wanted], strict=True):
            assert mine.shape == true.shape
            assert (mine.float() - true.float()).norm() < 0.15 * true.float().norm()
    history = own.state()["history"][0]
    assert float(history[1, fp8.INPUT]) == pytest.approx(float(inner.detach().abs().max()), rel=0.05)
    assert (history > 0).all()


def _trained(probability: float, recomputed: bool = False) -> dict[str, Tensor]:
    made = model(True, hidden_dropout=probability)
    apply(made, "fast")
    if recomputed:
        recompute_activations(made)
    torch.manual_seed(SEED)
    return loss_and_gradients(made, made(batch_of([5, 3, 1], 6)).loss)


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have models on a CPU compute with kernels."""
    monkeypatch.setattr(kernels, "DEVICES", {"cpu"})


@pytest.mark.usefixtures("one_thread")
def test_a_model_is_the_one_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = _trained(0.0)
    calls = []
    monkeypatch.setattr(kernels, "DEVICES", {"cpu"})
    monkeypatch.setattr(vocabulary, "launch", lambda *a, **k: (calls.append(a[0]), kernels.launch(*a, **k)))
    found = _trained(0.0)
    names = [call.fn.__name__ for call in calls]
    assert names[1:3] == ["cross_entropy_forward", "cross_entropy_backward"] and len(names) == 4
    assert_same(found, expected, 1e-4)


@pytest.mark.slow
@pytest.mark.usefixtures("on_a_cpu", "one_thread")
def test_recomputed_layers_draw_the_same_masks() -> None:
    found = [_trained(0.3, recomputed) for recomputed in (False, True)]
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
