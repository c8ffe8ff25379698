"""Tests of the kernels for a GPU, where Triton is."""

import pytest

from bert.speed.native import triton_missing


def need_triton() -> None:
    """Skip a test where Triton cannot be used, and say why."""
    missing = triton_missing()
    if missing is not None:
        pytest.skip(str(missing))
