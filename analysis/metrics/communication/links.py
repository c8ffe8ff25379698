"""The alpha-beta line of measured all-reduces: what a message costs (alpha) and what its bytes do (beta).

Hockney's model, T = alpha + bytes x beta, for the ring that reduces and then gathers: with n ranks it has 2(n-1) steps,
each with a message of bytes/n,

    T(n, bytes) = 2(n-1) x alpha + 2(n-1)/n x bytes / bandwidth

(Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in MPICH", IJHPCA 19(1);
Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2): no
algorithm moves fewer bytes). The time to add numbers up is in the bandwidth.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.load import LoadedTrial

FloatArray = npt.NDArray[np.float64]

FEWEST_SIZES = 4
"""Distinct sizes a line is fitted to at least: two parameters, and something left to judge them by."""


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at one size on one number of ranks."""

    ranks: int
    size_bytes: int
    time_us: float
    """Median over processes of the medians of their repetitions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A fitted line; `reason` says why there is none, and what to do."""

    dtype: str
    device: str
    nodes: int
    """Nodes that the ranks were spread over."""
    points: tuple[Point, ...]
    """What was fitted, by ranks and size."""
    alpha_us: float = math.nan
    bandwidth_gb_s: float = math.nan
    """What a link carries of endless messages in 1e9 bytes/s: where busbw levels off."""
    reason: str = ""

    @property
    def ranks(self) -> tuple[int, ...]:
        """Numbers of ranks measured, ascending."""
        return tuple(sorted({point.ranks for point in self.points}))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes measured, ascending."""
        return tuple(sorted({point.size_bytes for point in self.points}))

    @property
    def errors(self) -> FloatArray:
        """Fitted / measured - 1, per point."""
        return np.array([self.time_us(point.size_bytes, point.ranks) / point.time_us - 1 for point in self.points])

    def time_us(self, size_bytes: float, ranks: int) -> float:
        """Return the time that the line gives, us."""
        steps, volume = ring(ranks)
        return steps * self.alpha_us + volume * size_bytes / self.bandwidth_gb_s / 1e3


def ring(ranks: int) -> tuple[float, float]:
    """Return the steps of a ring and the part of the bytes that a link carries."""
    return 2.0 * (ranks - 1), 2 * (ranks - 1) / ranks


def fitted_links(trials: Sequence[LoadedTrial]) -> list[Link]:
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
        points = tuple(Point(*place, float(np.median(values))) for place, values in sorted(measured.items()))
        links.append(_fitted(Link(dtype=dtype, device=device, nodes=nodes, points=points)))
    return links


def _fitted(link: Link) -> Link:
    """Return the link with its line, fitted to relative errors: small sizes count as large ones do."""
    if len(link.sizes) < FEWEST_SIZES:
        why = f"{len(link.sizes)} sizes were measured, a line needs {FEWEST_SIZES}: use a smaller --factor"
        return dataclasses.replace(link, reason=why)
    terms = np.array([ring(point.ranks) for point in link.points])
    sizes, measured = (np.array([getattr(point, name) for point in link.points]) for name in ("size_bytes", "time_us"))
    alpha, slope = _line(terms[:, 0], terms[:, 1] * sizes, measured)
    why = ""
    if not (alpha > 0 and slope > 0):
        why = "no line with a latency and a bandwidth above 0 fits: measure more sizes on a quieter machine"
    elif link.sizes[-1] / link.ranks[-1] * slope <= alpha:
        why = f"latency outweighs the transfer even at {link.sizes[-1]:,} bytes: measure larger sizes (--max-bytes)"
    if why:
        return dataclasses.replace(link, reason=why)
    return dataclasses.replace(link, alpha_us=alpha, bandwidth_gb_s=1e-3 / slope)


def alpha_beta(sizes: FloatArray, times_us: FloatArray) -> tuple[float, float, float] | None:
    """Return alpha in us, bandwidth in 1e9 bytes/s as algbw counts, and the median relative error, of one test's times.

    None with fewer than three sizes above 0, or where no line with both above 0 fits.
    """
    usable = (sizes > 0) & (times_us > 0) & np.isfinite(times_us)
    sizes, times_us = sizes[usable], times_us[usable]
    if len(np.unique(sizes)) < 3:
        return None
    alpha, slope = _line(np.ones_like(sizes), sizes, times_us)
    if not (alpha > 0 and slope > 0):
        return None
    return alpha, 1e-3 / slope, float(np.median(np.abs((alpha + slope * sizes) / times_us - 1)))


def _line(steps: FloatArray, volume: FloatArray, times: FloatArray) -> tuple[float, float]:
    """Return the cost of a step in us and of a byte in us that minimize the squares of the relative errors."""
    terms = np.column_stack([steps, volume]) / times[:, None]
    scale = terms.max(axis=0)
    alpha, slope = np.linalg.lstsq(terms / scale, np.ones(len(times)), rcond=None)[0] / scale
    return float(alpha), float(slope)


def link_rows(links: Sequence[Link]) -> list[dict[str, Any]]:
    """Return the lines as plain values: dtype, device, ranks ("2 4"), nodes, sizes, reason, and, None without a line,
    alpha_us, bandwidth_gb_s, median_error, largest_error, largest_error_bytes.
    """
    rows = []
    for link in links:
        row: dict[str, Any] = {"dtype": link.dtype, "device": link.device, "ranks": " ".join(map(str, link.ranks))}
        row |= {"nodes": link.nodes, "sizes": len(link.sizes), "reason": link.reason}
        row |= dict.fromkeys(("alpha_us", "bandwidth_gb_s", "median_error", "largest_error", "largest_error_bytes"))
        if not link.reason:
            errors = link.errors
            worst = int(np.abs(errors).argmax())
            row |= {"alpha_us": link.alpha_us, "bandwidth_gb_s": link.bandwidth_gb_s}
            row |= {"median_error": float(np.median(np.abs(errors))), "largest_error": float(errors[worst])}
            row["largest_error_bytes"] = link.points[worst].size_bytes
        rows.append(row)
    return rows
