"""A training step as a GPU runs it, on tensors without values: what it launches, with which arguments and bytes.

Tensors of the device "meta" stand for those of a GPU. PyTorch checks the shapes, types and order of arguments for them,
and refuses whatever would have to wait for a device. Triton kernels are counted at their launch.

Operators read each of their tensors once and write each result once. Kernels read or write each of their tensors once,
except those of READ_AND_WRITTEN. tests/unit/bert/interpreted/traffic.py compares both with loads and stores.
"""

import importlib
import pkgutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from support.layouts import batch_of
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bert.data.batch import Batch
from bert.model.config import ModelConfig
from bert.model.heads import BertForPretraining
from bert.observer import Observer
from bert.optim.precision import Precision
from bert.optim.registry import adamw
from bert.parallel.base import SingleStrategy
from bert.speed import FAST, apply, copy_weights, kernels
from bert.speed.copies import copy_of
from bert.train.loop import dropout_key
from common.train_spec import TrainSpec

GEMMS = ("mm", "addmm", "bmm", "_scaled_mm")
ATTENTION = ("_flash_attention", "_scaled_dot_product")
ATTENTION_KERNELS = ("attention_forward", "attention_query_gradients", "attention_key_gradients")
# Operators that launch nothing, and those that read nothing of what they write over.
_NO_LAUNCH = ("detach", "empty", "new_empty", "_unsafe_view", "alias", "lift_fresh", "_record_function")
_OVERWRITING = ("copy_", "zero_", "fill_", "random_")
# (kernel, argument) that a kernel reads and writes: of the others it does one.
READ_AND_WRITTEN = {("cross_entropy_backward", "logits")}
# (kernel, argument) that a program reads again right after it has written it: from cache, which is not counted.
READ_FROM_CACHE = {("dropout_layer_norm_forward", "low"), ("dropout_layer_norm_backward", "low")}


class Call(NamedTuple):
    """One operator or kernel of attention that was called."""

    name: str
    arguments: dict[str, Any]
    """By their names; those left out are absent."""


class Launches(TorchDispatchMode):
    """Counts what would be launched, and the bytes that it moves; keeps the calls of GEMMs and attention."""

    def __init__(self, parameters: frozenset[int] = frozenset()) -> None:
        """Tell bytes of parameters, and of what has as many elements, from the others."""
        super().__init__()
        self.host = Counter[str]()
        """Operators that PyTorch dispatches, views and allocations too, and launches of Triton."""
        self.calls = Counter[str]()
        self.bytes = Counter[str]()
        """Without GEMMs, attention and parameters."""
        self.parameter_bytes = Counter[str]()
        self.kept: list[Call] = []
        self._parameters = parameters

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        name = func.overloadpacket.__name__
        self.host[name] += 1
        if func.is_view or name.startswith(_NO_LAUNCH):
            return result
        self.calls[name] += 1
        if name in GEMMS or name.startswith(ATTENTION):
            named = dict(zip((one.name for one in func._schema.arguments), args, strict=False))
            self.kept.append(Call(name, named | (kwargs or {})))
            return result
        written = [] if func._schema.returns else [
            given for one, given in zip(func._schema.arguments, args, strict=False)
            if one.alias_info is not None and one.alias_info.is_write
        ]  # fmt: skip
        self._count(name, [args[1:] if name in _OVERWRITING else args, kwargs, written, result])
        return result

    def launched(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        """Count a kernel of Triton, in place of its launch."""
        name = kernel.fn.__name__
        self.host[name] += 1
        self.calls[name] += 1
        if name in ATTENTION_KERNELS:
            self.kept.append(Call(name, dict(zip(kernel.arg_names, arguments, strict=False)) | constants))
        else:
            self._count(name, moved_by(kernel, arguments))

    def _count(self, name: str, given: Any) -> None:
        for tensor in tree_leaves(given):
            if isinstance(tensor, Tensor):
                numbers = tensor.numel() * (4 if tensor.dtype == torch.int32 else 1)  # words hold four FP8 numbers
                of = self.parameter_bytes if numbers in self._parameters else self.bytes
                of[name] += tensor.nbytes


def moved_by(kernel: Any, arguments: tuple[Any, ...]) -> list[Tensor]:
    """Return the tensors that a kernel reads or writes, twice those of which it does both."""
    named = [(name, one) for name, one in zip(kernel.arg_names, arguments, strict=False) if isinstance(one, Tensor)]
    return [one for name, one in named for _ in range(1 + ((kernel.fn.__name__, name) in READ_AND_WRITTEN))]


class AsOnCuda(TorchFunctionMode):
    """Casts as autocast in bf16 does on a GPU (PyTorch's list of operators), drops out and attends as there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        dtype = {F.linear: torch.bfloat16, F.layer_norm: torch.float32, F.cross_entropy: torch.float32}.get(func)
        if dtype is not None:
            args = [one.to(dtype) if isinstance(one, Tensor) and one.is_floating_point() else one for one in args]
        if func is F.dropout:  # the operator that it is on a GPU
            return torch.native_dropout(args[0], kwargs["p"], True)[0]
        if func is F.scaled_dot_product_attention:
            return _attend_by_efficient(*args, **kwargs)
        return func(*args, **kwargs or {})


def _attend_by_efficient(query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor, dropout_p: float) -> Tensor:
    """Attend as PyTorch's function does on a GPU with a bool mask: it adds a mask of the type of the queries."""
    added = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask.logical_not(), float("-inf"))
    mask = added.expand(*query.shape[:-1], key.shape[-2])
    context: Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(query, key, value, mask, True, dropout_p)[
        0
    ]
    return context


@contextmanager
def counted_launches(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, by_kernels: bool = True
) -> Iterator[Launches]:
    """Have kernels for tensors of the device "meta", all of bert.speed.kernels, and count them in place of a launch."""
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "DEVICES", {"meta"} if by_kernels else set())
        for found in pkgutil.iter_modules(kernels.__path__, kernels.__name__ + "."):
            module = importlib.import_module(found.name)
            if hasattr(module, "launch"):
                patch.setattr(module, "launch", launches.launched)
        yield launches


class Step(NamedTuple):
    """What a step launches."""

    passes: Launches
    """Forward and backward."""
    update: Launches
    without_gradient: list[str]
    """Parameters that the backward pass leaves out."""
    loss: Tensor
    sizes: list[int]
    """Of all parameters."""


def step_of(
    spec: TrainSpec, shape: ModelConfig, lengths: list[int], monkeypatch: pytest.MonkeyPatch, by_kernels: bool = True
) -> Step:
    """Run a forward pass, a backward pass and an update of pretraining with AdamW, as one GPU would, with Triton or
    without.
    """
    columns = shape.max_positions
    with torch.device("meta"):
        model = BertForPretraining(shape)
    apply(model, spec.step)
    strategy = SingleStrategy()
    strategy.device = torch.device("meta")
    strategy.wrap(model, Observer())
    copy_weights(model, spec)
    sizes = [one.numel() for one in model.parameters()]
    with monkeypatch.context() as patch, _fp8_products_into_memory():
        _take_the_ways_of_a_gpu(patch)
        fused = by_kernels and spec.step == FAST and spec.strategy == "single"
        optimizer = adamw(model, 1e-4, fused=fused)
        strategy.prepare(optimizer, Precision("fp32", "cpu"))
        batch = replace(batch_of(lengths, columns).laid_out(), key=dropout_key(0, 0, 0, 0)).to(torch.device("meta"))
        for _ in range(2):  # the second step has a state, copies and memory to use again
            passes, update = (Launches(frozenset(sizes)) for _ in range(2))
            with counted_launches(passes, patch, by_kernels):
                loss = _passes(model, batch, passes, strategy)
            left_out = [name for name, one in model.named_parameters() if one.grad is None]
            with counted_launches(update, patch, by_kernels), update:
                optimizer.step()
            optimizer.zero_grad()
    return Step(passes, update, left_out, loss, sizes)


@contextmanager
def _fp8_products_into_memory() -> Iterator[None]:
    """Have FP8 products with `out` on "meta", which PyTorch knows for devices only."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("_scaled_mm.out", lambda *given, out, **named: out, "Meta")
    try:
        yield
    finally:
        library._destroy()


def _passes(model: BertForPretraining, batch: Batch, passes: Launches, strategy: SingleStrategy) -> Tensor:
    with passes, strategy.accumulate(last=True):
        with AsOnCuda():
            loss: Tensor = model(batch).loss
        strategy.backward(loss, Precision("fp32", "cpu"))
    return loss


def _take_the_ways_of_a_gpu(patch: pytest.MonkeyPatch) -> None:
    """Have models on "meta" do what they do on a GPU under autocast in bf16."""
    patch.setattr("bert.speed.copies.copy_in_use", copy_of)
    patch.setattr("bert.speed.layers.product_dtype", lambda x: torch.bfloat16)
    # PyTorch's fused kernel of AdamW has an implementation for "meta", but is not asked for there.
    optimizer = sys.modules["torch.optim.optimizer"]
    patch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: ["meta", "cpu", "cuda"])
