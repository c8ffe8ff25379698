"""SM and tensor-pipe utilization over time, from hardware counters that PyTorch's profiler sampled (CUPTI)."""

import re
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from analysis.timeline import Timeline, empty, named

if TYPE_CHECKING:
    import pandas as pd

SAMPLED_COLUMNS = {
    "rank": "Int64",
    "part": "int64",
    "begin_ms": "float64",
    "samples": "int64",
    "sm_utilization": "float64",
    "tensor_utilization": "float64",
}
_COUNTERS = {
    "sm_utilization": re.compile(r"sm__(?:cycles_active|throughput)\b.*pct_of_peak_sustained"),
    "tensor_utilization": re.compile(r"sm__\w*pipe_tensor.*pct_of_peak_sustained"),
}
_PARTS = 20


def sampled_utilization(timeline: Timeline) -> "pd.DataFrame":
    """Return means over the samples of each part of a trace: SAMPLED_COLUMNS, utilization as a fraction of the peak.

    Parts are the marked steps, by their number, or else _PARTS equal times from the first sample to the last; begin_ms
    counts from the first part. NaN where a part has no sample of the counter.
    """
    import pandas as pd

    samples = timeline.samples
    chosen = {name: named(samples["name"], partial(_is_match, pattern)) for name, pattern in _COUNTERS.items()}
    if not len(samples) or not any(rows.any() for rows in chosen.values()):
        return empty(SAMPLED_COLUMNS)
    start, steps = samples["start"].to_numpy(dtype=np.int64), timeline.steps
    if len(steps):
        numbers, begins, ends = (steps[name].to_numpy(dtype=np.int64) for name in ("step", "start", "end"))
    else:
        bounds = np.linspace(0, int(start.max() - start.min()) + 1, _PARTS + 1).astype(np.int64) + start.min()
        numbers, begins, ends = np.arange(_PARTS), bounds[:-1], bounds[1:]
    place = np.searchsorted(begins, start, side="right") - 1
    inside = (place >= 0) & (start < ends[place])
    values = samples["value"].to_numpy() / 100
    frame = pd.DataFrame({"rank": timeline.rank, "part": numbers, "begin_ms": (begins - begins[0]) / 1e6})
    frame["samples"] = np.bincount(place[inside & np.any([*chosen.values()], axis=0)], minlength=len(numbers))
    for name, rows in chosen.items():
        own = inside & rows
        counts = np.bincount(place[own], minlength=len(numbers))
        sums = np.bincount(place[own], weights=values[own], minlength=len(numbers))
        frame[name] = np.divide(sums, counts, out=np.full(len(numbers), np.nan), where=counts > 0)
    return frame.astype(SAMPLED_COLUMNS)


def _is_match(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.match(name) is not None
