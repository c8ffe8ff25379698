"""What a link carries, to compare the bus bandwidth of a trace's collectives with: measured, or published.

Measured rates are bus bandwidths of the same collective on as many ranks, by nccl-tests or by `bertbench comm`, at
the size of the trace's messages. Published ones are what the links of one GPU carry in one direction, by its vendor's
data sheet; they hold inside one node only. Needs numpy only.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.counters import Summary
from analysis.timeline import ProcessGroup, Timeline

# 1e9 bytes/s in one direction, all links of one GPU together; data sheets give the sum of both directions.
_PUBLISHED: tuple[tuple[str, float, str], ...] = (
    (r"G?B[23]00\b", 900, "NVLink 5"),
    (r"H100 80GB HBM3|H200\b|H20\b|GH200\b", 450, "NVLink 4"),
    (r"H800\b", 200, "NVLink 4"),
    (r"A100-SXM4-\d+GB", 300, "NVLink 3"),
    (r"A800-SXM4-\d+GB", 200, "NVLink 3"),
    (r"V100-SXM[23]-\d+GB", 150, "NVLink 2"),
    (r"P100-SXM2-\d+GB", 80, "NVLink 1"),
    (r"MI3(?:00X|25X)\b", 448, "Infinity Fabric, 7 links"),
)


@dataclass(frozen=True, slots=True)
class LinkRate:
    """One rate to compare with."""

    gb_s: float
    """1e9 bytes/s, as bus bandwidths."""
    source: str
    """Where it is from: "measured (nccl-tests, 8 ranks)" or "published (NVLink 3)"."""


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Measured bus bandwidths by collective and number of ranks."""

    measured: Mapping[tuple[str, int], Sequence[tuple[int, float]]]
    """Size in bytes and the best bus bandwidth at it, 1e9 bytes/s, in order of size."""
    sources: Mapping[tuple[str, int], str]
    """Who measured it."""

    @classmethod
    def of(cls, summaries: Iterable[Summary] = (), rows: Iterable[Mapping[str, Any]] = ()) -> "LinkRates":
        """Return what tests have measured; those without a number of ranks, or with wrong results, count for nothing.

        Args:
            summaries: of a file each; those of nccl-tests are taken.
            rows: of `collectives.by_size`, of the suite's own trials.
        """
        best: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
        sources: dict[tuple[str, int], str] = {}

        def take(row: Mapping[Any, Any], ranks: int, source: str) -> None:
            rate, key = row["busbw_gb_s"], (str(row["collective"]), ranks)
            if rate and rate > 0 and row["size_bytes"] > 0 and not row["wrong"] > 0:
                sizes = best[key]
                sizes[int(row["size_bytes"])] = max(float(rate), sizes.get(int(row["size_bytes"]), 0.0))
                sources.setdefault(key, source)

        for own_row in rows:  # the suite's own come first: they are of this machine
            take(own_row, int(own_row["ranks"]), "bertbench comm")
        own = set(best)
        for summary in summaries:
            ranks = int(summary.facts.get("ranks") or 0) if summary.what == "collectives" else 0
            for row in summary.table.to_dict("records") if ranks else []:
                if (str(row["collective"]), ranks) not in own:
                    take(row, ranks, "nccl-tests")
        return cls({key: sorted(sizes.items()) for key, sizes in best.items()}, sources)

    def rate(self, timeline: Timeline, collective: str, group: ProcessGroup, size_bytes: float) -> LinkRate | None:
        """Return what the links carry for a collective of one group; None where nothing says it.

        Between two measured sizes it is interpolated in the logarithm of the size; beyond the largest it is that of
        the largest, and below the smallest unknown.

        Args:
            timeline: the trace.
            collective: of names.COLLECTIVES.
            group: its ranks.
            size_bytes: of one call, as COLLECTIVE_COLUMNS counts.
        """
        points = self.measured.get((collective, group.size), ())
        if points and size_bytes >= points[0][0]:
            sizes, rates = (np.array(values, dtype=float) for values in zip(*points, strict=True))
            found = float(np.interp(np.log(size_bytes), np.log(sizes), rates))
            return LinkRate(found, f"measured ({self.sources[collective, group.size]}, {group.size} ranks)")
        names = set(timeline.devices.values())
        if len(names) != 1 or not in_one_node(timeline, group):
            return None
        return published_rate(names.pop())


def published_rate(device_name: str) -> LinkRate | None:
    """Return the published rate of a GPU's links in one direction; None for one that is not in the table.

    Args:
        device_name: what the driver calls it, such as "NVIDIA A100-SXM4-80GB".
    """
    for pattern, rate, links in _PUBLISHED:
        if re.search(rf"(?<!\w){pattern}", device_name) and not re.search(r"PCIe|\bMIG\b|NVL", device_name, re.I):
            return LinkRate(rate, f"published ({links})")
    return None


def in_one_node(timeline: Timeline, group: ProcessGroup) -> bool:
    """Return whether a group is within one node, as far as a trace says: all of the job is, or, with ranks in the
    order of nodes, its ranks are in one block of as many as the trace has GPUs."""
    visible = len(timeline.devices)
    if timeline.world_size is not None and timeline.world_size <= visible:
        return True
    return visible > 1 and len(group.ranks) > 0 and len({rank // visible for rank in group.ranks}) == 1
