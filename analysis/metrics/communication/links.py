"""The alpha-beta line of measured all-reduces, and what it says of training on more devices.

docs/explanation/scaling.md derives both. The line is Hockney's model for the ring that reduces and then gathers, with n
ranks T(n, bytes) = 2(n-1) x alpha + 2(n-1)/n x bytes / bandwidth. The projection is a model of data-parallel training:
step(N) = work + exposed(N), where work is the measured step on the most devices less its exposed communication, and
exposed(N) is how long after the backward pass the last bucket of gradients has been reduced: buckets are ready at the
measured moments, and their all-reduces take, one after another, what the line gives for N ranks.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.load import Key, LoadedTrial, circumstances
from analysis.metrics.scaling import strategy_of
from analysis.wording import bucket_mib
from common.errors import UsageError

FloatArray = npt.NDArray[np.float64]

FEWEST_SIZES = 4
"""Distinct sizes a line is fitted to at least: two parameters, and something left to judge them by."""
FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20
_NAMES = (
    "task", "task_options", "implementation", "levers", "preset", "precision", "seq_len", "micro_batch_size",
    "grad_accum_steps", "device", "activation_checkpointing",
)  # fmt: skip
_VALUES = (
    "step_time_ms", "samples_per_second", "efficiency", "work_ms", "all_reduce_ms", "exposed_ms", "buckets",
    "measured_step_time_ms", "error",
)  # fmt: skip


class Point(NamedTuple):
    """What was measured at one size on one number of ranks: the median over processes of their medians."""

    ranks: int
    size_bytes: int
    time_us: float


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
        links.append(Link(dtype=dtype, device=device, nodes=nodes, points=points, **_fitted(points)))
    return links


def _fitted(points: Sequence[Point]) -> dict[str, Any]:
    """Return alpha_us and bandwidth_gb_s that minimize relative errors, so that small sizes count; or a reason."""
    ranks, sizes, measured = (np.array(values) for values in zip(*points, strict=True))
    distinct = len(set(sizes.tolist()))
    if distinct < FEWEST_SIZES:
        return {"reason": f"{distinct} sizes were measured, a line needs {FEWEST_SIZES}: use a smaller --factor"}
    terms = np.array([ring(count) for count in ranks.tolist()])
    alpha, slope = _line(terms[:, 0], terms[:, 1] * sizes, measured)
    if not (alpha > 0 and slope > 0):
        return {"reason": "no line with alpha and bandwidth above 0 fits: measure more sizes on a quieter machine"}
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
        row |= {"nodes": link.nodes, "sizes": len({point.size_bytes for point in link.points}), "reason": link.reason}
        row |= dict.fromkeys(("alpha_us", "bandwidth_gb_s", "median_error", "largest_error", "largest_error_bytes"))
        if not link.reason:
            errors = link.errors
            worst = int(np.abs(errors).argmax())
            row |= {"alpha_us": link.alpha_us, "bandwidth_gb_s": link.bandwidth_gb_s}
            row |= {"median_error": float(np.median(np.abs(errors))), "largest_error": float(errors[worst])}
            row["largest_error_bytes"] = link.points[worst].size_bytes
        rows.append(row)
    return rows


class Backward(NamedTuple):
    """What one backward pass hands over: buckets in the order of their all-reduces."""

    bucket_bytes: FloatArray
    ready_ms: FloatArray
    """When the last gradient of each is ready, since the pass began."""
    backward_ms: float

    def exposed_ms(self, reduce_ms: FloatArray) -> float:
        """Return how long after the pass the last bucket has been reduced, each all-reduce after the one before."""
        free = 0.0
        for ready, duration in zip(self.ready_ms, reduce_ms, strict=True):
            free = max(free, float(ready)) + float(duration)
        return max(free - self.backward_ms, 0.0)


def backward_pass(record: Mapping[str, Any], bucket_mib: int | None = None) -> Backward:
    """Return the buckets of what bench.run.measure.backward_timeline wrote; without a cap in MiB they are PyTorch's."""
    sizes, ready = record["bytes"], record["ready_ms"]
    first, others = (FIRST_BUCKET_BYTES, BUCKET_BYTES) if bucket_mib is None else (bucket_mib << 20, bucket_mib << 20)
    bounds = bucket_ends(sizes, first, others)
    parts = [slice(begin, end) for begin, end in zip([0, *bounds], bounds, strict=False)]
    counts, moments = ([float(total(values[part])) for part in parts] for total, values in ((sum, sizes), (max, ready)))
    return Backward(np.array(counts), np.array(moments), float(record["backward_ms"]))


def bucket_ends(sizes: Sequence[int], first_bytes: int, bucket_bytes: int) -> list[int]:
    """Return one past the last gradient of each bucket; a gradient is never divided, so buckets may exceed the cap."""
    ends: list[int] = []
    filled = 0
    for place, size in enumerate(sizes, start=1):
        filled += size
        if filled >= (bucket_bytes if ends else first_bytes):
            ends.append(place)
            filled = 0
    return ends if ends and ends[-1] == len(sizes) else [*ends, len(sizes)]


def project(trials: Sequence[LoadedTrial], world_sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Return what the model gives for every measured configuration, under weak scaling: a device keeps its batch.

    Rows have the configuration, strategy, global_batch_size, world_size, base_world_size (the most devices measured),
    link_nodes (nodes of the sweep), reason (why there is no projection; else ""), and step_time_ms, samples_per_second,
    work_ms, all_reduce_ms (all buckets, hidden or not), exposed_ms and buckets of the model; on measured devices
    measured_step_time_ms and error (modelled / measured - 1), on others efficiency (base / modelled step time).
    """
    if world_sizes and min(world_sizes) < 2:
        raise UsageError("option-value", f"--project {min(world_sizes)}: a projection is to 2 devices or more")
    links = [link for link in fitted_links(trials) if link.dtype == "fp32"]
    groups: dict[Key, list[LoadedTrial]] = defaultdict(list)
    for trial in trials:
        if trial.ok and trial.trial.kind == "throughput" and trial.trial.strategy in ("single", "ddp"):
            groups[(*circumstances(trial.row), *(trial.row[name] for name in _NAMES))].append(trial)
    rows = []
    for members in groups.values():
        strategies = list(dict.fromkeys(strategy_of(trial.row) for trial in members))
        for strategy in [one for one in strategies if one[0] != "single"] or strategies:
            rounds: dict[int, list[LoadedTrial]] = defaultdict(list)
            for trial in sorted(members, key=lambda one: one.trial.world_size):
                if strategy_of(trial.row) == strategy or trial.trial.strategy == "single":
                    rounds[trial.trial.world_size].append(trial)
            rows += _rows(rounds, links, sorted({*world_sizes}))
    return rows


def _rows(
    rounds: Mapping[int, Sequence[LoadedTrial]], links: Sequence[Link], sizes: Sequence[int]
) -> list[dict[str, Any]]:
    """Return the rows of one configuration, whose trials are given by number of devices, ascending."""
    base_size, base = list(rounds.items())[-1]
    trial = base[0].trial
    link = max((one for one in links if one.device == trial.device), key=lambda one: one.nodes, default=None)
    records = [(record["backward"], one) for one in base for record in one.ranks.values() if record.get("backward")]
    about: dict[str, Any] = {name: getattr(trial, name) for name in _NAMES} | dict.fromkeys(_VALUES)
    about |= {name: base[0].row[name] for name in ("strategy", "strategy_options", "allocator")}
    about |= {"base_world_size": base_size}
    about |= {"link_nodes": None if link is None else link.nodes, "reason": ""}
    batch, reason = trial.micro_batch_size * trial.grad_accum_steps, ""
    if link is None:
        reason = "no all-reduce of fp32 was measured in this run: run `bertbench comm --out` with its folder"
    elif link.reason:
        reason = f"no line fits the measured all-reduces: {link.reason}"
    elif len(rounds) < 2:
        reason = f"only {base_size} devices were measured: measure two counts (`bertbench throughput --devices`)"
    elif not records:
        reason = "no trial recorded when its gradients were ready (compiled models do not)"
    if reason or link is None:
        return [{**about, "reason": reason, "world_size": size, "global_batch_size": batch * size} for size in sizes]
    backward = _typical(base, [backward_pass(one, bucket_mib(of.trial.strategy_options)) for one, of in records])
    measured = _median(base, "step_time_ms")
    work_ms = measured - _median(base, "communication_ms")
    # Of a device in a median step at the measured rate, which is that of all steps together.
    samples = _median(base, "samples_per_second") * measured / 1e3 / base_size
    rows = []
    for size in sorted({*rounds, *sizes}):
        reduce_ms = np.array([link.time_us(count, size) / 1e3 for count in backward.bucket_bytes])
        exposed_ms = backward.exposed_ms(reduce_ms)
        step_ms = work_ms + exposed_ms
        row = {**about, "world_size": size, "global_batch_size": batch * size, "step_time_ms": step_ms}
        row |= {"samples_per_second": 1e3 * samples * size / step_ms, "work_ms": work_ms}
        row |= {"all_reduce_ms": float(reduce_ms.sum()), "exposed_ms": exposed_ms, "buckets": len(reduce_ms)}
        if size in rounds:
            row["measured_step_time_ms"] = _median(rounds[size], "step_time_ms")
            row["error"] = step_ms / row["measured_step_time_ms"] - 1
        else:
            row["efficiency"] = measured / step_ms
        rows.append(row)
    return rows


def _typical(base: Sequence[LoadedTrial], passes: Sequence[Backward]) -> Backward:
    """Return the median of passes with equal buckets; the backward time of the step clock is of all micro-steps."""
    alike = [one for one in passes if np.array_equal(one.bucket_bytes, passes[0].bucket_bytes)]
    shares = np.minimum([one.ready_ms / one.backward_ms for one in alike], 1.0)
    times = [float(t.row["backward_ms"]) / t.trial.grad_accum_steps for t in base if t.row.get("backward_ms")]
    whole = float(np.median(times or [one.backward_ms for one in alike]))
    return Backward(passes[0].bucket_bytes, np.median(shares, axis=0) * whole, whole)


def _median(trials: Sequence[LoadedTrial], name: str) -> float:
    """Return the median of a column over rounds; a value that was not measured counts as 0."""
    return float(np.median([trial.row.get(name) or 0.0 for trial in trials]))
