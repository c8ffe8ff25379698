"""What one forward pass of a module calls: GEMMs, attention, and regions of calls between them.

Every call of PyTorch's functions on activations is recorded as it happens, with shapes and types but without values.
The depth of a call is the largest number of GEMMs and attention calls on a way to it. A region is a connected set of
other calls of one depth, in or after the encoder: no GEMM lies between two of them, so one kernel could do all of
them. Its least traffic follows from what it reads from outside and what others read of it:

    2 x (inputs + outputs) + the largest of them, if its gradient depends on values:

each is read or written once in the forward pass, so is its gradient, and the backward pass reads one of them again.
Masks, ids and parameters of vectors are not counted; of several look-ups the largest is. A result that only GEMMs and
attention read counts in the type of the GEMMs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

from bench.implementations.module_flops import NotTracedError

GEMM, ATTENTION, VIEW, OTHER = "gemm", "attention", "view", "other"
LAYOUT = ("bfloat16", "clone", "contiguous", "float", "half", "reshape", "to", "type", "type_as")
"""Calls that only copy: to another layout or type."""
_LINEAR = (*LAYOUT, "add", "cat", "dropout", "embedding", "getitem", "mean", "neg", "stack", "sub", "sum")
_SCALING = ("div", "mul", "truediv")  # without values where the other factor has no gradient
_MARK = "_bertbench_value"


@dataclass(frozen=True, slots=True)
class Ref:
    """An activation in the arguments of a recorded call."""

    value: int


@dataclass(frozen=True, slots=True)
class Value:
    """An activation."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """Where it begins in its memory, in elements."""
    dtype: torch.dtype
    producer: int
    """Call that made it."""
    root: int
    """The activation whose memory it is a view of; itself if it has its own."""
    depth: int

    @property
    def count(self) -> int:
        """Number of elements."""
        return int(torch.Size(self.shape).numel())

    @property
    def bytes(self) -> int:
        """Bytes of its elements."""
        return self.count * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Call:
    """A recorded call."""

    function: Callable[..., Any]
    kind: str
    """GEMM, ATTENTION, VIEW or OTHER."""
    args: Any
    """Arguments and named arguments, activations as Ref."""
    outputs: tuple[tuple[int, int], ...]
    """Place among the results, and which value it is."""
    depth: int
    in_body: bool
    """Whether the encoder made it; the head otherwise."""
    reads: tuple[int, ...]
    """The activations it reads."""

    @property
    def name(self) -> str:
        """Name of the function, such as add for Tensor.__radd__."""
        name = str(getattr(self.function, "__name__", "")).strip("_")
        plain = {"iadd": "add", "radd": "add", "rmul": "mul", "rsub": "sub", "rtruediv": "div"}
        return plain.get(name, name)

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters it reads."""
        return [leaf for leaf in tree_leaves(self.args) if isinstance(leaf, torch.nn.Parameter)]

    def operand(self, place: int, name: str) -> Any:
        """Return an argument by its place or name; None where it is not given."""
        args, named = self.args
        return args[place] if len(args) > place else named.get(name)

    @property
    def depends_on_values(self) -> bool:
        """Whether its gradient needs a value of the forward pass, masks of dropout aside."""
        if self.name in _SCALING:
            return len(self.reads) + len(self.parameters) > 1
        return self.kind == OTHER and self.name not in _LINEAR


@dataclass(frozen=True, slots=True)
class Region:
    """Calls without GEMMs that one kernel could do together."""

    calls: tuple[int, ...]
    inputs: tuple[int, ...]
    """Activations that it reads from outside, views included."""
    outputs: tuple[int, ...]
    """Activations that others read, views included."""
    traffic: int
    """Least bytes that forward and backward pass move."""
    in_body: bool


@dataclass
class Trace:
    """The calls of one forward pass and the values between them."""

    calls: list[Call] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    result: int = -1
    """The loss."""

    def of_kind(self, kind: str) -> list[Call]:
        """Return the calls of a kind in their order."""
        return [call for call in self.calls if call.kind == kind]

    def units(self) -> list[int]:
        """Return for every call the number of the region it belongs to; GEMMs and attention are alone."""
        unit = list(range(len(self.calls)))

        def find(at: int) -> int:
            while unit[at] != at:
                unit[at] = unit[unit[at]]
                at = unit[at]
            return at

        for at, call in enumerate(self.calls):
            for value in call.reads:
                made = self.values[value].producer
                other = self.calls[made]
                alone = {call.kind, other.kind} & {GEMM, ATTENTION}
                if not alone and (call.depth, call.in_body) == (other.depth, other.in_body):
                    unit[find(at)] = find(made)
        return [find(at) for at in range(len(self.calls))]

    def regions(self, narrow: torch.dtype) -> list[Region]:
        """Return the regions that do more than make views, in their order.

        Args:
            narrow: type of the operands of GEMMs.
        """
        units = self.units()
        members: dict[int, list[int]] = {}
        for at, unit in enumerate(units):
            if self.calls[at].kind in (VIEW, OTHER):
                members.setdefault(unit, []).append(at)
        used: dict[int, list[int]] = {}
        readers: dict[int, set[int]] = {}
        for at, call in enumerate(self.calls):
            for value in call.reads:
                used.setdefault(value, []).append(at)
                if call.kind != VIEW:
                    readers.setdefault(self.values[value].root, set()).add(at)
        found = []
        for unit, calls in members.items():
            if all(self.calls[at].kind == VIEW for at in calls):
                continue
            own = {value for at in calls for _, value in self.calls[at].outputs}
            inputs = dict.fromkeys(v for at in calls for v in self.calls[at].reads if v not in own)
            outputs = [
                value for value in sorted(own)
                if value == self.result or any(units[at] != unit for at in used.get(value, ()))
            ]  # fmt: skip
            traffic = self._traffic(calls, units, readers, narrow)
            found.append(Region(tuple(calls), tuple(inputs), tuple(outputs), traffic, self.calls[calls[0]].in_body))
        return found

    def _traffic(self, calls: list[int], units: list[int], readers: dict[int, set[int]], narrow: torch.dtype) -> int:
        """Bytes of a region, by the formula of this module. Views are free: `readers` of memory are what reads them."""
        working = [at for at in calls if self.calls[at].kind == OTHER]
        unit = units[calls[0]]
        read: dict[int, set[int]] = {}
        for at in working:
            for value in self.calls[at].reads:
                root = self.values[value].root
                if units[self.values[root].producer] != unit:
                    read.setdefault(root, set()).add(value)
        moved = [_read_bytes(self.values[root], [self.values[value] for value in seen]) for root, seen in read.items()]
        rows = [self.values[self.calls[at].outputs[0][1]].bytes for at in working if self.calls[at].name == "embedding"]
        moved += [max(rows)] if rows else []
        made = {value for at in working for _, value in self.calls[at].outputs if self.values[value].root == value}
        for value in made:
            outside = [self.calls[at].kind for at in readers.get(value, ()) if units[at] != unit]
            own = self.values[value].dtype.itemsize
            size = min(narrow.itemsize, own) if set(outside) <= {GEMM, ATTENTION} else own
            moved += [self.values[value].count * size] if outside else []
        again = any(self.calls[at].depends_on_values for at in working)
        return 2 * sum(moved) + (max(moved, default=0) if again else 0)


def _read_bytes(root: Value, views: list[Value]) -> int:
    """Bytes of an activation that are read through views of it, each once however many views have it."""
    if len(views) == 1 or any(view.dtype != root.dtype or view.count >= root.count for view in views):
        return min(root.bytes, sum(view.bytes for view in views))
    read = torch.zeros(root.offset + root.count, dtype=torch.bool)
    for view in views:
        kept = [(size, stride) for size, stride in zip(view.shape, view.stride, strict=True) if stride]
        if view.offset + sum((size - 1) * stride for size, stride in kept) >= len(read):
            return root.bytes  # the root has gaps
        read.as_strided([size for size, _ in kept], [stride for _, stride in kept], view.offset).fill_(True)
    return int(read.sum()) * root.dtype.itemsize


def trace_forward(model: Any, forward: Callable[[], Tensor]) -> Trace:
    """Run a forward pass, with gradients, and return what it calls.

    Args:
        model: with `base_model`, its encoder.
        forward: computes the loss.

    Raises:
        NotTracedError: it multiplies activations outside F.scaled_dot_product_attention, changes activations in place,
            or computes some outside PyTorch's functions.
    """
    body = model.base_model
    if body is model:
        raise NotTracedError(f"{type(model).__name__} does not tell its encoder from its head")
    recorder = _Recorder()
    with _watched(body, recorder), torch.enable_grad(), recorder:
        loss = forward()
    result = getattr(loss, _MARK, None)
    if result is None:
        raise NotTracedError("its loss comes from a call that is not one of PyTorch's functions")
    recorder.trace.result = result
    return recorder.trace


@contextmanager
def _watched(body: torch.nn.Module, recorder: "_Recorder") -> Iterator[None]:
    """Tell the recorder when the encoder begins and ends."""

    def begin(*_: Any) -> None:
        recorder.in_body = True

    def end(*_: Any) -> None:
        recorder.in_body = False

    handles = [body.register_forward_pre_hook(begin), body.register_forward_hook(end)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Recorder(TorchFunctionMode):
    """Records the calls on activations: results that gradients flow through."""

    def __init__(self) -> None:
        super().__init__()
        self.trace = Trace()
        self.in_body = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make a call, and record it."""
        named = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, Tensor)]
        if not any(tensor.requires_grad for tensor in given):
            return func(*args, **named)
        versions = [tensor._version for tensor in given]
        with FlopCounterMode(display=False) as counter:
            result = func(*args, **named)
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if versions != [tensor._version for tensor in given]:
            raise NotTracedError(f"{_name(func)} changes an activation in place")
        new = [(at, out) for at, out in enumerate(made) if out.requires_grad and not any(out is one for one in given)]
        if new:
            self._record(func, (args, named), given, new, int(counter.get_total_flops()))
        return result

    def _record(self, func: Any, args: Any, given: list[Tensor], new: list[tuple[int, Tensor]], flops: int) -> None:
        values, number = self.trace.values, len(self.trace.calls)
        known = [getattr(tensor, _MARK) for tensor in given if tensor.requires_grad and _is_activation(tensor, func)]
        memory = {
            tensor.untyped_storage()._cdata: values[getattr(tensor, _MARK)].root
            for tensor in given
            if hasattr(tensor, _MARK)
        }
        roots = [memory.get(out.untyped_storage()._cdata) for _, out in new]
        kind = self._kind(func, args, flops, all(root is not None for root in roots))
        depth = max((values[value].depth for value in known), default=0) + (kind in (GEMM, ATTENTION))
        outputs = []
        for (place, out), root in zip(new, roots, strict=True):
            outputs.append((place, len(values)))
            setattr(out, _MARK, len(values))
            own = len(values) if root is None else root
            values.append(
                Value(tuple(out.shape), out.stride(), int(out.storage_offset()), out.dtype, number, own, depth)
            )
        args = tree_map(_as_reference, args)
        reads = tuple(leaf.value for leaf in tree_leaves(args) if isinstance(leaf, Ref))
        self.trace.calls.append(Call(func, kind, args, tuple(outputs), depth, self.in_body, reads))

    def _kind(self, func: Any, args: Any, flops: int, views: bool) -> str:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return ATTENTION
        if not flops:
            return VIEW if views else OTHER
        operands, named = args
        weight = operands[1] if len(operands) > 1 else named.get("weight")
        if func is torch.nn.functional.linear and isinstance(weight, torch.nn.Parameter):
            return GEMM
        raise NotTracedError(
            f"{_name(func)} multiplies matrices that are not a linear layer or scaled_dot_product_attention"
        )


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))


def _is_activation(tensor: Tensor, func: Any) -> bool:
    """Whether a recorded call made a tensor with gradients. Raises NotTracedError: its origin is unknown."""
    if hasattr(tensor, _MARK):
        return True
    if isinstance(tensor, torch.nn.Parameter):
        return False
    raise NotTracedError(f"{_name(func)} reads a result of a call that is not one of PyTorch's functions")


def _as_reference(leaf: Any) -> Any:
    return Ref(getattr(leaf, _MARK)) if isinstance(leaf, Tensor) and hasattr(leaf, _MARK) else leaf
