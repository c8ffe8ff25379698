"""What Triton's interpreter gets wrong; kernels are not concerned.

Triton before 3.7 makes Python's numbers of its scalars as NumPy 2.4 no longer allows. It holds bf16 as 16-bit integers,
which its matrix products multiply as such.
"""

from typing import Any

import numpy as np
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
