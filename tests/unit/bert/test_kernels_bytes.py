"""Bytes that the operations between the GEMMs of a layer move, with and without kernels: neither number may grow.

Tensors of the device "meta" stand for those of a GPU: they have shapes and types without values. Each operator reads
its tensors once and writes its results once; so does each kernel. GEMMs and attention do not count, nor do weights.
"""

from collections import Counter
from typing import Any

import pytest
import torch
from support.kernels import AsOnCuda, need_triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bert.model.config import ModelConfig
from bert.model.encoder import Layer
from bert.model.packing import Bounds
from bert.speed import kernels
from bert.speed.elementwise import Stream, stream
from bert.speed.registry import use_levers
from bert.speed.scales import INPUT, Scales
from bert.train.observer import Observer

HIDDEN, TOKENS, LENGTH = 1024, 16384, 256
SHAPE = ModelConfig(num_layers=1, hidden_size=HIDDEN, num_heads=16, intermediate_size=4 * HIDDEN)
NO_TRAFFIC = ("mm", "addmm", "_flash_attention", "detach", "empty", "new_empty", "_unsafe_view", "linear")


class Bytes(TorchDispatchMode):
    """Counts what operators read and write, for all that are as long as there are tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = Counter[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        name = func.overloadpacket.__name__
        if not func.is_view and not name.startswith(NO_TRAFFIC):
            self.count(name, [args, list((kwargs or {}).values()), result])
        return result

    def count(self, name: str, given: Any) -> None:
        tensors, _ = torch.utils._pytree.tree_flatten(given)
        self.moved[name] += sum(t.nbytes for t in tensors if isinstance(t, Tensor) and t.numel() >= TOKENS * HIDDEN)

    def launched(self, kernel: Any, grid: Any, *arguments: Any, **constants: Any) -> None:
        sums = [t for t in arguments if isinstance(t, Tensor) and t.dim() > 1 and t.numel() < TOKENS * HIDDEN]
        self.moved[kernel.fn.__module__] += 2 * sum(t.nbytes for t in sums)  # written, and added up
        self.count(kernel.fn.__module__, arguments)


def moved(fused: bool, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Bytes for each token and hidden unit of one layer between two others, forwards and backwards, under autocast."""
    counted = Bytes()
    if fused:
        from bert.speed.kernels import gelu, heads, norm

        monkeypatch.setattr(kernels, "DEVICES", {"meta"})
        for module in (gelu, heads, norm):
            monkeypatch.setattr(module, "launch", counted.launched)
    with torch.device("meta"):
        layer = Layer(SHAPE, 0, Observer())
        use_levers(layer, frozenset({"fused-elementwise"} if fused else ()))
        bounds = Bounds(torch.empty(TOKENS // LENGTH + 1, dtype=torch.int32), LENGTH)
        dtype = torch.bfloat16 if fused else torch.float32
        before = [torch.empty(TOKENS, HIDDEN, dtype=dtype, requires_grad=True) for _ in range(1 + fused)]
    with counted:
        with AsOnCuda():
            result = stream(layer(Stream(before[0], before[-1]), bounds))
        after = [result.wide, result.narrow][: len(before)]
        torch.autograd.grad(after, [*before, *layer.parameters()], [torch.empty_like(one) for one in after])
    return each(counted)


def each(counted: Bytes) -> Counter[str]:
    return Counter({name: count / (TOKENS * HIDDEN) for name, count in counted.moved.items() if count})


def test_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    need_triton()
    plain, fused = moved(False, monkeypatch), moved(True, monkeypatch)
    assert sum(plain.values()) == 210  # 226 as PyTorch's kernel of a norm's gradients reads its tensors twice
    assert sum(fused.values()) <= 90
    assert set(fused) == {f"bert.speed.kernels.{name}" for name in ("norm", "gelu", "heads")}


def test_a_cast_to_fp8_both_ways_moves_4_bytes_an_element(monkeypatch: pytest.MonkeyPatch) -> None:
    need_triton()
    from bert.speed.kernels import quantize

    values, kinds = torch.empty(TOKENS, HIDDEN, dtype=torch.bfloat16, device="meta"), []
    for devices in (set(), {"meta"}):
        monkeypatch.setattr(kernels, "DEVICES", devices)
        scales = Scales()
        scales.add(values.device)
        for known in (False, True):  # the first update reads a tensor once before
            counted = Bytes()
            monkeypatch.setattr(quantize, "launch", counted.launched)
            with counted:
                low, transposed, _ = scales.quantize(values, 0, INPUT)
            kinds.append((low.shape, low.dtype, transposed.shape, transposed.dtype))
            if devices:
                assert sum(each(counted).values()) == (4 if known else 6)
            else:
                assert sum(each(counted).values()) > 20
            scales.renew()
    assert len(set(kinds)) == 1
