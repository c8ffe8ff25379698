"""LayerNorm's kernels that write FP8, in Triton's interpreter: exactly what separate casts of their results give.

Run by tests/unit/bert/test_kernels_interpreted.py, in a process of its own.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from support.layouts import SHAPE
from support.refusals import refused
from torch import Tensor, nn

from bert.model.encoder import BertEncoder, recompute_activations
from bert.optim.precision import Precision
from bert.speed import apply, copy_weights, kernels
from bert.speed.copies import LOW, Linear, give_copies
from bert.speed.elementwise import product, residual_norm
from bert.speed.fp8 import (
    FORMATS,
    GRADIENT,
    INPUT,
    MARGIN,
    Cast,
    Fp8Copy,
    OutputGradient,
    Scales,
    cast_weights,
    scale_of,
    scales_of,
)
from bert.speed.kernels import gelu, norm, quantize
from common.train_spec import TrainSpec

SEED = 3


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have models on a CPU compute with kernels."""
    monkeypatch.setattr(kernels, "DEVICES", {"cpu"})


class Given:
    """Arguments of a norm [T, H], the gradients of its results, and the copy of the layer before it."""

    def __init__(self, rows: int, width: int, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        self.x, self.residual = (torch.randn(rows, width).to(dtype).requires_grad_() for _ in range(2))
        self.vectors = [torch.randn(width).requires_grad_() for _ in range(3)]
        self.grads = [torch.randn(rows, width).to(dtype) for _ in range(2)]
        self.copy = Fp8Copy(torch.zeros(16, 16))

    def run(
        self, probability: float, into: Cast | None, output: OutputGradient | None
    ) -> tuple[Tensor, Any, list[Tensor]]:
        """Return the result, the result in FP8, and the gradients of x, residual, weight, shift and bias."""
        torch.manual_seed(SEED)
        weight, shift, bias = self.vectors
        wide, narrow, low = norm.residual_norm(
            self.x, self.residual, weight, shift, 1e-3, probability, bias, into, output
        )
        grads = torch.autograd.grad([wide, narrow], [self.x, self.residual, *self.vectors], self.grads)
        return wide.detach(), low, list(grads)


def same(found: Tensor, expected: Tensor) -> bool:
    return found.dtype == expected.dtype and torch.equal(found.float().nan_to_num(7), expected.float().nan_to_num(7))


@pytest.mark.parametrize(("rows", "width", "dtype", "probability", "multiprocessors"), [
    (1, 16, LOW, 0.3, 132), (16, 48, torch.float32, 0.3, 132), *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in ((19, 80, LOW, 0.3, 132), (35, 80, LOW, 0.0, 1), (19, 272, LOW, 0.3, 1))
    ),
])  # fmt: skip
def test_norms_write_what_a_cast_of_their_results_gives(
    rows: int, width: int, dtype: torch.dtype, probability: float, multiprocessors: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(kernels, "processor", lambda device: kernels.Processor(9, multiprocessors))
    given = Given(rows, width, dtype)
    result, none, wanted = given.run(probability, None, None)
    assert none is None
    scales, layer = given.copy.scales, given.copy.layer
    records = torch.zeros(4)
    # Half of the largest magnitude, so that numbers saturate.
    scale = scale_of(result.abs().amax().float(), FORMATS[INPUT], 0.5)
    of_left = scales.cast(layer, GRADIENT, measure=lambda: wanted[0].abs().amax().float() / MARGIN / 2)
    expected = quantize.cast_both_ways(result, Cast(FORMATS[INPUT], scale, records[0]))
    of_x = quantize.cast_both_ways(wanted[0], of_left._replace(record=records[1]))

    output = OutputGradient(given.copy)
    again, low, found = given.run(probability, Cast(FORMATS[INPUT], scale, records[2]), output)
    left = output.take(found[0])
    assert torch.equal(again, result)
    assert same(low.rows, expected.rows) and same(low.columns, expected.columns) and low.scale is scale
    assert same(left.rows, of_x.rows) and same(left.columns, of_x.columns)
    assert left.rows.float().abs().max() == torch.finfo(FORMATS[GRADIENT]).max
    assert not low.rows[rows:].float().any() and not left.rows[rows:].float().any()
    assert records[2] == records[0] > 0 and of_left.record == records[1] > 0
    assert found[0].shape == given.x.shape and found[0].dtype == dtype and torch.equal(found[1], wanted[1])
    for one, other in zip(found[2:], wanted[2:], strict=True):  # sums in another order
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
    unrecorded = given.run(probability, Cast(FORMATS[INPUT], scale, None), None)[1]
    assert same(unrecorded.columns, low.columns) and records[3] == 0


def test_a_norm_in_fp8_is_near_float64() -> None:
    given = Given(37, 64, LOW)
    weight, shift, bias = (one.detach().double() for one in given.vectors)
    summed = given.x.double() + bias + given.residual.double()
    expected = F.layer_norm(summed, (64,), weight, shift, 1e-3).detach()
    scale = scale_of(expected.abs().amax().float(), FORMATS[INPUT], 2.0)
    low = given.run(0.0, Cast(FORMATS[INPUT], scale, None), None)[1]
    error = ((low.rows[:37].double() * scale - expected) / expected).abs()
    compared = expected.abs() > scale * 2**-5  # small ones have fewer bits
    assert compared.float().mean() > 0.8 and error[compared].max() <= 2**-4 + 2**-7


def test_an_overflow_reaches_the_record() -> None:
    given = Given(3, 32, LOW)
    with torch.no_grad():
        given.residual[1, 5] = float("inf")
    left = given.copy.scales.cast(given.copy.layer, GRADIENT, measure=lambda: torch.ones(()))
    record, output = torch.zeros(()), OutputGradient(given.copy)
    _, low, found = given.run(0.0, Cast(FORMATS[GRADIENT], torch.ones(()), record), output)
    assert record.isnan() and left.record.isnan()
    for both in (low, output.take(found[0])):
        assert both.rows[1].float().isnan().all() and both.rows[[0, 2]].float().isfinite().all()


right_words, right_bytes = quantize.words_of, quantize.load_bytes


@triton.jit
def wrong_words(first, second, third, fourth, form: tl.constexpr):
    """Take the first of four rows twice."""
    return right_words(first, first, third, fourth, form)


@triton.jit
def wrong_bytes(low, row, column, width: tl.constexpr):
    """Take other bytes than those stored."""
    return right_bytes(low, row, column, width) ^ 1


KERNELS = (
    "quantize_both_ways", "quantize_weights", "bias_gelu_fp8_forward", "bias_gelu_fp8_backward",
    "dropout_layer_norm_forward", "dropout_layer_norm_backward",
)  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_first_result_of_a_kernel_that_writes_wrong_columns_is_refused(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantize, "words_of", wrong_words)
    monkeypatch.setattr(quantize, "load_bytes", wrong_bytes)
    others = {(name, form) for name in KERNELS for form in FORMATS if name != kernel}
    monkeypatch.setattr(quantize, "_CHECKED", others)
    given, into = Given(16, 32, LOW), Cast(FORMATS[INPUT], torch.ones(()), torch.zeros(()))
    given.copy.scales.cast(given.copy.layer, GRADIENT, measure=lambda: torch.ones(()))
    values, bias = given.x.detach(), given.vectors[0].detach()

    def write() -> None:
        quantize.cast_both_ways(values, into)
        quantize.casts_together([(values, into)])()
        gelu.gelu(values, bias, into)
        gelu.gelu_backward_to_fp8(values, bias, values, into._replace(dtype=FORMATS[GRADIENT]))
        given.run(0.0, into, OutputGradient(given.copy))

    with refused("device-unsupported", kernel, "bf16"):
        write()
    write()  # each kernel is looked at once


def test_an_output_that_is_used_twice_is_refused() -> None:
    layer, plain, x = Linear(32, 32), nn.LayerNorm(32), torch.randn(5, 32).to(LOW).requires_grad_()
    give_copies([layer.weight], gradients=False, kind=Fp8Copy)
    for known in (False, True):
        with Precision("bf16", "cpu").autocast():
            given = product(layer, x)
            result = residual_norm(given, x, plain, 0.0).narrow.sum() + given.values.sum()
        if known:
            with pytest.raises(RuntimeError, match="more than once"):
                result.backward()
        else:  # without a scale the gradient is in 16 bits
            result.backward()


def _run(*, recomputed: bool = False) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the results and gradients of passes of an encoder, and its scales."""
    torch.manual_seed(0)
    made = BertEncoder(SHAPE.replace(hidden_dropout=0.3), pooler=False)
    apply(made, "fast")
    if recomputed:
        recompute_activations(made)
    copy_weights(made, TrainSpec(precision="fp8", strategy="single", grad_accum_steps=2))
    found = {}
    for number, updated in enumerate([False, False, True]):  # the first one has no scales
        torch.manual_seed(SEED + number)
        ids = torch.randint(1, 90, (1, 3))
        if updated:
            with torch.no_grad():
                for parameter in made.parameters():
                    parameter.add_(0)  # as an update does, a new version
            cast_weights([{"params": made.parameters()}])
        with Precision("bf16", "cpu").autocast():
            result = made(ids, torch.ones_like(ids)).hidden
            (result * torch.randn(result.shape)).sum().backward()
        found[f"{number} result"] = result.detach()
        found |= {f"{number} {name}": p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}
        if number == 1:
            with torch.inference_mode(), Precision("bf16", "cpu").autocast():
                found["evaluated"] = made.eval()(ids, torch.ones_like(ids)).hidden
            made.train()
    scales = scales_of(made.parameters())
    assert scales is not None
    return found, scales.state()


def test_dropout_follows_from_the_key_of_a_batch_alone() -> None:
    torch.manual_seed(0)
    made = BertEncoder(SHAPE.replace(hidden_dropout=0.3), pooler=False)
    apply(made, "fast")
    ids, grad = torch.randint(1, 90, (1, 3)), torch.randn(3, SHAPE.hidden_size)
    found = []
    for seed, key in enumerate([7, 7, 8]):
        torch.manual_seed(seed)
        made.zero_grad()
        made.recomputes = seed == 1
        state = torch.get_rng_state()
        hidden = made(ids, torch.ones_like(ids), key=torch.tensor([key])).tokens
        (hidden * grad).sum().backward()
        assert torch.equal(state, torch.get_rng_state())
        gradients = [p.grad.clone() for p in made.parameters() if p.grad is not None]
        found.append([hidden.detach(), *gradients])
    assert all(torch.equal(*pair) for pair in zip(*found[:2], strict=True)), "recomputed or not, whatever the generator"
    assert not torch.equal(found[0][0], found[2][0])


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_an_encoder_computes_what_it_does_with_separate_casts(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = list[str]()

    def launch(kernel: Any, *given: Any, **constants: Any) -> None:
        launched.append(kernel.fn.__name__)
        kernels.launch(kernel, *given, **constants)

    for module in (norm, quantize):
        monkeypatch.setattr(module, "launch", launch)
    cast = Scales.cast
    with monkeypatch.context() as patch:  # norms do not measure
        patch.setattr(Scales, "cast", lambda *given, measure=None: measure and cast(*given, measure=measure))
        expected, expected_scales = _run()
    casts = launched.count("quantize_both_ways")
    for recomputed in (False, True):
        launched.clear()
        found, own_scales = _run(recomputed=recomputed)
        # Gradients of two norms of two layers in two passes, and results but the last, which no layer reads, in three.
        assert recomputed or launched.count("quantize_both_ways") == casts - 2 * 2 * 2 - 3 * (2 * 2 - 1)
        assert all(torch.equal(own_scales[name], value) for name, value in expected_scales.items())
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            if "norm" in name or name.endswith("bias"):  # sums in another order
                torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-4)
            else:
                assert torch.equal(found[name], value), name
