"""The parts of a step in FP8: GEMMs, GELU, what norms write for linear layers, and casts."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from bench.floor.subject import Part, Subject, make_part
from bert.model.step import Pass
from bert.speed.copies import LOW, Linear, copy_of, give_copies
from bert.speed.fp8 import Fp8Copy, OutputGradient, forward_product, input_gradient, weight_gradient
from bert.speed.scales import FORMATS, GRADIENT, INPUT, MULTIPLE, WEIGHT, Scales


def products(subject: Subject, m: int, k: int, n: int) -> Sequence[Callable[[], Tensor]]:
    """Return forward product, input gradient and weight gradient of x [m, k] and a weight [n, k] in FP8.

    The operands are cast beforehand.
    """
    scales = Scales()
    layer = scales.add(subject.device)
    shapes = ((INPUT, m, k), (WEIGHT, n, k), (GRADIENT, m, n))
    x, weight, grad = (scales.quantize(subject.tensor(*shape), layer, role) for role, *shape in shapes)
    bias = None if subject.by_kernels else subject.tensor(n)  # kernels add it later
    return (
        lambda: forward_product(x, weight, bias),
        lambda: input_gradient(grad, weight.columns, weight.scale),
        lambda: weight_gradient(grad, x.columns, x.scale),
    )


def around_norm(subject: Subject, width: int) -> tuple[Linear, OutputGradient]:
    """Return a linear layer that reads a norm's result in FP8, and one gradient in FP8, both with known scales."""
    reader = Linear(width, width, device=subject.device)
    give_copies(reader.parameters(), gradients=False, kind=Fp8Copy)
    copy = copy_of(reader.weight)
    assert isinstance(copy, Fp8Copy)
    for role in (INPUT, GRADIENT):
        copy.scales.scale(copy.layer, role, lambda: torch.ones((), device=subject.device))
    return reader, OutputGradient(copy)


def gelu(subject: Subject, described: Pass) -> Part:
    """GELU by kernels that write FP8 and its transpose, of 2 bytes together, in place of a result of 16 bits."""
    from bert.speed.kernels.gelu import gelu_backward_to_fp8, gelu_to_fp8

    rows, scale, record = subject.extent.tokens, *torch.ones(2, device=subject.device)
    x, grad = (subject.tensor(-(-rows // MULTIPLE) * MULTIPLE, described.width) for _ in range(2))
    bias = subject.tensor(described.width, dtype=torch.float32)

    def run() -> None:
        gelu_to_fp8(x, bias, rows, FORMATS[INPUT], scale, record)
        gelu_backward_to_fp8(x, bias, grad, rows, FORMATS[GRADIENT], scale, record)

    traffic = float(described.traffic(rows, subject.dtype.itemsize))
    shape = f"{rows} x {described.width}, in FP8"
    return make_part(run, described.name, "elementwise", shape, described.times, bytes=traffic)


def casts(subject: Subject) -> Iterator[Part]:
    """Yield the casts of a layer's inputs, gradients and weights to FP8, with their transposes and magnitudes.

    Kernels of norms and GELU write all inputs but that of the attention output, and all gradients but that of queries,
    keys and values.
    """
    gemms, depth = [gemm for gemm in subject.step.layers if subject.in_fp8(gemm)], subject.step.config.num_layers
    if not gemms:
        return
    rows, scales = subject.extent.tokens, Scales()
    moving, still = list[tuple[Tensor, int, int]](), list[tuple[Tensor, int, int]]()
    layers = [scales.add(subject.device) for _ in gemms]
    for layer, gemm in zip(layers, gemms, strict=True):
        if not subject.kernels_write_fp8 or gemm == gemms[1]:
            moving.append((subject.tensor(rows, gemm.inner), layer, INPUT))
        if not subject.kernels_write_fp8 or gemm == gemms[0]:
            moving.append((subject.tensor(rows, gemm.columns), layer, GRADIENT))
        still.append((subject.tensor(gemm.columns, gemm.inner, dtype=LOW), layer, WEIGHT))

    def cast(given: Sequence[tuple[Tensor, int, int]]) -> None:
        for values, layer, role in given:
            scales.quantize(values, layer, role)

    cast([*moving, *still])
    scales.renew()  # now they are known, as in every step but the first
    for name, given in (("activations and gradients", moving), ("weights", still)):
        shape = f"{sum(values.numel() for values, _, _ in given):,} numbers of a layer"
        yield make_part(partial(cast, given), f"FP8 casts of {name}", "copies", shape, depth)
