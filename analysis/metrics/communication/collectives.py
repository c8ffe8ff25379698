"""What follows from the measurements of a collective, by size, as nccl-tests counts."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis.metrics.statistics import median_interval, percentile
from analysis.names import bus_factor
from records.kinds import CollectiveTest, read_measurements
from records.run import TrialDirectory
from records.trial import Trial


def by_size(trial: Trial, measurements: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per size and placement, in the order measured.

    time_us is the median over repetitions, with its 95 % interval (None below two); algbw = size / time and
    busbw = algbw x factor in 1e9 bytes/s, as nccl-tests' doc/PERFORMANCE.md defines them.

    Columns: collective, dtype, ranks, nodes, round, size_bytes, count, placement, repetitions, iterations, time_us,
    time_us_low, time_us_high, algbw_gb_s, busbw_gb_s, wrong.
    """
    name = CollectiveTest.of(trial).name
    about = {"collective": name, "dtype": trial.precision, "ranks": trial.world_size, "nodes": trial.nodes}
    groups: dict[tuple[int, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in measurements:
        groups[int(row["size_bytes"]), str(row["placement"])].append(row)
    made = []
    for (size, placement), rows in groups.items():
        times = [float(row["time_us"]) for row in rows]
        time = percentile(times, 50)
        low, high = (value if math.isfinite(value) else None for value in median_interval(times))
        bandwidth = size / time / 1e3 if time > 0 else None
        row = {**about, "round": trial.round, "size_bytes": size, "count": rows[0]["count"], "placement": placement}
        row |= {"repetitions": len(rows), "iterations": rows[0]["iterations"]}
        row |= {"time_us": time, "time_us_low": low, "time_us_high": high, "algbw_gb_s": bandwidth}
        row["busbw_gb_s"] = None if bandwidth is None else bandwidth * (bus_factor(name, trial.world_size) or 0.0)
        made.append({**row, "wrong": max(int(one["wrong"]) for one in rows)})
    return made


def summarize_collective(trial: Trial, directory: TrialDirectory) -> dict[str, Any]:
    """Return what a result records about a trial of kind comm: sizes, peak and mean bus bandwidth, wrong elements."""
    rows = by_size(trial, read_measurements(directory))
    bandwidths = [row["busbw_gb_s"] for row in rows if row["busbw_gb_s"] is not None]
    return {
        "sizes": len({row["size_bytes"] for row in rows}),
        "peak_busbw_gb_s": max(bandwidths, default=None),
        "avg_busbw_gb_s": sum(bandwidths) / len(bandwidths) if bandwidths else None,
        "wrong": sum(row["wrong"] for row in rows),
        "by_size": rows,
        "cautions": list(_cautions(rows)),
        "unknown": {},
        "per_rank": [],
    }


def _cautions(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    if wrong := sum(bool(row["wrong"]) for row in rows):
        yield {
            "code": "wrong_results",
            "message": f"{wrong} of {len(rows)} sizes have wrong elements",
            "remedy": "fix that first (driver, NCCL, a bad link or bad memory); until then no time counts",
        }
    known = [row for row in rows if row["time_us_low"] is not None and row["time_us"]]
    wide = sum((row["time_us_high"] - row["time_us_low"]) / 2 > 0.1 * row["time_us"] for row in known)
    if wide * 4 > len(rows):
        yield {
            "code": "interval_wide",
            "message": f"the interval of the median time is wider than ±10 % at {wide} of {len(rows)} sizes",
            "remedy": "use a quieter machine, or more --repetitions",
        }
