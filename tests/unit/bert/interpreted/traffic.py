"""Kernels load and store what the budget counts (tests/support/gpu_step.py): each number of a long tensor once.

Run by tests/unit/bert/test_kernels_interpreted.py, in a process of its own.
"""

import importlib
import pkgutil
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from support import kernel_compilations
from support.gpu_step import READ_AND_WRITTEN, READ_FROM_CACHE
from torch import Tensor
from triton.runtime.interpreter import InterpreterBuilder, interpreter_builder

from bert.speed import kernels

ROWS, HIDDEN, INNER, WORDS = 32, 128, 256, 160
# Rows of embeddings are loaded by their number, as many as there are tokens.
GATHERED = ("words", "positions", "segments")


class Moved(NamedTuple):
    """What a kernel did with one tensor."""

    kernel: str
    argument: str
    elements: int
    """Times the number of arguments that lie in this memory."""
    loaded: int
    stored: int


class Traffic:
    """Counts loads and stores of every launch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[Moved] = []
        self._now: list[tuple[str, Tensor, Counter[str]]] = []
        monkeypatch.setattr(kernels, "DEVICES", {"cpu"})
        for module in pkgutil.iter_modules(kernels.__path__, kernels.__name__ + "."):
            if hasattr(importlib.import_module(module.name), "launch"):
                monkeypatch.setattr(f"{module.name}.launch", self.launch)
        load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

        def loading(builder: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
            self.count("loaded", pointers, mask)
            return load(builder, pointers, mask, *rest)

        def storing(builder: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            self.count("stored", pointers, mask)
            return store(builder, pointers, value, mask, *rest)

        monkeypatch.setattr(type(interpreter_builder), "create_masked_load", loading)
        monkeypatch.setattr(type(interpreter_builder), "create_masked_store", storing)

    def count(self, what: str, pointers: Any, mask: Any) -> None:
        places = np.broadcast_to(pointers.data, mask.data.shape)[mask.data]
        for _, tensor, counts in self._now:
            first = tensor.data_ptr()
            counts[what] += int(((places >= first) & (places < first + tensor.nbytes)).sum())

    def launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        named = zip(kernel.arg_names, arguments, strict=False)
        self._now = [(name, one.detach(), Counter()) for name, one in named if isinstance(one, Tensor)]
        kernels.launch(kernel, grid, *arguments, **constants)
        self.found += [
            Moved(
                kernel.fn.__name__, name, one.numel() * self.shared(one), counts["loaded"],
                counts["stored"] * (4 if name == "transposed" else 1),
            )
            for name, one, counts in self._now  # transposes are stored in words of four numbers
        ]  # fmt: skip

    def shared(self, tensor: Tensor) -> int:
        return sum(one.data_ptr() == tensor.data_ptr() for _, one, _ in self._now)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    if not dtype.is_floating_point:
        return torch.ones(shape, dtype=dtype)
    return torch.rand(shape).to(dtype).requires_grad_()


def test_each_number_of_a_long_tensor_is_loaded_or_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic(monkeypatch)
    for name, value in (
        ("HIDDEN", HIDDEN),
        ("INNER", INNER),
        ("WORDS", WORDS),
        ("DEVICE", "cpu"),
        ("numbers", numbers),
    ):
        monkeypatch.setattr(kernel_compilations, name, value)
    monkeypatch.setattr(kernel_compilations.Driver, "architecture", 90)
    kernel_compilations.layer(ROWS, torch.bfloat16, False)
    kernel_compilations.ends(ROWS, torch.bfloat16, False)
    long = [moved for moved in traffic.found if moved.elements >= ROWS * HIDDEN and moved.argument not in GATHERED]
    assert {moved.kernel for moved in long} == {moved.kernel for moved in traffic.found}
    for moved in long:
        times = 1 + ((moved.kernel, moved.argument) in READ_AND_WRITTEN | READ_FROM_CACHE)
        again = ROWS if moved.kernel == "cross_entropy_forward" else 0  # the logit of each label
        assert moved.loaded + moved.stored == times * moved.elements + again, moved
    tables = [moved for moved in traffic.found if moved.argument in GATHERED and moved.elements >= ROWS * HIDDEN]
    assert tables and all(moved.loaded == ROWS * HIDDEN and moved.stored == 0 for moved in tables)
