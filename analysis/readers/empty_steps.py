"""Marked steps that are none: opened when a recording ended, they would put every figure per step off.

PyTorch's profiler opens the next `ProfilerStep` as the last one ends, and closes it when it is stopped microseconds
later. Such a step has launched nothing. One that is merely idle has a length, and stays.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

NEGLIGIBLE = 0.01
"""A step shorter than this share of the median of those that launched something, and empty, is none."""


def empty_steps(start: Integers, end: Integers, launches: Callable[[], Integers]) -> Mask:
    """Return which of n steps launched nothing and are negligibly short beside those that did, shape (n,).

    Args:
        start: their starts, ns.
        end: their ends, ns.
        launches: returns when something was launched, ns, in any order; asked only where a step is short.
    """
    length = end - start
    none: Mask = np.zeros(len(length), dtype=bool)
    if len(length) < 2 or length.min() >= NEGLIGIBLE * length.max():
        return none
    moments = np.sort(launches())
    filled = np.searchsorted(moments, end) > np.searchsorted(moments, start)
    if not filled.any():
        return none
    found: Mask = ~filled & (length < NEGLIGIBLE * float(np.median(length[filled])))
    return found


def launch_moments(work: Integers, calls: Integers, called: Integers) -> Integers:
    """Return when the calls were made that launched known work, ns.

    Args:
        work: correlation ids of the work.
        calls: correlation ids of the calls.
        called: when each call began, ns.
    """
    moments: Integers = called[np.isin(calls, work[work > 0]) & (calls > 0)]
    return moments


def without_empty(
    steps: "pd.DataFrame", kernels: "pd.DataFrame", api: "pd.DataFrame"
) -> "tuple[pd.DataFrame, list[str]]":
    """Return the steps of a timeline that are some, and what to say of the others.

    A launch is a call that is tied to work, or, where none is, the start of work.
    """

    def launches() -> Integers:
        if "correlation_id" in kernels.columns and "correlation_id" in api.columns:
            of_work, of_calls, called = (
                column.to_numpy(dtype=np.int64)
                for column in (kernels["correlation_id"], api["correlation_id"], api["start"])
            )
            if len(found := launch_moments(of_work, of_calls, called)):
                return found
        return kernels["start"].to_numpy(dtype=np.int64)

    start, end = (steps[name].to_numpy(dtype=np.int64) for name in ("start", "end"))
    empty = empty_steps(start, end, launches)
    said = left_out(steps["step"].to_numpy(dtype=np.int64)[empty], (end - start)[empty])
    return steps[~empty].reset_index(drop=True), said


def left_out(numbers: Integers, lengths: Integers) -> list[str]:
    """Return one sentence on the steps that were left out; none for none."""
    if not len(numbers):
        return []
    named = ", ".join(f"{number} ({length / 1e6:.3g} ms)" for number, length in zip(numbers, lengths, strict=True))
    one = len(numbers) == 1
    return [
        f"{'step' if one else 'steps'} {named} launched nothing and {'is' if one else 'are'} left out: "
        f"{'it was' if one else 'they were'} opened when the recording ended"
    ]
