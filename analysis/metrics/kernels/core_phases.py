"""Which phase of a training step, and which part of the model, each counted kernel belongs to: from its NVTX ranges.

A phase is the innermost range of the domain `bertbench` that is one of PHASES, among those open on the launching
thread. PyTorch launches the kernels of backward from a thread of its own, on which no range is open: a kernel without
any that comes after one of forward, and before any of another phase, is counted as backward.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.counters import KernelCounters

if TYPE_CHECKING:
    import pandas as pd

PHASES = ("data", "forward", "backward", "all-reduce", "optimizer")
"""Phases of a step, in their order."""
NO_PHASE = "no phase"
"""Of a kernel that lies in none."""
BY_RANGE, BY_ORDER = "range", "order"
"""What told a kernel's phase: a range that was open, or its place between kernels whose ranges tell theirs."""

_DOMAIN = "bertbench@"
_AROUND = ("run", "step ", "bertbench:capture")


def kernel_phases(counters: KernelCounters) -> "pd.DataFrame | None":
    """Return phase, part and told_by of every kernel, in their order; None where the file has no such ranges.

    part is the outermost range of the model inside the phase ("layer.3", "embeddings"), "" where there is none; told_by
    is BY_RANGE, BY_ORDER or "".
    """
    import pandas as pd

    kernels = counters.kernels
    if "push_pop_ranges" not in kernels:
        return None
    phases, parts, told = [], [], []
    last: dict[int, str] = {}
    for process, stack, spans in zip(
        kernels["process"].tolist(),
        kernels["push_pop_ranges"].tolist(),
        kernels["start_stop_ranges"].tolist(),
        strict=True,
    ):
        names = [name.removeprefix(_DOMAIN) for name in stack if name.startswith(_DOMAIN)]
        phase, part = _phase_of(names)
        by = BY_RANGE if phase else ""
        if phase is None and f"{_DOMAIN}all-reduce" in spans:
            phase, by = "all-reduce", BY_RANGE
        if phase is None and last.get(process) == "forward" and not stack:
            phase, by = "backward", BY_ORDER
        elif phase is not None:
            last[process] = phase if by == BY_RANGE else last.get(process, "")
        phases.append(phase or NO_PHASE)
        parts.append(part)
        told.append(by)
    if all(phase == NO_PHASE for phase in phases):
        return None
    return pd.DataFrame({"phase": phases, "part": parts, "told_by": told}, index=kernels.index)


def _phase_of(names: Sequence[str]) -> tuple[str | None, str]:
    found = [position for position, name in enumerate(names) if name in PHASES]
    inside = names[found[-1] + 1 :] if found else names
    part = next((name for name in inside if not name.startswith(_AROUND)), "")
    return (names[found[-1]] if found else None), part
