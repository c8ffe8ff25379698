"""Peak memory of a training step of a module, from a step on fake tensors, which have shapes and types but no memory.

Each storage counts from the operation that makes it until it is freed, as an allocator without fragmentation would
count it. So what the forward pass keeps, gradients, activation checkpointing and the intermediate results of both
passes are those of the module itself. The weights and the two moments of AdamW are there all the time.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Live(TorchDispatchMode):
    """Bytes of the storages that operations made and that are not freed yet."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._known: dict[int, Any] = {}

    def ignore(self, tensors: Iterator[torch.Tensor]) -> None:
        """Leave out storages that were there before."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._known[storage._cdata] = storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count what it made."""
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()
        self._known[key] = None
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._known.pop(key, None)
        self.now -= size


def step_bytes(
    model: Any,
    inputs: Callable[[], dict[str, torch.Tensor]],
    autocast: torch.dtype | None,
    micro_batches: int = 1,
) -> tuple[int, int]:
    """Return the bytes of the weights, and the most bytes besides that forward and backward passes hold at once.

    Args:
        model: on the meta device; its result has a `loss`. It is moved to fake tensors.
        inputs: makes the arguments of its forward pass.
        autocast: element type of GEMMs; None for float32.
        micro_batches: micro-batches of a step; from the second one on the gradients are there before.
    """
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu").train()
        model.tie_weights()
        arguments = inputs()
        live = _Live()
        live.ignore(iter([*model.parameters(), *model.buffers(), *arguments.values()]))
        with live:
            for _ in range(min(2, micro_batches)):
                with _cast(autocast):
                    loss = model(**arguments).loss
                loss.backward()
                del loss
        weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return weights, live.most


@contextmanager
def _cast(dtype: torch.dtype | None) -> Iterator[None]:
    if dtype is None:
        yield
        return
    with torch.autocast("cpu", dtype):
        yield
