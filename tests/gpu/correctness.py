"""Numbers of the device compared with references, in about 20 s: `python tests/gpu/correctness.py [options]`.

Prints JSON: per check the largest error relative to its limit (above 1 it fails), then the names of those that passed,
failed and were skipped, with the reason. Needs torch, and Triton for the checks of kernels; no test runner.

    --device cuda|cpu   on a CPU the checks of what only a GPU has are skipped (cuda)
    --seconds S         a check that S seconds are over for is skipped (50)

Exit code 1 when a check failed.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from support.layouts import (  # noqa: E402
    batch_of,
    loss_and_gradients,
    model,
    scaled,
)
from support.philox import factors, weight_factors  # noqa: E402
from support.plain_optimizers import PlainLamb  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from bert.data.batch import tiles_of, unpad  # noqa: E402
from bert.optim.lamb import Lamb  # noqa: E402
from bert.optim.precision import Precision  # noqa: E402
from bert.optim.registry import adamw  # noqa: E402
from bert.parallel.base import SingleStrategy  # noqa: E402
from bert.speed import STEPS, apply, copy_weights  # noqa: E402
from bert.speed.attention import FLASH, TRITON, attend, operator_for  # noqa: E402
from bert.speed.copies import LOW, copy_of, give_copies, linear  # noqa: E402
from bert.speed.fp8 import FORMATS, GRADIENT, INPUT, MARGIN, Cast, Fp8Copy, OutputGradient, Quantized, largest, scale_of  # noqa: E402  # noqa: E402
from bert.speed.kernels import usable  # noqa: E402
from common.errors import MissingToolError  # noqa: E402
from common.train_spec import TrainSpec  # noqa: E402

LENGTHS = [64, 1, 17, 33]
_WIDTH, _KEY = 1024, 0x299F31D0A4093822


class Skip(Exception):  # noqa: N818  # no error
    """Why a check does not apply to this device."""


class Error(NamedTuple):
    """One compared value."""

    what: str
    size: float
    """Relative error."""
    limit: float


Found = Iterator[Error]


def off(found: Tensor, expected: Tensor) -> float:
    """Return |found - expected| / |expected|, 2-norms in float64; infinite for what is no number."""
    given, exact = found.detach().double().cpu(), expected.detach().double().cpu()
    error = float((given - exact).norm() / exact.norm().clamp(min=1e-30))
    return error if error == error else float("inf")


def needs_cuda(device: torch.device) -> None:
    """Skip a check on a CPU."""
    if device.type != "cuda":
        raise Skip("needs a CUDA device")


def trained_once(step: str, device: torch.device, precision: str = "fp32") -> dict[str, Tensor]:
    """Return loss and gradients of the tiny model on `device`."""
    made = model(True)
    apply(made, step)
    made.to(device)
    copy_weights(made, TrainSpec(step=step, precision=precision, strategy="single"), "lamb")
    with Precision(precision, device.type).autocast():
        loss = made(batch_of(LENGTHS, 64).to(device)).loss
    return {name: value.cpu() for name, value in loss_and_gradients(made, loss).items()}


def reference() -> dict[str, Tensor]:
    """Return the same of the padded model in float32 on a CPU."""
    plain = model(False)
    return loss_and_gradients(plain, plain(batch_of(LENGTHS, 64)).loss)


def whole_model(step: str, precision: str, limit: float, device: torch.device) -> Found:
    """Loss and every gradient that matters, compared with a CPU in float32."""
    if precision == "fp8" and device.type == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        raise Skip("this GPU has no FP8")
    expected = reference()
    found = trained_once(step, device, precision)
    largest = max(float(value.norm()) for value in expected.values())
    yield Error("loss", off(found["loss"], expected["loss"]), min(limit, 0.05))
    for name, value in expected.items():
        if value.norm() > 1e-2 * largest:
            yield Error(name, off(found[name], value), limit)


def attention(dtype: torch.dtype, device: torch.device, operator: str | None = None) -> Found:
    """Attention without padding, values and gradients, compared with each sequence alone in float64."""
    if operator is not None:
        needs_cuda(device)
    if operator == TRITON and operator_for(device, dtype, 64) != TRITON:
        raise Skip("Triton's kernels cannot run here")
    lengths = [512, 1, 17, 300]
    where = unpad((torch.arange(512) < torch.tensor(lengths)[:, None]).long().to(device))
    assert where is not None
    torch.manual_seed(0)
    qkv = torch.randn(sum(lengths), 3, 16, 64).to(device).to(dtype).requires_grad_()
    exact = qkv.detach().double().requires_grad_()
    parts = []
    for part in exact.split(lengths):
        query, key, value = part.unbind(1)
        weights = torch.softmax(torch.einsum("qnd,knd->nqk", query, key) / 8, -1)
        parts.append(torch.einsum("nqk,knd->qnd", weights, value))
    expected, upstream = torch.cat(parts), torch.randn(sum(lengths), 16, 64).to(device)

    def attended(values: torch.Tensor, probability: float) -> torch.Tensor:
        with patch("bert.speed.attention.operator_for", lambda *given: operator or operator_for(*given)):
            return attend(values, where, probability)

    found = attended(qkv, 0.0)
    limit = 1e-4 if dtype == torch.float32 else 1e-2
    yield Error("values", off(found, expected), limit)
    gradient = torch.autograd.grad(found, qkv, upstream.to(dtype))[0]
    wanted = torch.autograd.grad(expected, exact, upstream.to(dtype).double())[0]
    for name, one, other in zip(("query", "key", "value"), gradient.unbind(1), wanted.unbind(1), strict=True):
        yield Error(f"gradient of {name}", off(one, other), 2 * limit)
    # With a given mask the result is linear in the values: their gradients show that backward drops what forward did.
    # Other weights of the same probability would be off by it.
    dropped = attended(qkv, 0.1)
    back = torch.autograd.grad(dropped, qkv, dropped.detach())[0][:, 2]
    with torch.no_grad():
        square = dropped.double().square().sum()
        yield Error("dropout, both ways", float(((back.double() * exact[:, 2]).sum() - square).abs() / square), 0.03)
    ones = torch.cat([qkv.detach()[:, :2], torch.ones_like(qkv[:, 2:])], 1)
    yield Error("dropout, mean", abs(float(attended(ones, 0.1)[:512].float().mean()) - 1), 0.01)


def attention_kernels(device: torch.device) -> Found:
    """Attention's kernels with dropout, compared with the formula in float64 and the random bits of the paper."""
    needs_kernels(device)
    from bert.speed.kernels import attention as module

    lengths, heads, probability, begin = [512, 1, 17, 300], 4, 0.1, 0
    torch.manual_seed(0)
    qkv = torch.randn(sum(lengths), 3, heads, 64).to(device).bfloat16().requires_grad_()
    bias = torch.zeros(3 * heads * 64, device=device, requires_grad=True)
    upstream = torch.randn(sum(lengths), heads, 64).to(device).bfloat16()
    drawn = module.random_key
    module.random_key = lambda like, _: torch.tensor([_KEY], device=like.device)  # type: ignore[assignment]
    try:
        made = module.attention(qkv, tiles_of(lengths).to(device), probability, bias)
    finally:
        module.random_key = drawn
    exact, parts = qkv.detach().double().requires_grad_(), []
    for part in exact.split(lengths):
        query, key, value = part.transpose(0, 2).unbind(1)
        weights = torch.softmax(query @ key.transpose(1, 2) / 8, -1)
        kept = [weight_factors(_KEY, begin, len(part), head, probability) for head in range(heads)]
        parts.append(((weights * torch.stack(kept).to(device)) @ value).transpose(0, 1))
        begin += len(part)
    expected = torch.cat(parts)
    yield Error("values", off(made, expected), 1e-2)
    found, of_bias = torch.autograd.grad(made, [qkv, bias], upstream)
    wanted = torch.autograd.grad(expected, exact, upstream.double())[0]
    for name, one, other in zip(("query", "key", "value"), found.unbind(1), wanted.unbind(1), strict=True):
        yield Error(f"gradient of {name}", off(one, other), 2e-2)
    yield Error("gradient of bias", off(of_bias, wanted.sum(0).flatten()), 2e-2)


def kernels(dtype: torch.dtype, device: torch.device) -> Found:
    """Fused kernels at the width of large, values and gradients, compared with their formulas in float64."""
    needs_kernels(device)
    from bert.speed.kernels import gelu, norm, vocabulary

    rows, probability, limit = 2999, 0.1, 1e-5 if dtype == torch.float32 else 1e-2
    torch.manual_seed(0)

    def numbers(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.randn(*shape, device=device).to(kind).requires_grad_()

    def compared(name: str, made: Tensor, exact: Tensor, given: list[Tensor], mine: list[Tensor]) -> Found:
        upstream = torch.randn_like(made)
        yield Error(name, off(made, exact), limit)
        found = torch.autograd.grad(made, given, upstream)
        wanted = torch.autograd.grad(exact, mine, upstream.double())
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            yield Error(f"{name}, gradient {number}", off(one, other), limit)

    kept = factors(_KEY, rows, _WIDTH, probability).to(device)
    given = [numbers(rows, _WIDTH), numbers(rows, _WIDTH), *(numbers(_WIDTH, kind=torch.float32) for _ in range(3))]
    mine = [one.detach().double().requires_grad_() for one in given]
    drawn = norm.random_key
    norm.random_key = lambda like, _: torch.tensor([_KEY], device=like.device)  # type: ignore[assignment]
    try:
        made, *_ = norm.residual_norm(given[0], given[1], given[2], given[3], 1e-12, probability, given[4])
    finally:
        norm.random_key = drawn
    exact = F.layer_norm((mine[0] + mine[4]) * kept + mine[1], (_WIDTH,), mine[2], mine[3], 1e-12)
    yield from compared("dropout, residual, norm", made, exact, given, mine)
    given, mine = [given[0], given[4]], [mine[0], mine[4]]
    yield from compared("bias and GELU", gelu.gelu(*given)[0], F.gelu(mine[0] + mine[1]), given, mine)
    logits, labels = numbers(500, 30528), torch.randint(0, 30528, (500,), device=device)
    own, double = logits * 1, logits.detach().double().requires_grad_()
    exact = F.cross_entropy(double, labels)
    yield from compared("cross-entropy", vocabulary.mean_cross_entropy(own, labels), exact, [own], [double])


def fp8_norm(device: torch.device) -> Found:
    """LayerNorm's kernels that write FP8, at the width of large, compared with separate casts."""
    needs_kernels(device)
    if device.type == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        raise Skip("this GPU has no FP8")
    from bert.speed.kernels import norm
    from bert.speed.kernels.quantize import cast_both_ways

    rows, formats, record = 2999, (FORMATS[INPUT], FORMATS[GRADIENT]), torch.zeros((), device=device)
    torch.manual_seed(0)
    x, residual, upstream = (torch.randn(rows, _WIDTH, device=device).to(LOW).requires_grad_() for _ in range(3))
    weight, shift, bias = (torch.randn(_WIDTH, device=device).requires_grad_() for _ in range(3))
    copy = Fp8Copy(torch.zeros(16, 16, device=device))

    def run(into: Cast | None, output: OutputGradient | None) -> tuple[Tensor, Quantized | None, list[Tensor]]:
        torch.manual_seed(1)
        made, _, low = norm.residual_norm(x, residual, weight, shift, 1e-12, 0.1, bias, into, output)
        return made.detach(), low, list(torch.autograd.grad(made, [x, residual, weight, shift, bias], upstream))

    plain, _, wanted = run(None, None)
    of_x = copy.scales.cast(copy.layer, GRADIENT, measure=lambda: largest(wanted[0]))
    assert of_x is not None
    output, scale = OutputGradient(copy), scale_of(largest(plain), formats[0], MARGIN)
    made, low, found = run(Cast(formats[0], scale, record), output)
    assert low is not None
    left = output.take(found[0])
    yield Error("result", off(made, plain), 1e-3)
    for number, (one, other) in enumerate(zip(found[1:], wanted[1:], strict=True)):
        yield Error(f"gradient {number}", off(one, other), 1e-3)
    casts = cast_both_ways(made, Cast(formats[0], scale, None)), cast_both_ways(wanted[0], of_x)
    yield Error("result in FP8", off(low.rows.float(), casts[0].rows.float()), 1e-9)
    yield Error("gradient in FP8", off(left.rows.float(), casts[1].rows.float()), 1e-2)
    yield Error("its magnitude", off(record, largest(made)), 1e-9)
    for name, both in (("result", low), ("gradient", left)):
        yield Error(f"transpose of the {name}", off(both.columns.float(), both.rows.float().t()), 1e-9)


def fp8_gelu(device: torch.device) -> Found:
    """GELU's kernels that write FP8, at the width of large, compared with casts of what those in float32 give."""
    needs_kernels(device)
    if device.type == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        raise Skip("this GPU has no FP8")
    from bert.speed.kernels import gelu
    from bert.speed.kernels.quantize import cast_both_ways

    torch.manual_seed(0)
    x, grad = (torch.randn(2999, 4 * _WIDTH, device=device).to(LOW) for _ in range(2))
    bias = torch.randn(4 * _WIDTH, device=device)
    wide = gelu.gelu(x.float(), bias)[0], *gelu.gelu_backward(x.float(), bias, grad.float())
    for number, (name, form) in enumerate((("result", FORMATS[INPUT]), ("gradient", FORMATS[GRADIENT]))):
        own, other = torch.zeros(2, device=device).unbind()
        into = Cast(form, scale_of(largest(wide[number]), form, MARGIN), own)
        low = gelu.gelu(x, bias, into)[1] if number == 0 else gelu.gelu_backward_to_fp8(x, bias, grad, into)[0]
        assert low is not None
        expected = cast_both_ways(wide[number], into._replace(record=other))
        # One step of the format where float32 is rounded otherwise.
        yield Error(f"{name} in FP8", off(low.rows.float(), expected.rows.float()), 1e-3)
        yield Error(f"magnitude of the {name}", off(own, other), 1e-6)
        yield Error(f"transpose of the {name}", off(low.columns.float(), low.rows.float().t()), 1e-9)


def fp8_layer(device: torch.device) -> Found:
    """A linear layer in FP8, values and gradients, compared with float32. E5M2 has 2 bits of mantissa."""
    if device.type == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        raise Skip("this GPU has no FP8")
    torch.manual_seed(0)
    weight = nn.Parameter((torch.randn(512, 256) * 0.1).to(device))
    bias = nn.Parameter(torch.randn(512).to(device))
    x, upstream = torch.randn(203, 256).to(device).requires_grad_(), torch.randn(203, 512).to(device)
    exact = [one.detach().double().cpu().requires_grad_() for one in (x, weight, bias)]
    expected = exact[0] @ exact[1].t() + exact[2]
    wanted = torch.autograd.grad(expected, exact, upstream.double().cpu())
    give_copies([weight], gradients=False, kind=Fp8Copy)
    with Precision("bf16", device.type).autocast():
        result = linear(x, weight, bias)
    found = torch.autograd.grad(result, [x, weight, bias], upstream.bfloat16())
    yield Error("values", off(result, expected), 0.04)
    for name, one, other in zip(("input", "weight", "bias"), found, wanted, strict=True):
        yield Error(f"gradient of {name}", off(one, other), 0.12)


def _updates(device: torch.device) -> tuple[list[nn.Parameter], list[Tensor], list[list[Tensor]]]:
    """Parameters on the device, float64 copies of them, and the gradients of five updates."""
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(shape, generator=generator) for shape in ((300, 64), (64,), (64, 64), (5, 1031))]
    gradients = [[torch.randn(value.shape, generator=generator) for value in values] for _ in range(5)]
    return [nn.Parameter(value.clone().to(device)) for value in values], [one.double() for one in values], gradients


def needs_kernels(device: torch.device) -> None:
    """Skip a check where no kernel of ours runs."""
    if not usable(torch.empty(1, device=device)):
        raise Skip("kernels need Triton and a GPU of compute capability 8.0")


def lamb(device: torch.device, fused: bool) -> Found:
    """LAMB with clipping, compared with its formulas parameter by parameter in float64."""
    if fused:
        needs_kernels(device)
    parameters, exact, updates = _updates(device)
    decays = [0.01, 0.0, 0.01, 0.01]
    groups = [{"params": [p], "weight_decay": decay} for p, decay in zip(parameters, decays, strict=True)]
    if fused:
        from bert.optim.fused import FusedLamb

        optimizer: Lamb = FusedLamb(groups, lr=0.01)
    else:
        optimizer = Lamb(groups, lr=0.01)
    plain = PlainLamb(exact, decays)
    for gradients in updates:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone().to(device)
        optimizer.step()
        plain.step([gradient.double() for gradient in gradients], 0.01)
    for number, (parameter, value) in enumerate(zip(parameters, plain.values, strict=True)):
        yield Error(f"parameter {number}", off(parameter, value), 1e-6)


def adamw_formulas(device: torch.device, fused: bool) -> Found:
    """AdamW, compared with algorithm 2 of Loshchilov and Hutter 2019 in float64."""
    if fused:
        needs_kernels(device)
    parameters, exact, updates = _updates(device)
    owner = nn.ParameterList(parameters)
    optimizer = adamw(owner, 0.01, fused=fused)
    moments = [(torch.zeros_like(value), torch.zeros_like(value)) for value in exact]
    for step, gradients in enumerate(updates, start=1):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clone().to(device)
        optimizer.step()
        for value, (first, second), gradient in zip(exact, moments, gradients, strict=True):
            first.mul_(0.9).add_(gradient.double(), alpha=0.1)
            second.mul_(0.999).add_(gradient.double() ** 2, alpha=0.001)
            value.mul_(1 - 0.01 * (0.01 if value.ndim > 1 else 0.0))
            value.sub_(0.01 * (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-6))
    for number, (parameter, value) in enumerate(zip(parameters, exact, strict=True)):
        yield Error(f"parameter {number}", off(parameter, value), 1e-6)


def fused_adamw(precision: str, device: torch.device) -> Found:
    """Fused AdamW with clipping, unscaling and bf16 copies, compared with PyTorch's; fp16 leaves a step out."""
    needs_kernels(device)
    strategy, results = SingleStrategy(), []
    strategy.device = device
    for fused in (True, False):
        made, scaling = model(True).to(device), scaled(precision, 1024.0, device_type=device.type)
        copy_weights(made, TrainSpec(precision=precision, strategy="ddp"))
        optimizer, generator = adamw(made, 1e-2, fused=fused), torch.Generator().manual_seed(1)
        for step in range(4):
            scale = float(scaling.scale(torch.ones(1, device=device)))
            for parameter in made.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator).to(device) * scale
            if precision == "fp16" and step == 2:
                next(made.parameters()).grad[0] = float("inf")
            strategy.clip(made, optimizer, 0.5, scaling)
            if strategy.step(optimizer, scaling) != (precision == "bf16" or step != 2):
                raise AssertionError(f"step {step} was left out, or was not")
        results.append([*made.parameters(), *(v for state in optimizer.state.values() for v in state.values())])
        copies = [(held.of(one), one) for one in made.parameters() if (held := copy_of(one)) is not None]
        for number, (copied, one) in enumerate(copies):
            yield Error(f"copy {number}", float(not torch.equal(copied, one.detach().to(LOW))), 0.5)
    # 1 - beta2 in float32 is off by 1.3e-5, and by as much PyTorch's fused kernel differs from ours on an H100.
    for number, (one, other) in enumerate(zip(*results, strict=True)):
        yield Error(f"value {number}", off(one, other), 3e-5)


Check = Callable[[torch.device], Found]


def _whole(step: str, precision: str, limit: float) -> tuple[str, Check]:
    return f"model {precision} {step}", lambda device: whole_model(step, precision, limit, device)


# In order of worth.
CHECKS: dict[str, Check] = {
    **{
        f"attention bf16 {name}": lambda device, name=name: attention(torch.bfloat16, device, name)
        for name in (TRITON, FLASH)
    },
    "attention kernels": attention_kernels,
    "attention bf16": lambda device: attention(torch.bfloat16, device),
    "attention fp16": lambda device: attention(torch.float16, device),
    "attention fp32": lambda device: attention(torch.float32, device),
    "kernels bf16": lambda device: kernels(torch.bfloat16, device),
    "kernels fp32": lambda device: kernels(torch.float32, device),
    "fp8 layer": fp8_layer,
    "fp8 norm": fp8_norm,
    "fp8 gelu": fp8_gelu,
    "lamb": lambda device: lamb(device, fused=False),
    "adamw": lambda device: adamw_formulas(device, fused=False),
    "fused lamb": lambda device: lamb(device, fused=True),
    "fused adamw": lambda device: adamw_formulas(device, fused=True),
    "fused adamw bf16": lambda device: fused_adamw("bf16", device),
    "fused adamw fp16": lambda device: fused_adamw("fp16", device),
    **dict(_whole(step, "fp32", 1e-3) for step in STEPS),
    **dict(_whole(step, "bf16", 0.15) for step in STEPS),
    **dict(_whole(step, "fp8", 0.2) for step in STEPS),
}


def outcome(check: Check, device: torch.device) -> dict[str, Any]:
    """Run a check: outcome (passed, failed, skipped), why, and the error that comes closest to its limit."""
    try:
        errors = list(check(device))
    except (Skip, MissingToolError) as reason:
        return {"outcome": "skipped", "why": str(reason)}
    except Exception as error:  # a check that raises is one that fails; the others still run
        return {"outcome": "failed", "why": f"{type(error).__name__}: {error}"[:500]}
    worst = max(errors, key=lambda one: one.size / one.limit)
    found = {"error": worst.size, "limit": worst.limit, "of": worst.what, "compared": len(errors)}
    if worst.size <= worst.limit:
        return {"outcome": "passed", "why": "", **found}
    return {"outcome": "failed", "why": f"{worst.what} is off by {worst.size:.2g}, more than {worst.limit:g}", **found}


def run(names: Sequence[str], device: torch.device, seconds: float) -> dict[str, Any]:
    """Run checks by name until the seconds are over; return the document that is printed."""
    until, rows = time.monotonic() + seconds, []
    for name in names:
        began = time.monotonic()
        late = {"outcome": "skipped", "why": f"{seconds:.0f} s were over"}
        try:
            found = outcome(CHECKS[name], device) if began < until else late
        except KeyboardInterrupt:
            found, until = {"outcome": "skipped", "why": "it was ended"}, began
        row = {"name": name, **found}
        row["seconds"] = round(time.monotonic() - began, 2)
        rows.append(row)
        sys.stderr.write(f"{name}: {row['outcome']} {row['why']}\n")
    ends = {end: [row["name"] for row in rows if row["outcome"] == end] for end in ("passed", "failed", "skipped")}
    return {"device": device.type, "checks": rows, **ends}


def main(argv: Sequence[str]) -> int:
    """Run all checks."""
    parser = argparse.ArgumentParser(description="Compare numbers of the device with references.")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=50.0)
    parser.add_argument("--json", action="store_true", help="the only output there is")
    given = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was found is still printed
    found = run(list(CHECKS), torch.device(given.device), given.seconds)
    sys.stdout.write(json.dumps(found) + "\n")
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
