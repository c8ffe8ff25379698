"""Measured collectives by size, as nccl-tests counts, and the alpha-beta line of all-reduces.

docs/how-to/scaling.md derives both. The line is Hockney's model for the ring that reduces and then gathers, with n
ranks T(n, bytes) = 2(n-1) x alpha + 2(n-1)/n x bytes / bandwidth.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.metrics.statistics import median_interval, percentile
from analysis.names import bus_factor
from records.run import TrialDirectory
from records.trial import Trial

if TYPE_CHECKING:
    from analysis.load import LoadedTrial

FloatArray = npt.NDArray[np.float64]

FEWEST_SIZES = 4
"""Distinct sizes a line is fitted to at least: two parameters, and something left to judge them by."""
_FIT = ("alpha_us", "bandwidth_gb_s", "median_error", "largest_error", "largest_error_bytes")


def by_size(trial: Trial, measurements: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per size and placement, in the order measured.

    time_us is the median over repetitions, with its 95 % interval (None below two); algbw = size / time and
    busbw = algbw x factor in 1e9 bytes/s, as nccl-tests' doc/PERFORMANCE.md defines them.

    Columns: collective, dtype, ranks, nodes, round, size_bytes, count, placement, repetitions, iterations, time_us,
    time_us_low, time_us_high, algbw_gb_s, busbw_gb_s, wrong.
    """
    name = str(dict(trial.collective)["name"])
    factor = bus_factor(name, trial.world_size) or 0.0
    about = {"collective": name, "dtype": trial.precision, "ranks": trial.world_size, "nodes": trial.nodes}
    groups: dict[tuple[int, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in measurements:
        groups[int(row["size_bytes"]), str(row["placement"])].append(row)
    made = []
    for (size, placement), rows in groups.items():
        times = [float(row["time_us"]) for row in rows]
        time = percentile(times, 50)
        low, high = (value if math.isfinite(value) else None for value in median_interval(times))
        rate = size / time / 1e3 if time > 0 else None
        row = {**about, "round": trial.round, "size_bytes": size, "count": rows[0]["count"], "placement": placement}
        row |= {"repetitions": len(rows), "iterations": rows[0]["iterations"]}
        row |= {"time_us": time, "time_us_low": low, "time_us_high": high, "algbw_gb_s": rate}
        row |= {"busbw_gb_s": rate and rate * factor, "wrong": max(int(one["wrong"]) for one in rows)}
        made.append(row)
    return made


def summarize_collective(trial: Trial, directory: TrialDirectory) -> dict[str, Any]:
    """Return what a result records about a trial of kind comm: sizes, peak and mean bus bandwidth, wrong elements."""
    rows = by_size(trial, directory.read_collectives())
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
            "remedy": "use a quieter machine, or more --rounds",
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A fitted line; `reason` says why there is none, and what to do."""

    dtype: str
    device: str
    nodes: int
    """Nodes that the ranks were spread over."""
    points: Mapping[tuple[int, int], float]
    """What was fitted: the median over processes of their median times, us, by ranks and size in bytes."""
    alpha_us: float = math.nan
    bandwidth_gb_s: float = math.nan
    """What a link carries of endless messages in 1e9 bytes/s: where busbw levels off."""
    reason: str = ""

    def time_us(self, size_bytes: float, ranks: int) -> float:
        """Return the time that the line gives, us."""
        steps, volume = ring(ranks)
        return steps * self.alpha_us + volume * size_bytes / self.bandwidth_gb_s / 1e3


def ring(ranks: int) -> tuple[float, float]:
    """Return the steps of a ring and the part of the bytes that a link carries."""
    return 2.0 * (ranks - 1), 2 * (ranks - 1) / ranks


def fitted_links(trials: "Sequence[LoadedTrial]") -> list[Link]:
    """Return a line for each dtype, device and number of nodes; trials with wrong results count for nothing."""
    times: dict[tuple[str, str, int], dict[tuple[int, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        if trial.trial.kind == "comm" and trial.row["status"] == "ok" and not trial.row["wrong"]:
            for row in trial.row["by_size"]:
                if row["collective"] == "all_reduce" and row["time_us"] > 0:
                    key = (row["dtype"], trial.trial.device, row["nodes"])
                    times[key][row["ranks"], row["size_bytes"]].append(row["time_us"])
    links = []
    for (dtype, device, nodes), measured in sorted(times.items()):
        points = {place: float(np.median(values)) for place, values in sorted(measured.items())}
        links.append(Link(dtype=dtype, device=device, nodes=nodes, points=points, **_fitted(points)))
    return links


def _fitted(points: Mapping[tuple[int, int], float]) -> dict[str, Any]:
    """Return alpha_us and bandwidth_gb_s that minimize relative errors, so that small sizes count; or a reason."""
    (ranks, sizes), measured = np.array([*points]).T, np.array([*points.values()])
    terms, distinct = np.array([ring(count) for count in ranks.tolist()]), len(set(sizes.tolist()))
    line = _line(terms[:, 0], terms[:, 1] * sizes, measured) if distinct >= FEWEST_SIZES else None
    if line is None:
        what = f"no line with alpha and bandwidth above 0 fits {distinct} sizes"
        return {"reason": f"{what}: measure more sizes (a smaller --factor) on a quieter machine"}
    alpha, slope = line
    if sizes.max() / ranks.max() * slope <= alpha:
        why = f"latency outweighs the transfer even at {sizes.max():,} bytes: measure larger sizes (--max-bytes)"
        return {"reason": why}
    return {"alpha_us": alpha, "bandwidth_gb_s": 1e-3 / slope}


def alpha_beta(sizes: FloatArray, times_us: FloatArray) -> tuple[float, float, float] | None:
    """Return alpha in us, bandwidth in 1e9 bytes/s as algbw counts, and the median relative error, of one test's times.

    None with fewer than three sizes above 0, or where no line with both above 0 fits.
    """
    usable = (sizes > 0) & (times_us > 0) & np.isfinite(times_us)
    sizes, times_us = sizes[usable], times_us[usable]
    if len(np.unique(sizes)) < 3 or (line := _line(np.ones_like(sizes), sizes, times_us)) is None:
        return None
    alpha, slope = line
    return alpha, 1e-3 / slope, float(np.median(np.abs((alpha + slope * sizes) / times_us - 1)))


def _line(steps: FloatArray, volume: FloatArray, times: FloatArray) -> tuple[float, float] | None:
    """Return the costs of a step and of a byte, us, that minimize the squared relative errors; None unless above 0."""
    terms = np.column_stack([steps, volume]) / times[:, None]
    scale = terms.max(axis=0)
    alpha, slope = np.linalg.lstsq(terms / scale, np.ones(len(times)), rcond=None)[0] / scale
    return (float(alpha), float(slope)) if alpha > 0 and slope > 0 else None


def link_rows(links: Sequence[Link]) -> list[dict[str, Any]]:
    """Return dtype, device, ranks ("2 4"), nodes, sizes and reason of each line, and, None without a line, alpha_us,
    bandwidth_gb_s, median_error, largest_error, largest_error_bytes."""
    rows = []
    for link in links:
        ranks, sizes = ({place[part] for place in link.points} for part in (0, 1))
        row: dict[str, Any] = {"dtype": link.dtype, "device": link.device, "ranks": " ".join(map(str, sorted(ranks)))}
        row |= {"nodes": link.nodes, "sizes": len(sizes), "reason": link.reason, **dict.fromkeys(_FIT)}
        if not link.reason:
            errors = [(link.time_us(size, count) / time - 1, size) for (count, size), time in link.points.items()]
            largest = max(errors, key=lambda error: abs(error[0]))
            typical = float(np.median([abs(error) for error, _ in errors]))
            row |= dict(zip(_FIT, (link.alpha_us, link.bandwidth_gb_s, typical, *largest), strict=True))
        rows.append(row)
    return rows
