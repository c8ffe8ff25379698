"""Memory copies by direction: how many, how much, how fast, and how much of them computation hides."""

import re
from typing import TYPE_CHECKING

import numpy as np

from analysis.gpu_work import name_codes
from analysis.metrics.kernels.tables import in_window, is_kind
from analysis.metrics.time.intervals import inside_ns
from analysis.metrics.time.temporal import work_sets
from analysis.timeline import Timeline, empty

if TYPE_CHECKING:
    import pandas as pd

COPY_ROW_COLUMNS = {
    "rank": "Int64",
    "direction": "str",
    "host_memory": "str",
    "count": "int64",
    "bytes": "Int64",
    "total_ms": "float64",
    "bandwidth_gb_s": "float64",
    "overlapped_share": "float64",
}
_DIRECTION = re.compile(r"\b([hdap])(?:ost|evice|rray|eer)?to([hdap])", re.IGNORECASE)


def direction(name: str) -> str:
    """Return the direction of a copy by its name: HtoD, DtoH, DtoD, PtoP, HtoH, ..., memset, or "unknown"."""
    if "memset" in name.lower():
        return "memset"
    found = _DIRECTION.search(name)
    return f"{found[1].upper()}to{found[2].upper()}" if found else "unknown"


def host_memory(name: str) -> str:
    """Return "pageable" or "pinned" where the name of a copy says which the CPU's side is, "" where it does not."""
    lower = name.lower()
    return "pageable" if "pageable" in lower else "pinned" if "pinned" in lower else ""


def copy_rows(timeline: Timeline) -> "pd.DataFrame":
    """Return one row per direction and kind of host memory, longest first: COPY_ROW_COLUMNS.

    Of copies and memsets of the window (see kernel_tables). bytes is missing where the trace
    does not give every copy's, and bandwidth_gb_s (10^9 bytes per second of copying) with it; overlapped_share is the
    share of the copies' time in which the same rank computed.
    """
    import pandas as pd

    kept, _ = in_window(timeline)
    kept = kept & is_kind(timeline.kernels, "memcpy", "memset")
    if not kept.any():
        return empty(COPY_ROW_COLUMNS)
    copies = timeline.kernels[kept]
    starts, ends = copies["start"].to_numpy(dtype=np.int64), copies["end"].to_numpy(dtype=np.int64)
    hidden = inside_ns(work_sets(timeline).compute, starts, ends)
    moved = copies["bytes"].to_numpy() if "bytes" in copies.columns else np.full(len(copies), -1)
    codes, names = name_codes(copies["name"])
    keys = [(direction(name), host_memory(name)) for name in names]
    groups = sorted({keys[code] for code in np.unique(codes)})
    group = np.array([groups.index(key) if key in groups else -1 for key in keys])[codes]
    rows = []
    for index, (way, memory) in enumerate(groups):
        own = group == index
        length = int((ends - starts)[own].sum())
        known = bool((moved[own] > 0).all())
        size = int(moved[own].sum()) if known else None
        rows.append(
            {
                "rank": timeline.rank,
                "direction": way,
                "host_memory": memory,
                "count": int(own.sum()),
                "bytes": size,
                "total_ms": length / 1e6,
                "bandwidth_gb_s": size / length if size is not None and length else None,
                "overlapped_share": int(hidden[own].sum()) / length if length else None,
            }
        )
    rows.sort(key=lambda row: -float(row["total_ms"] or 0))
    return pd.DataFrame(rows).astype(COPY_ROW_COLUMNS)
