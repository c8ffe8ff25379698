"""A line through the measured times of a collective: what a message costs (alpha) and what its bytes do (beta).

Hockney's model, T = alpha + bytes x beta, for the ring that reduces and then gathers: with n ranks an all-reduce has
2(n-1) steps, each with a message of bytes/n,

    T(n, bytes) = 2(n-1) x alpha + 2(n-1)/n x bytes / bandwidth

(Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in MPICH", IJHPCA 19(1);
Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69(2): no
algorithm moves fewer bytes). The time to add numbers up is in the bandwidth. Reduce-scatter and all-gather are half of
it each. A broadcast is a line per number of ranks. Needs numpy only.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.load import LoadedTrial
from analysis.metrics.statistics import block_medians, student_quantile
from records.kinds import CollectiveTest, read_measurements

FloatArray = npt.NDArray[np.float64]

FEWEST_SIZES = 4
"""Distinct sizes a line is fitted to at least: two parameters, and something left to judge them by."""
RESAMPLES = 1000
"""Draws of the bootstrap."""

_NAMES = ("collective", "dtype", "placement", "device", "nodes")
# Huber's constant: residuals beyond so many robust deviations count by their sign only; 95 % efficient on normal ones.
_HUBER = 1.345
_ROUNDS = 20
# A clock's own jitter: residuals are never taken to be smaller.
_SMALLEST_DEVIATION = 1e-3


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured of one collective at one size on one number of ranks."""

    ranks: int
    size_bytes: int
    times_us: tuple[FloatArray, ...]
    """Times of one operation in us, an array of repetitions per process."""

    @property
    def time_us(self) -> float:
        """Median over processes of their median."""
        return float(np.median([np.median(times) for times in self.times_us]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A fitted line, with how well it is known; `reason` says why there is none."""

    collective: str
    """Name in records.kinds.COLLECTIVES."""
    dtype: str
    """fp32, fp16 or bf16."""
    placement: str
    """in_place or out_of_place."""
    device: str
    """cpu or cuda."""
    nodes: int
    """Nodes that the ranks were spread over."""
    points: tuple[Point, ...]
    """What was fitted, by ranks and size."""
    alpha_us: float = math.nan
    """Cost of one message without length in us."""
    bandwidth_gb_s: float = math.nan
    """What a link carries of endless messages in 1e9 bytes/s: where busbw levels off."""
    draws: FloatArray | None = None
    """[RESAMPLES, 2]: alpha in us and us per byte of resampled measurements."""
    reason: str = ""
    """Why nothing could be fitted, and what to do; empty where it was."""

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
        measured = np.array([point.time_us for point in self.points])
        fitted = [self.time_us(point.size_bytes, point.ranks) for point in self.points]
        return np.asarray(np.array(fitted) / measured - 1, dtype=np.float64)

    @property
    def caution(self) -> str:
        """Why the bandwidth is not to be believed: no size was large enough that its bytes took most of the time."""
        if self.reason:
            return ""
        largest, ranks = self.sizes[-1], self.ranks[-1]
        waiting = ring(self.collective, ranks)[0] * self.alpha_us
        if self.time_us(largest, ranks) - waiting > waiting:
            return ""
        return (
            f"even at the largest size, {largest:,} bytes, latency takes at least as long as the transfer: the "
            "bandwidth is that of small messages, not of the link; measure larger sizes (--max-bytes)"
        )

    def time_us(self, size_bytes: float, ranks: int) -> float:
        """Time the line gives in us."""
        steps, volume = ring(self.collective, ranks)
        return steps * self.alpha_us + volume * size_bytes / self.bandwidth_gb_s / 1e3

    def interval(self, what: str) -> tuple[float, float]:
        """Return the 95 % interval of "alpha_us" or "bandwidth_gb_s"."""
        assert self.draws is not None
        values = self.draws[:, 0] if what == "alpha_us" else 1e-3 / self.draws[:, 1]
        low, high = np.percentile(values, (2.5, 97.5))
        return float(low), float(high)

    def drawn_us(self, size_bytes: FloatArray, ranks: int, random: np.random.Generator) -> FloatArray:
        """Return [RESAMPLES, len(size_bytes)] times in us: lines as uncertain as the fit is, as wrong as it was.

        In each draw all sizes are off by the same residual, because adjacent sizes deviate alike.
        """
        assert self.draws is not None
        steps, volume = ring(self.collective, ranks)
        lines = steps * self.draws[:, :1] + volume * size_bytes * self.draws[:, 1:]
        missed = 1 / (1 + random.choice(self.errors, len(self.draws)))
        return np.asarray(lines * missed[:, None], dtype=np.float64)


def ring(collective: str, ranks: int) -> tuple[float, float]:
    """Return the steps of a ring and the part of the bytes that a link carries."""
    if collective == "all_reduce":
        return 2.0 * (ranks - 1), 2 * (ranks - 1) / ranks
    if collective in ("reduce_scatter", "all_gather"):
        return ranks - 1.0, (ranks - 1) / ranks
    return 1.0, 1.0


def fitted_links(trials: Sequence[LoadedTrial]) -> list[Link]:
    """Return a line for each collective, dtype, placement, device and number of nodes that was measured.

    Trials with wrong results count for nothing. A broadcast has a line per number of ranks.

    Raises:
        SchemaError: a trial's collectives.csv is damaged.
    """
    times: dict[tuple[Any, ...], dict[tuple[int, int], list[FloatArray]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        if trial.trial.kind != "comm" or trial.row["status"] != "ok" or trial.row["wrong"]:
            continue
        name, ranks = CollectiveTest.of(trial.trial).name, trial.trial.world_size
        apart = ranks if name == "broadcast" else 0
        own: dict[tuple[str, int], list[float]] = defaultdict(list)
        for row in read_measurements(trial.directory):
            own[row["placement"], row["size_bytes"]].append(row["time_us"])
        for (placement, size), values in own.items():
            key = (name, trial.trial.precision, placement, trial.trial.device, trial.trial.nodes, apart)
            times[key][ranks, size].append(np.array(values))
    found = []
    for (name, dtype, placement, device, nodes, _), measured in sorted(times.items()):
        points = tuple(Point(ranks, size, tuple(values)) for (ranks, size), values in sorted(measured.items()))
        found.append(
            fit(Link(collective=name, dtype=dtype, placement=placement, device=device, nodes=nodes, points=points))
        )
    return found


def fit(link: Link, smallest: float = 0.0, largest: float = math.inf, seed: int = 0) -> Link:
    """Return the link with its line, fitted to relative errors: small sizes count as large ones do.

    Huber's M-estimator, found by reweighting, so that single odd sizes bend nothing. The interval resamples sizes, and
    for each size its repetitions; as it draws from few sizes, the draws are spread by Student's t over what two
    parameters leave. Processes that differ as a whole shift the whole line.

    Args:
        link: its points are fitted, whatever line it has.
        smallest: sizes below are left out, in bytes.
        largest: sizes above are left out.
        seed: of the bootstrap.
    """
    points = tuple(point for point in link.points if smallest <= point.size_bytes <= largest and point.time_us > 0)
    bare = {name: getattr(link, name) for name in _NAMES}
    sizes = {point.size_bytes for point in points}
    if len(sizes) < FEWEST_SIZES:
        why = (
            f"a line needs {FEWEST_SIZES} sizes, but {len(sizes)} {'was' if len(sizes) == 1 else 'were'} measured: use "
            "a smaller --factor or a wider range"
        )
        return Link(**bare, points=points, reason=why)
    terms = np.array([ring(link.collective, point.ranks) for point in points])
    steps, volume = terms[:, 0], terms[:, 1] * [point.size_bytes for point in points]
    random = np.random.default_rng(seed)
    line = _solve(steps, volume, np.array([[point.time_us for point in points]]))[0]
    if not (np.isfinite(line).all() and (line > 0).all()):
        why = (
            "no line with a latency and a bandwidth above 0 fits these times: measure more sizes, small and large "
            "ones, on a quieter machine"
        )
        return Link(**bare, points=points, reason=why)
    levels = np.stack([_drawn_level(point, random) for point in points], axis=1)
    drawn = random.integers(0, len(points), (RESAMPLES, len(points)))
    lines = _solve(steps[drawn], volume[drawn], np.take_along_axis(levels, drawn, axis=1))
    lines = lines[np.isfinite(lines).all(axis=1) & (lines > 0).all(axis=1)]
    # Draws that have no line are of sizes too much alike: the others stand for them.
    lines = lines[random.integers(0, len(lines), RESAMPLES)] if len(lines) else np.tile(line, (RESAMPLES, 1))
    free = len(points) - 2
    wider = math.sqrt(len(points) / free) * student_quantile(0.95, free) / student_quantile(0.95, 1e6)
    lines = line * (lines / line) ** wider
    lines *= _process_factors(points, random)[:, None]
    return Link(
        **bare, points=points, alpha_us=float(line[0]), bandwidth_gb_s=float(1e-3 / line[1]), draws=lines
    )  # fmt: skip


def _drawn_level(point: Point, random: np.random.Generator) -> FloatArray:
    """[RESAMPLES]: the time of a point of resampled repetitions in each process, the median over its processes."""
    medians = [block_medians(times, RESAMPLES, random) for times in point.times_us]
    return np.asarray(np.median(medians, axis=0), dtype=np.float64)


def _process_factors(points: Sequence[Point], random: np.random.Generator) -> FloatArray:
    """[RESAMPLES]: how far off the processes are that were measured, all sizes of a process alike.

    A process is fast or slow as a whole, so its sizes say the same thing as often as there are sizes. Student's t of
    the processes' mean distances from the points, for each number of ranks; ranks count as the points they have.
    """
    logs = np.zeros(RESAMPLES)
    for ranks in sorted({point.ranks for point in points}):
        own = [point for point in points if point.ranks == ranks]
        processes = min(len(point.times_us) for point in own)
        if processes < 2:
            continue
        far = [[np.log(np.median(times) / point.time_us) for times in point.times_us[:processes]] for point in own]
        deviation = float(np.std(np.mean(far, axis=0), ddof=1)) / math.sqrt(processes)
        logs += len(own) / len(points) * deviation * random.standard_t(processes - 1, RESAMPLES)
    return np.asarray(np.exp(logs), dtype=np.float64)


def alpha_beta(sizes: FloatArray, times_us: FloatArray) -> tuple[float, float, float] | None:
    """Return alpha in us, bandwidth in 1e9 bytes/s as algbw counts, and the median relative error, of one test's times.

    None with fewer than three sizes above 0, or where no line with both above 0 fits.
    """
    kept = (sizes > 0) & (times_us > 0) & np.isfinite(times_us)
    sizes, times_us = sizes[kept], times_us[kept]
    if len(np.unique(sizes)) < 3:
        return None
    alpha, slope = _solve(np.ones_like(sizes), sizes, times_us[None, :])[0]
    if not (np.isfinite(alpha) and np.isfinite(slope)) or alpha <= 0 or slope <= 0:
        return None
    error = np.median(np.abs((alpha + slope * sizes) / times_us - 1))
    return float(alpha), float(1e-3 / slope), float(error)


def _solve(steps: FloatArray, volume: FloatArray, times: FloatArray) -> FloatArray:
    """[draws, 2]: alpha and time per byte of each row of `times` [draws, points]; NaN where the sizes tell no line."""
    scale = float(volume.max())
    first, second = np.broadcast_to(steps / times, times.shape), np.broadcast_to(volume / scale / times, times.shape)
    weights = np.ones_like(times)
    found = np.full((len(times), 2), np.nan)
    for _ in range(_ROUNDS):
        a, b, c = ((weights * x).sum(axis=1) for x in (first * first, first * second, second * second))
        p, q = (weights * first).sum(axis=1), (weights * second).sum(axis=1)
        determinant = a * c - b * b
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.stack([(p * c - q * b) / determinant, (q * a - p * b) / determinant], axis=1)
        found[determinant <= 1e-12 * a * c] = np.nan
        residuals = np.abs(found[:, :1] * first + found[:, 1:] * second - 1)
        deviation = np.maximum(1.4826 * np.median(residuals, axis=1, keepdims=True), _SMALLEST_DEVIATION)
        weights = np.minimum(1.0, _HUBER * deviation / np.maximum(residuals, 1e-12))
        weights[~np.isfinite(weights)] = 1.0
    return np.asarray(found / [1.0, scale], dtype=np.float64)


def link_rows(links: Sequence[Link]) -> list[dict[str, Any]]:
    """Return the lines as plain values, None for what is not known.

    Columns: collective, dtype, placement, device, ranks ("2 4"), nodes, sizes, alpha_us, alpha_us_low, alpha_us_high,
    bandwidth_gb_s, bandwidth_gb_s_low, bandwidth_gb_s_high, median_error, largest_error, largest_error_bytes, caution,
    reason.
    """
    return [_row(link) for link in links]


def _row(link: Link) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(link, name) for name in _NAMES}
    row |= {"ranks": " ".join(map(str, link.ranks)), "sizes": len(link.sizes)}
    for name in ("alpha_us", "bandwidth_gb_s"):
        low, high = (None, None) if link.reason else link.interval(name)
        row |= {name: None if link.reason else getattr(link, name), f"{name}_low": low, f"{name}_high": high}
    row |= dict.fromkeys(("median_error", "largest_error", "largest_error_bytes"))
    if not link.reason:
        errors = link.errors
        worst = int(np.abs(errors).argmax())
        row |= {"median_error": float(np.median(np.abs(errors))), "largest_error": float(errors[worst])}
        row["largest_error_bytes"] = link.points[worst].size_bytes
    return {**row, "caution": link.caution, "reason": link.reason}


def residual_rows(links: Sequence[Link]) -> list[Mapping[str, Any]]:
    """Return measured and fitted time of every point: collective, dtype, placement, nodes, ranks, size_bytes, time_us,
    fitted_us, error (fitted / measured - 1); of links that have a line.
    """
    return [
        {
            **{name: getattr(link, name) for name in ("collective", "dtype", "placement", "nodes")},
            "ranks": point.ranks,
            "size_bytes": point.size_bytes,
            "time_us": point.time_us,
            "fitted_us": link.time_us(point.size_bytes, point.ranks),
            "error": float(error),
        }
        for link in links
        if not link.reason
        for point, error in zip(link.points, link.errors, strict=True)
    ]
