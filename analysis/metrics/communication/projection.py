"""A model of data-parallel training on more devices than were measured: step(N) = work + exposed(N).

work is the measured step on the most devices less its exposed communication. exposed(N) is how long after the backward
pass the last bucket of gradients has been reduced: buckets are ready at the measured moments, and their all-reduces
take, one after another, what the alpha-beta line of the measured sweep (links.Link) gives for N ranks. The model has
equally fast ranks, the links of the sweep, and all-reduces that do not slow the computation down.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.load import Key, LoadedTrial, circumstances
from analysis.metrics.communication.links import FloatArray, Link, fitted_links
from analysis.metrics.scaling import strategy_of
from analysis.wording import bucket_mib
from common.errors import UsageError

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

Rounds = Mapping[int, Sequence[LoadedTrial]]  # of one configuration by number of devices, ascending


@dataclass(frozen=True, slots=True)
class Backward:
    """What one backward pass hands over, and when."""

    bucket_bytes: FloatArray
    """Size of each bucket, in the order of their all-reduces."""
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
    """Return the buckets of a measured pass.

    Args:
        record: what bench.run.measure.backward_timeline wrote: bytes, ready_ms, backward_ms.
        bucket_mib: cap of every bucket in MiB; None: PyTorch's, of which the first is smaller.
    """
    sizes, ready = record["bytes"], record["ready_ms"]
    first, others = (FIRST_BUCKET_BYTES, BUCKET_BYTES) if bucket_mib is None else (bucket_mib << 20, bucket_mib << 20)
    bounds = bucket_ends(sizes, first, others)
    parts = [slice(begin, end) for begin, end in zip([0, *bounds], bounds, strict=False)]
    return Backward(
        np.array([float(sum(sizes[part])) for part in parts]),
        np.array([float(max(ready[part])) for part in parts]),
        float(record["backward_ms"]),
    )


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
    """Return what the model gives for every measured configuration: on the devices asked for, and on those measured.

    Weak scaling: a device keeps its batch.

    Args:
        trials: of a run that holds trials of kind comm too.
        world_sizes: N.

    Returns:
        Rows with the configuration, strategy, global_batch_size, world_size, base_world_size (the most devices
        measured), link_nodes (nodes of the sweep), reason (why there is no projection; else ""), and step_time_ms,
        samples_per_second, work_ms, all_reduce_ms (all buckets, hidden or not), exposed_ms and buckets of the model;
        on measured devices measured_step_time_ms and error (modelled / measured - 1), on others efficiency (measured
        step on the base / modelled one).

    Raises:
        UsageError: a number of devices below 2.
    """
    if world_sizes and min(world_sizes) < 2:
        raise UsageError("option-value", f"--project {min(world_sizes)}: a projection is to 2 devices or more")
    links = [link for link in fitted_links(trials) if link.dtype == "fp32"]
    return [row for rounds in _configurations(trials) for row in _rows(rounds, links, sorted({*world_sizes}))]


def _configurations(trials: Sequence[LoadedTrial]) -> list[Rounds]:
    groups: dict[Key, list[LoadedTrial]] = defaultdict(list)
    for trial in trials:
        if trial.ok and trial.trial.kind == "throughput" and trial.trial.strategy in ("single", "ddp"):
            groups[(*circumstances(trial.row), *(trial.row[name] for name in _NAMES))].append(trial)
    configurations: list[Rounds] = []
    for members in groups.values():
        strategies = list(dict.fromkeys(strategy_of(trial.row) for trial in members))
        for strategy in [one for one in strategies if one[0] != "single"] or strategies:
            chosen = [one for one in members if strategy_of(one.row) == strategy or one.trial.strategy == "single"]
            sizes = sorted({trial.trial.world_size for trial in chosen})
            configurations.append({size: [one for one in chosen if one.trial.world_size == size] for size in sizes})
    return configurations


def _rows(rounds: Rounds, links: Sequence[Link], sizes: Sequence[int]) -> list[dict[str, Any]]:
    base_size, base = list(rounds.items())[-1]
    trial = base[0].trial
    link = max((one for one in links if one.device == trial.device), key=lambda one: one.nodes, default=None)
    records = [(record["backward"], one) for one in base for record in one.ranks.values() if record.get("backward")]
    about: dict[str, Any] = {name: getattr(trial, name) for name in _NAMES} | dict.fromkeys(_VALUES)
    about |= {name: base[0].row[name] for name in ("strategy", "strategy_options", "allocator")}
    about |= {"base_world_size": base_size}
    about |= {"link_nodes": None if link is None else link.nodes, "reason": ""}
    batch = trial.micro_batch_size * trial.grad_accum_steps
    if link is None:
        about["reason"] = "no all-reduce of fp32 was measured in this run: run `bertbench comm --out` with its folder"
    elif link.reason:
        about["reason"] = f"no line fits the measured all-reduces: {link.reason}"
    elif len(rounds) < 2:
        about["reason"] = (
            f"only {base_size} devices were measured: measure two counts (`bertbench throughput --devices`)"
        )
    elif not records:
        about["reason"] = "no trial recorded when its gradients were ready (compiled models do not)"
    if about["reason"] or link is None:
        return [{**about, "world_size": size, "global_batch_size": batch * size} for size in sizes]
    passes = [backward_pass(record, bucket_mib(one.trial.strategy_options)) for record, one in records]
    backward = _typical(base, [one for one in passes if np.array_equal(one.bucket_bytes, passes[0].bucket_bytes)])
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
    """Return the median of several passes; the backward time of the step clock is of all micro-steps."""
    shares = np.minimum([one.ready_ms / one.backward_ms for one in passes], 1.0)
    times = [float(t.row["backward_ms"]) / t.trial.grad_accum_steps for t in base if t.row.get("backward_ms")]
    whole = float(np.median(times or [one.backward_ms for one in passes]))
    return Backward(passes[0].bucket_bytes, np.median(shares, axis=0) * whole, whole)


def _median(trials: Sequence[LoadedTrial], name: str) -> float:
    """Return the median of a column over rounds; a value that was not measured counts as 0."""
    return float(np.median([trial.row.get(name) or 0.0 for trial in trials]))
