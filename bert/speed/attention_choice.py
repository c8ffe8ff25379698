"""Choice of the operator for attention without padding on a GPU: a short measurement before the first step.

Every operator of bert.model.varlen that can be used computes attention forward and backward for one batch of the run.
One whose results are wrong, or that fails, is left out. The fastest is used for all layers on all ranks. Nothing is
measured on a CPU, where there is one way only.

Shapes: B sequences, T tokens of all sequences, N heads, D width of a head.
"""

import itertools
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bert.model.packing import Bounds
from bert.model.varlen import OPERATORS, Kind, Operator

Timer = Callable[[Callable[[], None]], float]
"""Runs the work and returns the milliseconds that the device took."""

_WARMUPS, _ROUNDS = 2, 7
# Batches are of one class if their tokens and their longest sequence are equal after rounding up to these.
_TOKENS, _LONGEST = 1024, 64
# Another operator than the default one must be so much faster: less is within the noise of a few calls.
_MARGIN = 0.02
# Relative errors of an operator that computes correctly: rounding to 8 bits is 0.004.
_WORST_ERROR = 0.03
_LONGEST_REASON = 200


@dataclass(frozen=True)
class ShapeClass:
    """What the time of attention depends on."""

    tokens: int
    """T, rounded up."""
    sequences: int
    longest: int
    """S, tokens that no sequence has more of, rounded up."""
    heads: int
    width: int
    """D."""
    dropout: float
    dtype: str

    @classmethod
    def of(
        cls, lengths: Sequence[int], columns: int, heads: int, width: int, dropout: float, dtype: torch.dtype
    ) -> "ShapeClass":
        """Return the class of a batch of sequences of these lengths in rows of so many columns."""
        return cls(
            tokens=-(-sum(lengths) // _TOKENS) * _TOKENS,
            sequences=len(lengths),
            longest=-(-columns // _LONGEST) * _LONGEST,
            heads=heads,
            width=width,
            dropout=dropout,
            dtype=str(dtype).removeprefix("torch."),
        )


@dataclass(frozen=True)
class Choice:
    """The operator that attention uses, and why."""

    operator: str | None
    """Name in bert.model.varlen.OPERATORS; None if none can be used."""
    shape: ShapeClass
    times_ms: Mapping[str, float] = field(default_factory=dict)
    """Time of one layer's attention, forward and backward, by operator: the median."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Why other operators were not measured, by name."""


_chosen: dict[tuple[ShapeClass, Kind], Choice] = {}


def choose(
    lengths: Sequence[int],
    heads: int,
    dropout: float,
    kind: Kind,
    *,
    columns: int | None = None,
    timer: Timer | None = None,
    operators: Mapping[str, Operator] = OPERATORS,
) -> Choice:
    """Return the fastest operator for a batch; once measured, it is known for all batches of its class.

    Args:
        lengths: tokens of each sequence, as far as there are any.
        heads: N.
        dropout: probability of the attention weights.
        kind: device, type and width of the heads.
        columns: S, columns of the padded batch; None for the longest of the lengths.
        timer: of the device; None for CUDA events.
        operators: the candidates.
    """
    columns = columns or max(lengths)
    shape = ShapeClass.of(lengths, columns, heads, kind.width, dropout, kind.dtype)
    key = shape, kind
    if key not in _chosen:
        _chosen[key] = _measured(lengths, columns, shape, kind, timer or _cuda_milliseconds, operators)
    return _chosen[key]


def _measured(
    lengths: Sequence[int], columns: int, shape: ShapeClass, kind: Kind, timer: Timer, operators: Mapping[str, Operator]
) -> Choice:
    left_out = {name: why for name in operators if (why := operators[name].missing(kind)) is not None}
    candidates = [name for name in operators if name not in left_out]
    work = _Work(lengths, columns, shape, kind)
    times: dict[str, list[float]] = {}
    for name in candidates:
        try:
            problem = work.problem(operators[name])
            for _ in range(_WARMUPS):
                work.run(operators[name])
        except Exception as error:  # whatever a library or a compiler refuses, another operator may do
            problem = f"failed: {_first_sentence(str(error)) or type(error).__name__}"
        if problem is None:
            times[name] = []
        else:
            left_out[name] = problem
    for _ in range(_ROUNDS):
        for name, found in times.items():
            found.append(timer(lambda name=name: work.run(operators[name])))  # type: ignore[misc]
    medians = {name: statistics.median(found) for name, found in times.items()}
    return Choice(_fastest(medians), shape, medians, left_out)


def _first_sentence(message: str) -> str:
    """The first sentence of a message, at most _LONGEST_REASON characters: PyTorch's dispatcher adds pages to it."""
    line = message.strip().partition("\n")[0]
    return re.split(r"(?<=[.!?])\s", line, maxsplit=1)[0][:_LONGEST_REASON]


def _fastest(times: Mapping[str, float]) -> str | None:
    """The fastest operator; the first one if no other is clearly faster."""
    if not times:
        return None
    first, best = next(iter(times)), min(times, key=lambda name: times[name])
    return best if times[best] < (1 - _MARGIN) * times[first] else first


class _Work:
    """Attention of one layer on random values, forward and backward."""

    def __init__(self, lengths: Sequence[int], columns: int, shape: ShapeClass, kind: Kind) -> None:
        self.lengths, self.dropout = lengths, shape.dropout
        generator = torch.Generator().manual_seed(0)
        size = (sum(lengths), 3, shape.heads, shape.width)
        self.qkv = torch.randn(size, generator=generator).to(kind.device, kind.dtype).requires_grad_()
        self.given = torch.randn(size[0], *size[2:], generator=generator).to(kind.device, kind.dtype)
        ends = torch.tensor((0, *itertools.accumulate(lengths)), dtype=torch.int32, device=kind.device)
        self.bounds = Bounds(ends, columns)

    def run(self, operator: Operator) -> None:
        """Compute the context and the gradients once."""
        context = operator.run(self.qkv, self.bounds, self.dropout, None, True)
        torch.autograd.grad(context, self.qkv, self.given)

    def problem(self, operator: Operator) -> str | None:
        """Return what is wrong with the results of an operator, None if nothing is.

        Without dropout, context and gradients of some sequences are compared with the formula in float64. With dropout
        the context is linear in the values, so <context, context> = <values, gradient of the values for context>: it
        holds only if the backward pass drops the weights that the forward pass dropped.
        """
        context = operator.run(self.qkv, self.bounds, 0.0, None, True)
        (grad,) = torch.autograd.grad(context, self.qkv, self.given)
        tensors = (self.qkv.detach(), self.given, context.detach(), grad)
        parts = sorted(
            zip(*(one.split(list(self.lengths)) for one in tensors), strict=True), key=lambda part: len(part[0])
        )
        for qkv, given, found, found_grad in (parts[0], parts[len(parts) // 2], parts[-1]):
            expected, expected_grad = _formula(qkv, given)
            for error in (_error(found, expected), _error(found_grad, expected_grad)):
                if not error < _WORST_ERROR:  # nor if it is not a number
                    return f"wrong results: relative error {error:.2g}"
        if not self.dropout:
            return None
        dropped = operator.run(self.qkv, self.bounds, self.dropout, None, True)
        (grad,) = torch.autograd.grad(dropped, self.qkv, dropped.detach())
        one = dropped.detach().double().square().sum()
        other = (self.qkv.detach()[:, 2].double() * grad[:, 2].double()).sum()
        error = float((other - one).abs() / one)
        return None if error < _WORST_ERROR else f"wrong gradients with dropout: relative error {error:.2g}"


def _formula(qkv: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
    """Context and gradient of one sequence in float64."""
    exact = qkv.double().requires_grad_()
    query, key, value = exact.transpose(0, 2).unbind(1)
    weights = torch.softmax(query @ key.transpose(1, 2) / query.shape[-1] ** 0.5, -1)
    context = (weights @ value).transpose(0, 1)
    return context.detach(), torch.autograd.grad(context, exact, given.double())[0]


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double() - expected).norm() / expected.norm())


def _cuda_milliseconds(work: Callable[[], None]) -> float:
    began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    began.record()
    work()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended))
