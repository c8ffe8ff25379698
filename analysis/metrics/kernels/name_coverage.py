"""How much of the kernels' time has a family: what is "other" is work that no table by family explains."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analysis.counters import KernelCounters
from analysis.metrics.kernels.tables import kernel_times
from analysis.names import OTHER, family
from analysis.timeline import Timeline


@dataclass(frozen=True, kw_only=True, slots=True)
class NameCoverage:
    """The GPU kernels of a profile by whether their names say what they do; copies are not kernels."""

    names: int
    """Distinct names of kernels; 0 where the profile holds none."""
    other_share: float | None
    """Share of kernel time that is of the family "other"; None without a kernel, or where times are not known."""
    other: tuple[tuple[str, float], ...] = ()
    """The names it consists of, each with its share, largest first."""
    reason: str = ""
    """Why the share is None."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "names": self.names,
            "other_share": self.other_share,
            "other": [{"name": name, "share": share} for name, share in self.other],
            "reason": self.reason,
        }


def name_coverage(timelines: Sequence[Timeline], counters: Sequence[KernelCounters] = ()) -> NameCoverage:
    """Return the share of "other" over every kernel that was recorded, inside the marked steps or not.

    Of tables of counters, where not every kernel has a duration, elapsed cycles take its place.
    """
    total: Counter[str] = Counter()
    for timeline in timelines:
        times = kernel_times(timeline, copies=False, window="kernels")
        total.update(dict(zip(times.names, times.total_ns.tolist(), strict=True)))
    column = "duration_ns"
    if any(one.kernels["duration_ns"].isna().any() for one in counters):
        column = "cycles"
    for one in counters:
        weights = one.kernels.groupby("name", sort=False)[column].sum(min_count=1)
        lacking = one.kernels[column].isna().any()
        total.update({str(name): math.nan if lacking else float(value) for name, value in weights.items()})
    if not total:
        return NameCoverage(names=0, other_share=None, reason="no kernel of a GPU was recorded")
    everything = math.fsum(total.values())
    if not everything > 0:
        return NameCoverage(names=len(total), other_share=None, reason="the kernels have no times")
    other = {name: value / everything for name, value in total.items() if family(name) == OTHER}
    ordered = tuple(sorted(other.items(), key=lambda item: (-item[1], item[0])))
    return NameCoverage(names=len(total), other_share=math.fsum(other.values()), other=ordered)
