"""Bytes that optimizers move per parameter with PyTorch's operators: what fused ones are compared with."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bert.optim.registry import OPTIMIZERS


class Traffic(TorchDispatchMode):
    """Counts what operators read and write of large tensors, by their schemas: in place or into new tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name, schema = func.overloadpacket.__name__, func._schema.arguments
        given = [*zip(schema, args, strict=False), *((one, kwargs[one.name]) for one in schema if one.name in kwargs)]
        written = set[int]()
        if func.is_view or name == "empty":
            return result
        for argument, value in given:
            writes = argument.alias_info is not None and argument.alias_info.is_write
            if name == "_fused_adamw_" and argument.name == "grads":  # written only where they are scaled
                writes = kwargs.get("grad_scale") is not None
            for tensor in large(value):
                self.moved[name] += tensor.nbytes * ((not (writes and name.endswith("copy_"))) + writes)
                written |= {tensor.data_ptr()} if writes else set()
        self.moved[name] += sum(tensor.nbytes for tensor in large(result) if tensor.data_ptr() not in written)
        return result


def large(value: Any) -> list[Tensor]:
    return [one for one in torch.utils._pytree.tree_flatten(value)[0] if isinstance(one, Tensor) and one.numel() > 9999]


@pytest.mark.parametrize(("name", "update", "clipping"), [("adamw", 28, 12), ("lamb", 68, 4)])
def test_what_optimizers_move_without_kernels(name: str, update: int, clipping: int) -> None:
    weight = torch.nn.Parameter(torch.ones(8, 1280))
    model = torch.nn.ParameterList([weight])
    optimizer = OPTIMIZERS[name](model, 1e-3)
    for _ in range(2):  # the first one makes the state
        weight.grad = torch.ones_like(weight)
        with Traffic() as counted:
            if name == "adamw":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert sum(counted.moved.values()) / weight.numel() == update + clipping, counted.moved
