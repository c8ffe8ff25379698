"""What a run says of other sizes: scaling efficiency, a projection to more devices, days and cost of pretraining.

docs/how-to/scaling.md derives the first two. The projection is a model of data-parallel training: step(N) = work +
exposed(N), where work is the measured step on the most devices less its exposed communication, and exposed(N) is how
long after the backward pass the last bucket of gradients has been reduced: buckets are ready at the measured moments,
and their all-reduces take, one after another, what the alpha-beta line gives for N ranks.

Pretraining is that of Devlin et al. 2019, "BERT: Pre-training of Deep Bidirectional Transformers", appendix A.2:
1,000,000 steps of 256 sequences, 90 % of them with 128 tokens a sequence (phase 1) and the rest with 512 (phase 2).
"""

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from analysis.load import Key, LoadedTrial, circumstances
from analysis.metrics.communication.collectives import FloatArray, Link, fitted_links
from analysis.metrics.comparison.ratio import rate_ratio
from analysis.wording import read_options
from common.errors import UsageError
from records.schema import OPTION_COLUMNS

Row = Mapping[str, Any]

PHASES = {1: (128, 230_400_000), 2: (512, 25_600_000)}
"""Per phase of pretraining: tokens of a sequence, sequences of the phase."""
_MODEL = ("task", "task_options", "implementation", "step", "preset", "precision", "seq_len")
_SAME = (*_MODEL, "device", "activation_checkpointing")
_CONFIGURATION = (*_SAME, "micro_batch_size", "grad_accum_steps")
_STRATEGY = ("strategy", "strategy_options")
_PROJECTED = (
    "step_time_ms", "samples_per_second", "efficiency", "work_ms", "all_reduce_ms", "predicted_exposed_ms", "buckets",
    "measured_step_time_ms", "communication_ms", "error",
)  # fmt: skip
# What has to agree before two rates are the two phases of one pretraining; each phase has a batch of its own.
_ONE_PRETRAINING = (
    "implementation", "preset", "precision", "strategy", "device", "world_size", "nodes", *OPTION_COLUMNS,
)  # fmt: skip


def measured_efficiency(trials: Sequence[LoadedTrial]) -> list[dict[str, Any]]:
    """Return `efficiency` of a run's trials, with its intervals."""
    work = {trial.trial.trial_id: trial.window_work() for trial in trials if trial.ok}
    return efficiency([trial.row for trial in trials], work)


def efficiency(rows: Sequence[Row], work: Mapping[str, np.ndarray] | None = None) -> list[dict[str, Any]]:
    """Return one row per configuration, kind of scaling and world size, where at least two world sizes were measured.

    Weak scaling keeps the batch of a rank, strong scaling the global batch. The base is the smallest world size of the
    same configuration; rounds are combined by their median. On GPUs

        efficiency(n) = throughput(n) / throughput(base) / (n / base).

    Ranks on a CPU share its cores unless threads_per_rank is given: efficiency(n) = throughput(n) / throughput(base).
    `basis` says which: per device | same total cores | equal shares of the cores | same cores per rank. With the work
    of each trial by id ([2, steps]: samples, times) efficiency_low and efficiency_high are the interval of
    ratio.rate_ratio.
    """
    result = []
    for kind in ("weak", "strong"):
        groups: dict[Hashable, list[Row]] = defaultdict(list)
        for row in rows:
            usable = row.get("status", "ok") == "ok" and row.get("kind", "throughput") == "throughput"
            if usable and row.get("samples_per_second"):
                batch = _global_batch(row) if kind == "strong" else (row["micro_batch_size"], row["grad_accum_steps"])
                groups[(*circumstances(row), *(row.get(name) for name in _SAME), batch)].append(row)
        for group in groups.values():
            for strategy, members in _by_strategy(group):
                result.extend(_curve(members, kind, strategy, work or {}))
    return result


def _strategy_of(row: Row) -> tuple[str, ...]:
    """Return a strategy with its options as a key that can be sorted."""
    return tuple(str(row.get(name) or "") for name in _STRATEGY)


def _by_strategy(rows: Sequence[Row]) -> Iterator[tuple[tuple[str, ...], list[Row]]]:
    """Yield each strategy with its rows; one device needs none, so that 'single' serves as the base of all others."""
    strategies = sorted({_strategy_of(row) for row in rows})
    for strategy in [one for one in strategies if one[0] != "single"] or strategies:
        chosen = {strategy, *(one for one in strategies if one[0] == "single" != strategy[0])}
        yield strategy, [row for row in rows if _strategy_of(row) in chosen]


def _global_batch(row: Row) -> int:
    return int(row["micro_batch_size"]) * int(row["grad_accum_steps"]) * int(row["world_size"])


def _curve(
    members: Sequence[Row], kind: str, strategy: tuple[str, ...], work: Mapping[str, np.ndarray]
) -> list[dict[str, Any]]:
    by_size: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in members:
        by_size[int(row["world_size"]), int(row.get("nodes") or 1)].append(row)
    if len({size for size, _ in by_size}) < 2:  # the same devices on more nodes are no scaling
        return []
    places = {
        place: [row for row in rows if _strategy_of(row) == strategy] or rows for place, rows in sorted(by_size.items())
    }
    base, cpu = next(iter(places)), members[0].get("device") == "cpu"
    shared = cpu and members[0].get("threads_per_rank") is None
    # Cores that the ranks do not divide evenly are left over: three cores are two for two ranks.
    threads = {row.get("total_threads") for row in members}
    basis = "same total cores" if len(threads) == 1 and None not in threads else "equal shares of the cores"
    basis = basis if shared else "same cores per rank" if cpu else "per device"
    rates = {place: median(float(row["samples_per_second"]) for row in rounds) for place, rounds in places.items()}
    curve = []
    for place, rounds in places.items():
        speedup, ideal = rates[place] / rates[base], 1.0 if shared else place[0] / base[0]
        low, high = _interval(places[base], rounds, work) if place != base else (None, None)
        row = {"scaling": kind, **{name: rounds[0].get(name) for name in _CONFIGURATION}}
        row |= dict(zip(_STRATEGY, strategy, strict=True))
        row |= {"global_batch_size": _global_batch(rounds[0]), "world_size": place[0], "nodes": place[1]}
        row |= {"base_world_size": base[0], "samples_per_second": rates[place]}
        row |= {"speedup": speedup, "ideal_speedup": ideal, "efficiency": speedup / ideal}
        row["efficiency_low"] = None if low is None else low * speedup / ideal
        row["efficiency_high"] = None if high is None else high * speedup / ideal
        curve.append({**row, "rounds": min(len(rounds), len(places[base])), "basis": basis})
    return curve


def _interval(
    base: Sequence[Row], rounds: Sequence[Row], work: Mapping[str, np.ndarray]
) -> tuple[float | None, float | None]:
    few, many = ([work[str(row["trial_id"])] for row in side if row.get("trial_id") in work] for side in (base, rounds))
    if not (any(one.size for one in few) and any(one.size for one in many)):
        return None, None
    ratio = rate_ratio(few, many)
    return ratio.low / ratio.value, ratio.high / ratio.value


class Backward(NamedTuple):
    """What one backward pass hands over: buckets in the order of their all-reduces."""

    bucket_bytes: FloatArray
    ready_ms: FloatArray
    """When the last gradient of each is ready, since the pass began."""
    backward_ms: float

    def exposed_ms(self, reduce_ms: FloatArray) -> float:
        """Return how long after the pass the last bucket is reduced, at these times of the all-reduces."""
        free = 0.0
        for ready, duration in zip(self.ready_ms, reduce_ms, strict=True):
            free = max(free, float(ready)) + float(duration)
        return max(free - self.backward_ms, 0.0)


def backward_pass(record: Row, bucket_mib: int | None = None) -> Backward:
    """Return the buckets of what bench.run.measure.backward_timeline wrote; without a size in MiB a few layers each."""
    ends = record["ends"] if bucket_mib is None else bucket_ends(record["bytes"], bucket_mib << 20)
    begins = [0, *ends[:-1]]
    sizes, ready = (np.array(record[name], dtype=np.float64) for name in ("bytes", "ready_ms"))
    counts, moments = np.add.reduceat(sizes, begins), np.maximum.reduceat(ready, begins)
    return Backward(counts, moments, float(record["backward_ms"]))


def bucket_ends(sizes: Sequence[int], bucket_bytes: int) -> list[int]:
    """Return one past the last gradient of each bucket; a gradient is never divided, so buckets may exceed the cap."""
    ends: list[int] = []
    filled = 0
    for place, size in enumerate(sizes, start=1):
        filled += size
        if filled >= bucket_bytes:
            ends.append(place)
            filled = 0
    return ends if ends and ends[-1] == len(sizes) else [*ends, len(sizes)]


def project(trials: Sequence[LoadedTrial], world_sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Return what the model gives for every measured configuration, under weak scaling: a device keeps its batch.

    Several measured devices have a row without being asked for. Rows have the configuration, strategy,
    global_batch_size, world_size, base_world_size (the most devices measured), link_nodes (nodes of the sweep), reason
    (why there is no projection; else ""), and step_time_ms, samples_per_second, work_ms, all_reduce_ms (all buckets,
    hidden or not), predicted_exposed_ms and buckets of the model; on measured devices measured_step_time_ms,
    communication_ms (the measured exposure) and error (modelled / measured - 1), on others efficiency (base / modelled
    step time).
    """
    if world_sizes and min(world_sizes) < 2:
        raise UsageError("option-value", f"--project {min(world_sizes)}: a projection is to 2 devices or more")
    links = [link for link in fitted_links(trials) if link.dtype == "fp32"]
    groups: dict[Key, dict[str, LoadedTrial]] = defaultdict(dict)
    for trial in trials:
        if trial.ok and trial.trial.kind == "throughput" and trial.trial.strategy in ("single", "ddp"):
            key = (*circumstances(trial.row), *(trial.row[name] for name in _CONFIGURATION))
            groups[key][trial.trial.trial_id] = trial
    rows = []
    for members in groups.values():
        for _, chosen in _by_strategy([trial.row for trial in members.values()]):
            rounds: dict[int, list[LoadedTrial]] = defaultdict(list)
            for row in sorted(chosen, key=lambda row: int(row["world_size"])):
                rounds[int(row["world_size"])].append(members[row["trial_id"]])
            rows += _projected(rounds, links, sorted({*world_sizes}))
    return rows


def _projected(
    rounds: Mapping[int, Sequence[LoadedTrial]], links: Sequence[Link], sizes: Sequence[int]
) -> list[dict[str, Any]]:
    base_size, base = list(rounds.items())[-1]
    trial, first = base[0].trial, base[0].row
    link = max((one for one in links if one.device == trial.device), key=lambda one: one.nodes, default=None)
    passes = [
        backward_pass(record["backward"], read_options(one.trial.strategy_options).get("bucket_mib"))
        for one in base
        for record in one.ranks.values()
        if record.get("backward")
    ]
    about: dict[str, Any] = {name: first[name] for name in (*_CONFIGURATION, *_STRATEGY)} | dict.fromkeys(_PROJECTED)
    about |= {"base_world_size": base_size, "link_nodes": None if link is None else link.nodes, "reason": ""}
    batch = trial.micro_batch_size * trial.grad_accum_steps
    if link is None:
        about["reason"] = "no all-reduce of fp32 was measured in this run: run `bertbench comm --out` with its folder"
    elif link.reason:
        about["reason"] = f"no line fits the measured all-reduces: {link.reason}"
    elif len(rounds) < 2 and (sizes or base_size < 2):
        about["reason"] = f"{base_size} devices alone were measured: measure two counts (`throughput --devices`)"
    elif not passes:
        about["reason"] = "no trial recorded when its gradients were ready (compiled models do not)"
    if about["reason"] or link is None:
        return [{**about, "world_size": size, "global_batch_size": batch * size} for size in sizes]
    # The backward time of the step clock is of all micro-steps; buckets of one configuration are equal.
    times = [float(t.row["backward_ms"]) / t.trial.grad_accum_steps for t in base if t.row.get("backward_ms")]
    whole = float(np.median(times or [one.backward_ms for one in passes]))
    alike = [one for one in passes if len(one.ready_ms) == len(passes[0].ready_ms)]
    ready = np.median(np.minimum([one.ready_ms / one.backward_ms for one in alike], 1.0), axis=0) * whole
    backward = Backward(passes[0].bucket_bytes, ready, whole)
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
        row |= {"samples_per_second": 1e3 * samples * size / step_ms, "work_ms": work_ms, "buckets": len(reduce_ms)}
        row |= {"all_reduce_ms": float(reduce_ms.sum()), "predicted_exposed_ms": exposed_ms}
        if size in rounds:
            row["measured_step_time_ms"] = _median(rounds[size], "step_time_ms")
            row["communication_ms"] = _median(rounds[size], "communication_ms")
            row["error"] = step_ms / row["measured_step_time_ms"] - 1
        else:
            row["efficiency"] = measured / step_ms
        rows.append(row)
    return rows


def _median(trials: Sequence[LoadedTrial], name: str) -> float:
    """Return the median of a column over rounds; a value that was not measured counts as 0."""
    return float(np.median([trial.row.get(name) or 0.0 for trial in trials]))


def pretraining_costs(rates: Sequence[Row], price_per_hour: float | None = None) -> list[dict[str, Any]]:
    """Return a row for each configuration that was measured at the length of a phase, at its fastest batch there.

    Of several data, those count whose sequences are fullest. Columns: the fields of a configuration, phase_N_batch,
    phase_N_padding_efficiency, phase_N_samples_per_second, phase_N_days, phase_N_cost, days, cost; None where a phase
    was not measured, or without a price.
    """
    groups: dict[Key, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rates:
        for phase, (seq_len, _) in PHASES.items():
            if (row["kind"], row["task"], row["seq_len"]) == ("throughput", "pretrain", seq_len):
                groups[tuple(row[name] for name in _ONE_PRETRAINING)][phase].append(row)
    return [
        dict(zip(_ONE_PRETRAINING, key, strict=True)) | _pretraining(phases, price_per_hour)
        for key, phases in groups.items()
    ]


def _pretraining(measured: Mapping[int, Sequence[Row]], price_per_hour: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {}
    days: dict[str, float | None] = {}
    for phase, (_, samples) in PHASES.items():
        prefix, one = f"phase_{phase}_", _fastest(measured[phase]) if phase in measured else {}
        rate = float(one["samples_per_second"]) if one else None
        row[f"{prefix}batch"] = one.get("micro_batch_size")
        row[f"{prefix}padding_efficiency"] = one.get("padding_efficiency")
        row[f"{prefix}samples_per_second"] = rate
        days[prefix] = samples / rate / 86_400 if rate else None
    known = [value for value in days.values() if value is not None]
    days[""] = sum(known) if len(known) == len(PHASES) else None
    for prefix, value in days.items():
        row[f"{prefix}days"] = value
        row[f"{prefix}cost"] = None if value is None or price_per_hour is None else value * 24 * price_per_hour
    return row


def _fastest(rows: Sequence[Row]) -> Row:
    by_data: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        by_data[row["data"], row["data_fingerprint"]].append(row)
    fullest = max(by_data.values(), key=lambda group: fmean(row["padding_efficiency"] or 0 for row in group))
    return max(fullest, key=lambda row: float(row["samples_per_second"]))
