"""What Triton's interpreter gets wrong; kernels are not concerned.

Triton before 3.7 makes Python's numbers of its scalars as NumPy 2.4 no longer allows. It holds bf16 as 16-bit integers,
which its matrix products multiply as such. Its casts to FP8 lose the carry of numbers that are rounded up to a power of
2, and make a number of NaN in E4M3: PyTorch's are in their place.
"""

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
import triton.runtime.interpreter as interpreter

if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7):
    _patch = interpreter._patch_lang_tensor

    def _patched(tensor: Any, *scope: Any) -> None:
        _patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = _patched

_dot = interpreter.InterpreterBuilder.create_dot


def _wide(operand: Any) -> Any:
    if operand.data.dtype != np.uint16:
        return operand
    return interpreter.TensorHandle((operand.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


def _dot_of_values(builder: Any, left: Any, right: Any, *rest: Any) -> Any:
    return _dot(builder, _wide(left), _wide(right), *rest)


interpreter.InterpreterBuilder.create_dot = _dot_of_values

_FORMATS = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
_convert = interpreter._convert_float


def _converted(data: Any, source: Any, target: Any, mode: Any) -> Any:
    if target.name not in _FORMATS or source != tl.float32:
        return _convert(data, source, target, mode)
    return torch.from_numpy(data.copy()).to(_FORMATS[target.name]).view(torch.uint8).numpy()


interpreter._convert_float = _converted
