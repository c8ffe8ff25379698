"""Triton before 3.7 makes Python's numbers of its scalars as NumPy 2.4 no longer allows; kernels are not concerned."""

from typing import Any

import triton
import triton.runtime.interpreter as interpreter

if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7):
    _patch = interpreter._patch_lang_tensor

    def _patched(tensor: Any, *scope: Any) -> None:
        _patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = _patched
