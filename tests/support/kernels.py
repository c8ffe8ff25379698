"""Tests of the kernels for a GPU, where Triton is, and of what a step does on a GPU."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from bert.speed.native import triton_missing


def need_triton() -> None:
    """Skip a test where Triton cannot be used, and say why."""
    missing = triton_missing()
    if missing is not None:
        pytest.skip(str(missing))


class AsOnCuda(TorchFunctionMode):
    """Casts as autocast in bf16 does on a GPU (PyTorch's list of operators), and drops out as there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        dtype = {F.linear: torch.bfloat16, F.layer_norm: torch.float32}.get(func)
        if dtype is not None:
            args = [one.to(dtype) if isinstance(one, Tensor) else one for one in args]
        if func is F.dropout:  # the operator that it is on a GPU
            return torch.native_dropout(args[0], kwargs["p"], True)[0]
        return func(*args, **kwargs or {})
