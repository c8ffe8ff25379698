"""Scaling efficiency over device counts: weak and strong."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from analysis.load import LoadedTrial, circumstances
from analysis.metrics.comparison.ratio import rate_ratio

Row = Mapping[str, Any]

_MODEL = ("task", "task_options", "implementation", "levers", "preset", "precision", "seq_len")
_SAME = (*_MODEL, "device", "activation_checkpointing")
_CONFIGURATION = (*_SAME, "micro_batch_size", "grad_accum_steps")
_STRATEGY = ("strategy", "strategy_options", "allocator")


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
            strategies = sorted({strategy_of(row) for row in group})
            for strategy in [one for one in strategies if one[0] != "single"] or strategies:
                result.extend(_curve(group, kind, strategy, work or {}))
    return result


def strategy_of(row: Row) -> tuple[str, ...]:
    """Return a strategy with its options as a key that can be sorted."""
    return tuple(str(row.get(name) or "") for name in _STRATEGY)


def _global_batch(row: Row) -> int:
    return int(row["micro_batch_size"]) * int(row["grad_accum_steps"]) * int(row["world_size"])


def _curve(
    group: Sequence[Row], kind: str, strategy: tuple[str, ...], work: Mapping[str, np.ndarray]
) -> list[dict[str, Any]]:
    by_size: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in group:
        # One device needs no parallelism: 'single' serves as the base of every strategy that did not run on one.
        alone = row["strategy"] == "single" != strategy[0] and int(row["world_size"]) == 1
        if strategy_of(row) == strategy or alone:
            by_size[int(row["world_size"]), int(row.get("nodes") or 1)].append(row)
    if len({size for size, _ in by_size}) < 2:  # the same devices on more nodes are no scaling
        return []
    places = {
        place: [row for row in rows if strategy_of(row) == strategy] or rows for place, rows in sorted(by_size.items())
    }
    members = [row for rows in by_size.values() for row in rows]
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
