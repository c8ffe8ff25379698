"""The parts of a step of a given model, from a trace of its own forward pass (bench.steplight.trace).

They follow the definition that the parts of this suite's BERT follow: GEMMs and attention have FLOPs, regions between
them have their least traffic, and copies have a floor of 0. Heads that predict words compute every position: their
floor is that of the positions with a label.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from bench.implementations.given import GivenModel
from bench.implementations.module_flops import NotTracedError
from bench.steplight.parts import cast_both, gemm_parts, optimizer_parts
from bench.steplight.subject import Part, Timed
from bench.steplight.trace import ATTENTION, GEMM, LAYOUT, OTHER, Call, Ref, Region, Trace, Value, trace_forward
from bert.data.batch import BatchCounts
from bert.model.step import Extent, Gemm, Over
from common.errors import InputError
from records.kinds import Component

LAYOUT_OF_BATCH = "padded"
_MOST_NAMES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class GivenSubject(Timed):
    """The step of a given model."""

    given: GivenModel

    @property
    def predicts_words(self) -> bool:
        """Whether the head computes every position, of which only those with a label count."""
        return self.given.auto_class == "AutoModelForMaskedLM"


def make_given_parts(subject: GivenSubject) -> list[Part]:
    """Return all parts of a step.

    Raises:
        InputError: they cannot be seen in a forward pass, or their FLOPs are not those of the module.
    """
    try:
        return _parts(subject)
    except NotTracedError as error:
        name = type(subject.model).__name__
        raise InputError(
            "model-unsupported",
            f"the floor of {name} is unknown: {error}; measure whole steps with `bertbench throughput "
            f"{subject.given.task.name} --model {subject.given.spec.model}`",
        ) from error


def _parts(subject: GivenSubject) -> list[Part]:
    given, batch = subject.given, subject.batch
    flops = given.model_flops(batch.counts)
    if flops is None:
        raise NotTracedError(given.unknown_flops)
    with subject.precision.autocast():
        trace = trace_forward(subject.model, lambda: given.loss(subject.model, batch))
    found = [*_gemms(subject, trace), *_attention(subject, trace), *_regions(subject, trace)]
    counted = sum(part.component.calls_per_step * part.component.model_flops for part in found)
    if not math.isclose(counted, flops, rel_tol=1e-9):
        raise NotTracedError(f"the parts of its forward pass have {counted:.6g} FLOPs, the module {flops:.6g}")
    return [*found, *_copies(subject, trace), *optimizer_parts(subject)]


def _gemms(subject: GivenSubject, trace: Trace) -> Iterator[Part]:
    """Yield three parts of each shape of a linear layer: forward, input gradient, weight gradient."""
    # Of a shared weight the last name: the decoder comes after the embedding.
    names = {id(weight): name for name, weight in subject.model.named_parameters(remove_duplicate=False)}
    calls: dict[tuple[bool, Over, int, int, bool], list[str]] = {}
    counts = subject.batch.counts
    for call in trace.of_kind(GEMM):
        weight = call.operand(1, "weight")
        columns, inner = weight.shape
        rows = trace.values[call.outputs[0][1]].count // columns
        over = _over(subject, rows, call.in_body)
        biased = call.operand(2, "bias") is not None
        calls.setdefault((call.in_body, over, inner, columns, biased), []).append(names.get(id(weight), "weight"))
    # Heads compute every position.
    extent = replace(Extent.padded(counts), predictions=counts.padded_tokens)
    taken = Counter[str]()
    for (in_body, over, inner, columns, biased), weights in calls.items():
        name = _linear_name(weights)
        taken[name] += 1
        name += f" {taken[name]}" if taken[name] > 1 else ""
        gemm = Gemm(name=name, inner=inner, columns=columns, over=over, times=len(weights), own_bias=biased)
        yield from gemm_parts(subject, gemm, extent, "layers" if in_body else "head")


def _over(subject: GivenSubject, rows: int, in_body: bool) -> Over:
    counts = subject.batch.counts
    if rows == counts.padded_tokens:
        return "tokens" if in_body or not subject.predicts_words else "predictions"
    if rows == counts.samples:
        return "sequences"
    raise NotTracedError(
        f"a linear layer has {rows} rows, which are neither the {counts.padded_tokens} tokens nor the "
        f"{counts.samples} sequences of the batch"
    )


def _linear_name(weights: Sequence[str]) -> str:
    """The last two names on the way to each weight, numbers of layers left out."""
    found = dict.fromkeys(
        ".".join([part for part in name.split(".")[:-1] if not part.isdigit()][-2:]) for name in weights
    )
    names = list(found)
    return ", ".join(names[:_MOST_NAMES]) + (" and others" if len(names) > _MOST_NAMES else "")


def _attention(subject: GivenSubject, trace: Trace) -> Iterator[Part]:
    counts = subject.batch.counts
    alike: dict[Any, list[Call]] = {}
    for call in trace.of_kind(ATTENTION):
        alike.setdefault(_signature(trace, [call], {}), []).append(call)
    for number, calls in enumerate(alike.values(), start=1):
        call = calls[0]
        shapes = [trace.values[ref.value].shape for ref in call.args[0][:3] if isinstance(ref, Ref)]
        width = counts.padded_tokens // counts.samples
        if len(shapes) < 3 or len(set(shapes)) > 1 or (shapes[0][0], shapes[0][-2]) != (counts.samples, width):
            raise NotTracedError(f"attention of queries, keys and values of shapes {shapes} on padded sequences")
        sequences, heads, length, size = shapes[0]
        each = 12 * heads * size
        component = Component(
            name="attention" if number == 1 else f"attention {number}",
            group="attention",
            shape=f"{sequences} sequences, {heads} heads, {sequences * length} tokens",
            calls_per_step=len(calls),
            model_flops=float(each * counts.squared_lengths),
            computed_flops=float(each * sequences * length**2),
            bytes=float(each * sequences * length * subject.dtype.itemsize),
        )
        outputs = [value for _, value in call.outputs]
        yield Part(component, _replay(subject, trace, calls[:1], call.reads, outputs))


def _regions(subject: GivenSubject, trace: Trace) -> Iterator[Part]:
    """Yield the regions between GEMMs, equal ones as one part; those that only copy have a floor of 0."""
    alike: dict[Any, list[Region]] = {}
    for region in trace.regions(subject.dtype):
        calls = [trace.calls[at] for at in region.calls]
        places = {value: at for at, value in enumerate(region.outputs)}
        key = (region.in_body, region.traffic, len(region.outputs), _signature(trace, calls, places))
        alike.setdefault(key, []).append(region)
    taken = Counter[str]()
    for regions in alike.values():
        region, calls = regions[0], [trace.calls[at] for at in regions[0].calls]
        names = dict.fromkeys(call.name for call in calls if call.kind == OTHER)
        copies = all(name in LAYOUT for name in names)
        share = _share_with_label(subject.batch.counts) if subject.predicts_words and not region.in_body else 1.0
        name = ("" if region.in_body else "head ") + ", ".join(one.replace("_", " ") for one in names)
        taken[name] += 1
        widest = max((trace.values[v] for v in (*region.inputs, *region.outputs)), key=lambda value: value.count)
        group = "elementwise" if region.in_body else "head"
        component = Component(
            name=name if taken[name] == 1 else f"{name} {taken[name]}",
            group="copies" if copies else group,
            shape=" x ".join(map(str, widest.shape)),
            calls_per_step=len(regions),
            bytes=0.0 if copies else region.traffic * share,
        )
        yield Part(component, _replay(subject, trace, calls, region.inputs, region.outputs))


def _share_with_label(counts: BatchCounts) -> float:
    return counts.predicted_positions / counts.padded_tokens


def _signature(trace: Trace, calls: Sequence[Call], outputs: dict[int, int]) -> Any:
    """What equal calls have in common: functions, shapes and types, and how they are connected."""
    local: dict[int, int] = {}

    def plain(leaf: Any) -> Any:
        if isinstance(leaf, Ref):
            value = trace.values[leaf.value]
            return ("value", local.setdefault(leaf.value, len(local)), value.shape, value.stride, str(value.dtype))
        if isinstance(leaf, Tensor):
            return (type(leaf).__name__, tuple(leaf.shape), str(leaf.dtype))
        return repr(leaf)

    found = []
    for call in calls:
        leaves = tuple(map(plain, tree_leaves(call.args)))
        made = tuple((place, local.setdefault(value, len(local)), outputs.get(value)) for place, value in call.outputs)
        found.append((call.name, leaves, tuple(sorted(call.args[1])), made))
    return tuple(found)


def _replay(
    subject: GivenSubject, trace: Trace, calls: Sequence[Call], inputs: Sequence[int], outputs: Sequence[int]
) -> Callable[[], object]:
    """Return a call that makes recorded calls on other numbers, forward and backward."""
    given = {value: _like(subject, trace.values[value]).requires_grad_() for value in dict.fromkeys(inputs)}
    parameters = {id(p): p for call in calls for p in call.parameters if p.requires_grad}
    wanted = [*given.values(), *parameters.values()]
    grads = [_like(subject, trace.values[value]) for value in outputs]

    def run() -> object:
        known: dict[int, Any] = dict(given)
        with subject.precision.autocast():
            for call in calls:
                args, named = tree_map(partial(_filled, known), call.args)
                leaves = [leaf for leaf in tree_leaves(call.function(*args, **named)) if isinstance(leaf, Tensor)]
                known |= {value: leaves[place] for place, value in call.outputs}
        return torch.autograd.grad([known[value] for value in outputs], wanted, grads, allow_unused=True)

    return run


def _filled(known: dict[int, Any], leaf: Any) -> Any:
    return known[leaf.value] if isinstance(leaf, Ref) else leaf


def _like(subject: GivenSubject, value: Value) -> Tensor:
    """Random numbers in the layout of an activation; a view with repeated elements gets memory for each."""
    if 0 in value.stride:
        return subject.tensor(*value.shape, dtype=value.dtype)
    made = torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device=subject.device)
    return made.copy_(subject.tensor(*value.shape, dtype=value.dtype))


def _copies(subject: GivenSubject, trace: Trace) -> Iterator[Part]:
    """Yield sums of gradients, and casts between precisions. Their floor is 0."""

    def copies(name: str, shape: Sequence[int], calls: int, run: Callable[[], object]) -> Part:
        text = " x ".join(map(str, shape))
        return Part(Component(name=f"{name} of {text}", group="copies", shape=text, calls_per_step=calls), run)

    linear = trace.of_kind(GEMM)
    biased = [call for call in linear if call.operand(2, "bias") is not None]
    for (rows, width), times in Counter(_result(trace, call) for call in biased).items():
        grad = subject.tensor(rows, width)
        yield copies("bias gradients", (rows, width), times, partial(grad.sum, 0))
    for (shape, dtype), times in _sums(trace).items():
        one, other = (subject.tensor(*shape, dtype=dtype) for _ in range(2))
        yield copies("sums of gradients", shape, times, partial(torch.add, one, other))
    if subject.dtype == torch.float32:
        return
    read = [trace.values[call.reads[0]] for call in linear]
    for shape, times in Counter(value.shape for value in read if value.dtype == torch.float32).items():
        wide, half = subject.tensor(*shape, dtype=torch.float32), subject.tensor(*shape)
        yield copies("casts of activations", shape, times, cast_both([wide], [half], subject.dtype))
    weights = list({id(weight): weight.detach() for call in linear for weight in call.parameters}.values())
    count = sum(weight.numel() for weight in weights)
    component = Component(
        name="casts of weights", group="copies", shape=f"{count:,} weights, gradients back", calls_per_step=1
    )
    narrow = [weight.to(subject.dtype) for weight in weights]
    yield Part(component, cast_both(weights, narrow, subject.dtype))


def _result(trace: Trace, call: Call) -> tuple[int, int]:
    """Rows and columns of what a linear layer returns."""
    value = trace.values[call.outputs[0][1]]
    return value.count // value.shape[-1], value.shape[-1]


def _sums(trace: Trace) -> Counter[tuple[tuple[int, ...], torch.dtype]]:
    """How often gradients of a shape are added: once less than there are GEMMs, attentions and regions that read it."""
    units = trace.units()
    readers: dict[Any, set[int]] = {}
    shapes: dict[Any, tuple[tuple[int, ...], torch.dtype]] = {}
    for at, call in enumerate(trace.calls):
        for value in call.reads:
            readers.setdefault(value, set()).add(units[at])
            shapes[value] = (trace.values[value].shape, trace.values[value].dtype)
        for weight in call.parameters:
            readers.setdefault(("parameter", id(weight)), set()).add(units[at])
            shapes[("parameter", id(weight))] = (tuple(weight.shape), weight.dtype)
    found: Counter[tuple[tuple[int, ...], torch.dtype]] = Counter()
    for value, own in readers.items():
        if len(own) > 1:
            found[shapes[value]] += len(own) - 1
    return found
