"""Projection of data-parallel training to more devices than were measured: a simulation, never a measurement.

A step on N devices is the slowest of N devices' own work, then what the backward pass cannot hide of the all-reduces:

    step(N) = work(N) + exposed(N)

work(N) is the median of the largest of N of the measured devices' own works (step time less exposed communication),
each drawn on its own: their 0.5^(1/N) quantile. exposed(N) is what buckets.exposed_ms makes of the measured moments at
which gradients are ready, and of all-reduces that take what links.Link gives for N ranks. The interval resamples all
inputs of the fit; docs/explanation/scaling.md says what it does not model.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.load import Key, LoadedTrial, circumstances
from analysis.metrics.communication import links as linked
from analysis.metrics.communication.links import FloatArray, Link
from analysis.metrics.communication.own_work import Base, between_processes, drawn_works
from analysis.metrics.comparison.ratio import Spread
from analysis.wording import bucket_mib, is_single, number
from common.errors import SchemaError, UsageError

FIRST_BUCKET_BYTES = 1 << 20
BUCKET_BYTES = 25 << 20


@dataclass(frozen=True, slots=True)
class Backward:
    """What one backward pass hands over, and when."""

    bucket_bytes: FloatArray
    """Size of each bucket, in the order in which they are reduced."""
    ready_ms: FloatArray
    """When the last gradient of each is there, since the pass began."""
    backward_ms: float

    def scaled(self, backward_ms: float) -> "Backward":
        """Return the same pass at another speed."""
        factor = backward_ms / self.backward_ms
        return Backward(self.bucket_bytes, self.ready_ms * factor, backward_ms)


def backward_pass(record: Mapping[str, Any], bucket_mib: int | None = None) -> Backward:
    """Return the buckets of a measured pass.

    Args:
        record: what bench.run.measure.backward_timeline wrote: bytes and ready_ms of each gradient in the order of the
            buckets, and backward_ms.
        bucket_mib: cap of every bucket in MiB, where one was asked for.

    Raises:
        SchemaError: the record is not of that form.
    """
    try:
        sizes, ready = [int(value) for value in record["bytes"]], [float(value) for value in record["ready_ms"]]
        whole = float(record["backward_ms"])
        if not sizes or min(sizes) < 0 or len(sizes) != len(ready) or not whole > 0 or not np.isfinite(ready).all():
            raise ValueError("sizes and times do not fit each other")
    except (KeyError, TypeError, ValueError) as error:
        raise SchemaError(
            "file-damaged",
            f"the record of the backward pass is damaged: {error}; measure that trial again (a new --out)",
        ) from error
    first, others = (FIRST_BUCKET_BYTES, BUCKET_BYTES) if bucket_mib is None else (bucket_mib << 20, bucket_mib << 20)
    bounds = bucket_ends(sizes, first, others)
    parts = [slice(begin, end) for begin, end in zip([0, *bounds], bounds, strict=False)]
    return Backward(
        np.array([float(sum(sizes[part])) for part in parts]),
        np.array([max(ready[part]) for part in parts]),
        whole,
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
    if not ends or ends[-1] != len(sizes):
        ends.append(len(sizes))
    return ends


def exposed_ms(ready_ms: FloatArray, reduce_ms: FloatArray, backward_ms: FloatArray | float) -> FloatArray:
    """Return how long after the backward pass the last bucket has been reduced.

    A bucket's all-reduce begins when it is ready and the one before has ended; it does not slow the computation down.

    Args:
        ready_ms: [..., buckets].
        reduce_ms: [..., buckets], of each all-reduce.
        backward_ms: [...], the whole pass.
    """
    ready, durations = np.broadcast_arrays(ready_ms, reduce_ms)
    free = np.zeros(ready.shape[:-1])
    for bucket in range(ready.shape[-1]):
        free = np.maximum(free, ready[..., bucket]) + durations[..., bucket]
    return np.asarray(np.maximum(free - backward_ms, 0.0), dtype=np.float64)


LARGEST_MEDIAN_ERROR = 0.15
"""A line that misses the typical measured time by more says nothing of times that were not measured."""
LARGEST_CHECK_ERROR = 0.2
"""Where the simulation of the measured devices themselves is further off, it is not the machine that is simulated."""
WIDEST_INTERVAL = (1 + LARGEST_CHECK_ERROR) / (1 - LARGEST_CHECK_ERROR)
"""Upper end / lower end of the interval of a projected step: what is known to the same 20 % spans 1.2 / 0.8 = 1.5."""
FURTHEST = {1: 4, 2: 8}
"""How many times as many ranks as were measured, by how many numbers of ranks were; FURTHEST_AT_MOST from three on."""
FURTHEST_AT_MOST = 16
# Sizes near those of the buckets: protocols and algorithms change with the size, and a line holds within one of them.
_AROUND = 4.0
_UNDISTURBED = "devices do not slow each other down (one alone was measured)"
_ALIKE = "processes do not differ (one round was measured: --rounds 3 shows how they do)"

_NAMES = (
    "task", "implementation", "preset", "precision", "seq_len", "micro_batch_size", "grad_accum_steps", "device",
    "activation_checkpointing",
)  # fmt: skip
_VALUES = (
    "step_time_ms", "step_time_ms_low", "step_time_ms_high", "samples_per_second", "samples_per_second_low",
    "samples_per_second_high", "efficiency", "efficiency_low", "efficiency_high", "work_ms", "waiting_ms",
    "all_reduce_ms", "exposed_ms", "buckets", "measured_samples_per_second",
)  # fmt: skip


def project(
    trials: Sequence[LoadedTrial],
    world_sizes: Sequence[int],
    same_links: bool = False,
    seed: int = 0,
    no_interference: bool = False,
) -> list[dict[str, Any]]:
    """Return a row for every configuration that was measured and every number of devices asked for.

    Weak scaling: a device keeps its batch. The base is the largest number of devices that the configuration was
    measured on. Its own step is simulated too, and `check_error` says how far that is off (None on one device).

    Args:
        trials: of a run that holds trials of kind comm too.
        world_sizes: N.
        same_links: take links between nodes, where none was measured, to be like those inside of one.
        seed: of the draws.
        no_interference: take ranks on a CPU not to slow each other down, where one alone was measured.

    Returns:
        Rows with the configuration, strategy (of the base, with its options), global_batch_size, world_size,
        base_world_size, rounds, assumption, check_error, reason (why there is no projection, and what to do; else ""),
        and, None where there is a reason: step_time_ms, samples_per_second and efficiency (step time of the base /
        projected one) with their 95 % intervals (_low, _high), work_ms (of a typical device), waiting_ms (for the
        slowest of N), all_reduce_ms (all buckets, hidden or not), exposed_ms, buckets. To as many devices as were
        measured there is measured_samples_per_second and no efficiency: it would be the error of the check.

    Raises:
        UsageError: a number of devices below 2.
        SchemaError: records of a trial are damaged.
    """
    for size in world_sizes:
        if size < 2:
            raise UsageError("option-value", f"--project {size}: a projection is to 2 devices or more")
    found = linked.fitted_links(trials)
    rows = []
    for members in _configurations(trials):
        between = between_processes(trials, members[0])
        for size in sorted(set(world_sizes)):
            link = _link_for(found, trials, size, members[0], same_links)
            rows.append(_row(members, size, link, between, seed, no_interference))
    return rows


def _configurations(trials: Sequence[LoadedTrial]) -> list[list[LoadedTrial]]:
    """Rounds of each configuration on the most devices, and nodes, it was measured on; one device needs no strategy."""
    groups: dict[Key, list[LoadedTrial]] = defaultdict(list)
    for trial in trials:
        if trial.ok and trial.trial.kind == "throughput" and trial.trial.strategy in ("single", "ddp"):
            groups[(*circumstances(trial.row), *(trial.row[name] for name in _NAMES))].append(trial)
    found = []
    for members in groups.values():
        labels = list(dict.fromkeys(str(trial.row["strategy"]) for trial in members))
        for label in [name for name in labels if not is_single(name)] or labels:
            rounds: dict[tuple[int, int], list[LoadedTrial]] = defaultdict(list)
            for trial in members:
                if trial.row["strategy"] == label:
                    rounds[trial.trial.world_size, trial.trial.nodes].append(trial)
            found.append(rounds[max(rounds)])
    return found


def _row(
    members: Sequence[LoadedTrial],
    size: int,
    link: tuple[Link | None, str, str],
    between: Spread | None,
    seed: int,
    no_interference: bool = False,
) -> dict[str, Any]:
    first = members[0].trial
    row: dict[str, Any] = {name: getattr(first, name) for name in _NAMES}
    row["strategy"] = members[0].row["strategy"]
    row |= {"global_batch_size": first.micro_batch_size * first.grad_accum_steps * size, "world_size": size}
    alone = _ALIKE if len(members) == 1 and between is None else ""
    assumed = [text for text in (link[2], _UNDISTURBED if first.world_size == 1 else "", alone) if text]
    row |= {"base_world_size": first.world_size, "rounds": len(members), "check_error": None}
    row["assumption"] = "; ".join(assumed)
    row |= dict.fromkeys(_VALUES)
    reason = link[1] or _refused_base(members, size, no_interference)
    if reason or link[0] is None:
        return {**row, "reason": reason}
    backward, shares = _backward(members)
    line = _line_for(link[0], backward)
    reason = _refused_line(line, backward, size)
    if reason:
        return {**row, "reason": reason}
    base = Base(members)
    point = _point(base, backward, line, size)
    if base.ranks > 1:
        own = _point(base, backward, line, base.ranks)
        measured = float(np.median(np.concatenate([trial.window_times() for trial in members])))
        row["check_error"] = own["step_time_ms"] / measured - 1
        if abs(row["check_error"]) > LARGEST_CHECK_ERROR:
            reason = (
                f"the same simulation of the {base.ranks} devices that were measured is off by "
                f"{100 * row['check_error']:+.0f} %: computation and communication interfere in an "
                "unknown way, or steps and links were measured under different conditions; measure both on a quiet "
                "machine, or measure more devices"
            )
            return {**row, "reason": reason}
    spread = _interval(base, backward, shares, line, size, between, seed)
    low, high = spread["step_time_ms_low"], spread["step_time_ms_high"]
    if high > WIDEST_INTERVAL * low:
        reason = (
            f"a step on {size} devices would take {number(low)} to {number(high)} ms, too uncertain to report: "
            "measure more sizes near the buckets', more ranks, more rounds, or on a quieter machine"
        )
        return {**row, "reason": reason}
    row |= {**point, **spread, "reason": ""}
    if size == base.ranks:
        row |= dict.fromkeys(("efficiency", "efficiency_low", "efficiency_high"))
        row["measured_samples_per_second"] = 1e3 * base.samples * size / base.step_ms
    return row


def _backward(members: Sequence[LoadedTrial]) -> tuple[Backward, FloatArray]:
    """The measured pass at the speed of the measured steps, and what it is the median of.

    Returns:
        It, and [records, buckets] when each bucket is ready as a share of the pass, of every rank of every round.
    """
    passes = [
        backward_pass(record, bucket_mib(trial.trial.strategy_options))
        for trial in members
        for record in _records(trial)
    ]
    alike = [one for one in passes if np.array_equal(one.bucket_bytes, passes[0].bucket_bytes)]
    shares = np.minimum([one.ready_ms / one.backward_ms for one in alike], 1.0)
    # The step clock's backward is of all micro-steps; the last one alone communicates.
    times = [float(t.row["backward_ms"]) / t.trial.grad_accum_steps for t in members if t.row.get("backward_ms")]
    whole = float(np.median(times or [one.backward_ms for one in alike]))
    return Backward(alike[0].bucket_bytes, np.median(shares, axis=0) * whole, whole), shares


def _records(trial: LoadedTrial) -> list[dict[str, Any]]:
    return [record["backward"] for record in trial.ranks.values() if record.get("backward")]


def _point(base: Base, backward: Backward, line: Link, size: int) -> dict[str, Any]:
    """Point values."""
    reduce_ms = np.array([line.time_us(bytes_, size) / 1e3 for bytes_ in backward.bucket_bytes])
    slower = base.slower(size)
    exposed = float(exposed_ms(backward.ready_ms * slower, reduce_ms, backward.backward_ms * slower))
    step_ms = base.typical * slower + exposed
    return {
        "step_time_ms": step_ms,
        "samples_per_second": 1e3 * base.samples * size / step_ms,
        "efficiency": base.step_ms / step_ms,
        "work_ms": base.typical,
        "waiting_ms": base.typical * (slower - 1),
        "all_reduce_ms": float(reduce_ms.sum()),
        "exposed_ms": exposed,
        "buckets": len(backward.bucket_bytes),
    }


def _interval(
    base: Base, backward: Backward, shares: FloatArray, line: Link, size: int, between: Spread | None, seed: int
) -> dict[str, Any]:
    """Return the ends of the intervals, from simulations with all measurements resampled together."""
    random = np.random.default_rng(seed)
    reduce_ms = line.drawn_us(backward.bucket_bytes, size, random) / 1e3
    count = len(reduce_ms)
    levels, slower, step_ms = drawn_works(base, size, count, between, random)
    speed = levels / base.typical * slower
    whole = backward.backward_ms * speed
    ready = _drawn_shares(shares, count, random) * whole[:, None]
    lasts = levels * slower + exposed_ms(ready, reduce_ms, whole)
    found = {"step_time_ms": lasts, "samples_per_second": 1e3 * base.samples * size / lasts}
    found["efficiency"] = step_ms / lasts
    ends: dict[str, Any] = {}
    for name, values in found.items():
        low, high = np.percentile(values, (2.5, 97.5))
        ends |= {f"{name}_low": float(low), f"{name}_high": float(high)}
    return ends


def _drawn_shares(shares: FloatArray, count: int, random: np.random.Generator) -> FloatArray:
    """[count, buckets]: when buckets are ready as a share of the pass, as uncertain as so few records leave it.

    The multivariate t distribution of a mean: buckets of a record are early or late together.
    """
    records = len(shares)
    middle = np.median(shares, axis=0)
    if records < 2:
        return np.tile(middle, (count, 1))
    apart = random.standard_normal((count, records)) @ (shares - shares.mean(axis=0)) / np.sqrt(records)
    drawn = middle + apart / np.sqrt(random.chisquare(records - 1, (count, 1)))
    return np.asarray(np.clip(drawn, 0.0, 1.0), dtype=np.float64)


def _link_for(
    found: Sequence[Link], trials: Sequence[LoadedTrial], size: int, base: LoadedTrial, same_links: bool
) -> tuple[Link | None, str, str]:
    """The line of the all-reduce between so many devices, or why there is none, and what is assumed of it."""
    device = base.trial.device
    usable = [link for link in found if link.collective == "all_reduce" and link.dtype == "fp32"]
    usable = [link for link in usable if link.device == device]
    if not usable:
        return None, (
            f"no all-reduce of fp32 was measured between {device} ranks in this run: "
            "run `bertbench comm --out` with the folder of this run"
        ), ""  # fmt: skip
    inside = next((link for link in usable if link.nodes == 1), None)
    across = max((link for link in usable if link.nodes > 1), key=lambda link: max(link.ranks), default=None)
    held = _devices_of_a_node(trials, device)
    if across is not None and (inside is None or held is None or size > held):
        return across, "", ""
    if inside is not None and held is not None and size > held and not same_links:
        return None, (
            f"{size} devices are more than the {held} of the node whose links were measured, and other links join "
            "nodes: measure those with `bertbench launch ... -- bertbench comm` on two nodes or more, or assume that "
            "they are as fast (--same-links)"
        ), ""  # fmt: skip
    outside = held is None or size > held
    return inside, "", "links between nodes as fast as inside" if outside else ""


def _devices_of_a_node(trials: Sequence[LoadedTrial], device: str) -> int | None:
    """Devices of the node that collectives were measured on; None where that was not written down."""
    for trial in trials:
        if trial.trial.kind == "comm" and trial.environment:
            if device == "cuda":
                return len(trial.environment.get("gpus") or []) or None
            cores = (trial.environment.get("cpu") or {}).get("physical_cores")
            return int(cores) if cores else None
    return None


def _refused_base(members: Sequence[LoadedTrial], size: int, no_interference: bool) -> str:
    if not any(_records(trial) for trial in members):
        return (
            "no trial recorded when its gradients were ready (compiled models and older versions do not): measure "
            "again (`bertbench throughput` with a new --out)"
        )
    if members[0].trial.world_size == 1 and members[0].trial.device == "cpu":
        if not no_interference:
            return (
                "one device alone was measured: ranks on a CPU share its memory bandwidth, and nothing shows how much "
                "that slows them down; measure 2 devices (`bertbench throughput --devices 2`), or assume that they do "
                "not (--no-interference)"
            )
        if members[0].trial.threads_per_rank is None:
            return (
                "one rank alone was measured on all cores, and several divide the cores: measure it with as many "
                "threads as each of them gets (`bertbench throughput --devices 1 --threads 1`)"
            )
    if size < members[0].trial.world_size:
        return f"{members[0].trial.world_size} devices were measured, which is more: see the scaling table"
    if members[0].row.get("samples_per_step") is None:
        return "the trial does not say how many samples a step has"
    return ""


def _line_for(link: Link, backward: Backward) -> Link:
    """The line through the sizes near the buckets', or, where those are too few, through all."""
    smallest, largest = backward.bucket_bytes.min() / _AROUND, backward.bucket_bytes.max() * _AROUND
    near = linked.fit(link, smallest, largest)
    return near if not near.reason else linked.fit(link)


def _refused_line(line: Link, backward: Backward, size: int) -> str:
    if line.reason:
        return f"no line fits the measured all-reduces: {line.reason}"
    largest, most = backward.bucket_bytes.max(), max(line.sizes)
    if largest > 2 * most:
        return (
            f"the largest bucket has {largest / 2**20:.0f} MiB, but all-reduces were measured up to "
            f"{most / 2**20:.3g} MiB: run `bertbench comm --max-bytes {2 ** int(np.ceil(np.log2(largest / 2**20)))}M`"
        )
    error = float(np.median(np.abs(line.errors)))
    if error > LARGEST_MEDIAN_ERROR:
        return (
            f"the line differs from the measured all-reduces by {100 * error:.0f} % (median): measure on a quieter "
            "machine, with more --repetitions or --rounds"
        )
    furthest = FURTHEST.get(len(line.ranks), FURTHEST_AT_MOST) * max(line.ranks)
    if size > furthest:
        counts = " and ".join(map(str, line.ranks))
        return (
            f"all-reduces were measured between {counts} ranks, which allows projections to {furthest} at most: "
            "measure more ranks, or more numbers of ranks (`bertbench comm --devices`)"
        )
    return ""
