"""How far the ranks' clocks are apart: ranks on different hosts write their traces with different clocks.

All ranks leave one all_reduce at nearly the same moment. The difference of a rank's ends to the first rank's is thus
the offset of its clock, and their median over many collectives is robust against those that ended apart. Drift within
a trace is not modelled; the spread shows it. Times in a Timeline stay as they are: take the offset off them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from analysis.metrics.communication.matching import Matching
from analysis.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd

# In this order of trust; all_to_all may end at different times on ranks that receive different amounts.
_KINDS = (("all_reduce", "barrier"), ("all_gather", "reduce_scatter"), ("all_to_all",))


@dataclass(frozen=True, slots=True)
class ClockOffsets:
    """The clocks of n ranks against that of the first."""

    offsets_ns: tuple[int, ...]
    """What each rank's clock is ahead of the first one's; 0 where it is not known."""
    table: "pd.DataFrame"
    """One row per rank: rank, offset_us (NaN unknown), spread_us (median absolute deviation of the differences), p95_us
    (95th percentile of it), collectives (used), reason (why it is not known, or what to mind)."""


def clock_offsets(timelines: Sequence[Timeline], matching: Matching) -> ClockOffsets:
    """Return the offset of each rank's clock from collectives that it and the first rank took part in.

    Args:
        timelines: what readers returned, one per rank.
        matching: of `match_collectives`.
    """
    import pandas as pd

    offsets: list[int] = []
    rows = []
    for member, timeline in enumerate(timelines):
        differences, reason = _differences(matching, member)
        offset = int(np.median(differences)) if len(differences) else 0
        apart = np.abs(differences - offset)
        offsets.append(offset)
        rows.append(
            {
                "rank": timeline.rank,
                "offset_us": offset / 1e3 if len(differences) else None,
                "spread_us": float(np.median(apart)) / 1e3 if len(differences) else None,
                "p95_us": float(np.percentile(apart, 95)) / 1e3 if len(differences) else None,
                "collectives": len(differences),
                "reason": reason,
            }
        )
    columns = ["rank", "offset_us", "spread_us", "p95_us", "collectives", "reason"]
    frame = pd.DataFrame(rows, columns=columns).astype({"rank": "Int64"})
    times = dict.fromkeys(columns[1:4], "float64")
    return ClockOffsets(tuple(offsets), frame.astype(times))


def _differences(matching: Matching, member: int) -> tuple["np.ndarray[tuple[int], np.dtype[np.int64]]", str]:
    rows = matching.members
    for kinds in _KINDS:
        chosen = rows[rows["collective"].isin(kinds)]
        first = chosen[chosen["member"] == 0].set_index("match")["end"]
        own = chosen[chosen["member"] == member].set_index("match")["end"]
        common = own.index.intersection(first.index)
        if len(common):
            reason = "from all_to_all, which need not end together" if kinds == ("all_to_all",) else ""
            return (own.loc[common] - first.loc[common]).to_numpy(dtype=np.int64), reason
    return np.empty(0, dtype=np.int64), "no collective together with the first rank: its clock is taken as equal"
