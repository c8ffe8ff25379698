"""Counters of kernels that Kineto's CUPTI range profiler left in a trace, in `cuda_profiler_range` events."""

import math
from collections import Counter
from collections.abc import Sequence

from analysis.counters import IDENTITY, KernelCounters
from analysis.readers.kineto_arguments import loose_json, whole_numbers
from analysis.readers.kineto_events import AnyEvent
from analysis.readers.kineto_tables import label

_UNITS = {".pct": "%", "bytes": "byte", "inst": "inst", "cycles": "cycle"}


def counters(
    counted: Sequence[tuple[AnyEvent, int, int]],
    *,
    process: int | None,
    device_names: dict[int, str],
    capabilities: dict[int, tuple[int, int]],
    problems: Sequence[str],
) -> KernelCounters:
    """Return one row per counted range, in order of time.

    The ranges are laid over the host's time when they were read, so that their durations are no kernel times: `cycles`
    and `duration_ns` are unknown. A range without a name is "__missing__".

    Args:
        counted: events, at least one, with their starts and durations, ns.
        process: the traced process.
        device_names: GPU names by number.
        capabilities: compute capabilities by number.
        problems: what of the trace could not be read.
    """
    import pandas as pd

    ordered = sorted(counted, key=lambda row: row[1])
    events = [event for event, _, _ in ordered]
    said = [found if isinstance(found := loose_json(event.args), dict) else {} for event in events]
    names = list(dict.fromkeys(str(name) for row in said for name in row if name not in IDENTITY))
    device = whole_numbers([event.pid for event in events], -1)
    used = Counter(device.tolist()).most_common(1)[0][0]
    table = pd.DataFrame(
        {
            "process": pd.Series([process if process is not None else -1] * len(events), dtype="int64"),
            "kernel_id": range(len(events)),
            "name": pd.Series([label(event.name) for event in events], dtype="str"),
            "device": pd.Series(device, dtype="Int64").mask(device < 0),
            "duration_ns": math.nan,
            "cycles": math.nan,
            **{name: [_number(row.get(name)) for row in said] for name in names},
        }
    )
    units = {name: next((unit for part, unit in _UNITS.items() if part in name), "") for name in names}
    return KernelCounters(table, units, device_names.get(used), capabilities.get(used), tuple(problems))


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan
