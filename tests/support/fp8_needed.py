"""Tests that multiply in FP8 by the size of real layers need a processor whose library does."""

import time

import pytest
import torch

_SIZE = 128
_SECONDS = 0.02
"""An optimized product takes well below a millisecond; the reference that oneDNN falls back to takes 65."""


def need_fast_fp8() -> None:
    """Skip a test where torch multiplies FP8 by a slow reference on this CPU."""
    factor = torch.ones(_SIZE, _SIZE).to(torch.float8_e4m3fn)
    one = torch.ones(())
    times = []
    for _ in range(2):
        began = time.perf_counter()
        torch._scaled_mm(factor, factor.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        times.append(time.perf_counter() - began)
    if min(times) > _SECONDS:
        pytest.skip("torch has no fast FP8 product on this CPU")
