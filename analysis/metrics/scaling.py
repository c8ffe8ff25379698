"""Scaling efficiency over device counts: weak and strong."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from analysis.load import LoadedTrial, circumstances
from analysis.metrics.comparison.ratio import rate_ratio
from analysis.wording import is_single

Row = Mapping[str, Any]

_SAME = ("task", "implementation", "preset", "precision", "seq_len", "device", "activation_checkpointing")


def measured_efficiency(trials: Sequence[LoadedTrial]) -> list[dict[str, Any]]:
    """Return `efficiency` of a run's trials, with its intervals."""
    work = {trial.trial.trial_id: trial.window_work() for trial in trials if trial.ok}
    return efficiency([trial.row for trial in trials], work)


def efficiency(rows: Sequence[Row], work: Mapping[str, np.ndarray] | None = None) -> list[dict[str, Any]]:
    """Return one row per configuration, kind of scaling and world size, where at least two world sizes were measured.

    Weak scaling keeps the batch of a rank (micro_batch_size, grad_accum_steps), strong scaling keeps the global batch.
    The base is the smallest world size of the same configuration; rounds are combined by their median. On GPUs

        efficiency(n) = throughput(n) / throughput(base) / (n / base).

    On a CPU the ranks of a trial share the same cores (unless threads_per_rank says otherwise), so that more ranks are
    no more hardware: efficiency(n) = throughput(n) / throughput(base), and `basis` says
    "same total cores" where the threads of all ranks (total_threads) are as many at every size, else "equal shares of
    the cores".

    Args:
        rows: result rows; those without samples_per_second, of another status than ok or another kind than
            throughput are left out.
        work: samples and step times of the window by trial_id, each [2, steps]; with them efficiency has a 95 %
            interval, that of ratio.rate_ratio: it draws processes (rounds), then blocks of steps. One round on a side
            shows the noise within a run only.

    Returns:
        Rows with scaling (weak | strong), implementation, strategy, preset, precision, seq_len, device,
        micro_batch_size, grad_accum_steps, global_batch_size, world_size, nodes, base_world_size, samples_per_second,
        speedup, ideal_speedup, efficiency, efficiency_low, efficiency_high (None without work, and of the base),
        rounds (processes on the side that has fewer), basis (per device | same total cores | equal shares of the
        cores | same cores per rank).
    """
    usable = [row for row in rows if row.get("status", "ok") == "ok" and row.get("samples_per_second")]
    usable = [row for row in usable if row.get("kind", "throughput") == "throughput"]
    result = []
    for kind in ("weak", "strong"):
        groups: dict[Hashable, list[Row]] = defaultdict(list)
        for row in usable:
            groups[_group(row, kind)].append(row)
        for group in groups.values():
            for strategy in _strategies(group):
                members = [row for row in group if row["strategy"] == strategy or _is_single(row, strategy)]
                result.extend(_curve(members, kind, strategy, work or {}))
    return result


def _global_batch(row: Row) -> int:
    return int(row["micro_batch_size"]) * int(row["grad_accum_steps"]) * int(row["world_size"])


def _group(row: Row, kind: str) -> Hashable:
    batch = (row["micro_batch_size"], row["grad_accum_steps"]) if kind == "weak" else (_global_batch(row),)
    return (*circumstances(row), *(row.get(name) for name in _SAME), *map(int, batch))


def _strategies(group: Sequence[Row]) -> list[str]:
    """One device needs no parallelism: 'single' serves as the base of every strategy."""
    names = sorted({str(row["strategy"]) for row in group})
    return [name for name in names if not is_single(name)] or names


def _is_single(row: Row, strategy: str) -> bool:
    return not is_single(strategy) and is_single(str(row["strategy"])) and int(row["world_size"]) == 1


def _curve(
    members: Sequence[Row], kind: str, strategy: str, work: Mapping[str, np.ndarray]
) -> list[dict[str, Any]]:  # fmt: skip
    by_size: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in members:
        by_size[int(row["world_size"]), int(row.get("nodes") or 1)].append(row)
    if len({size for size, _ in by_size}) < 2:  # the same devices on more nodes are no scaling
        return []
    places = {place: _rounds(rows, strategy) for place, rows in sorted(by_size.items())}
    base = next(iter(places))
    cpu_shared = members[0].get("device") == "cpu" and members[0].get("threads_per_rank") is None
    basis = _basis(members, cpu_shared)
    curve = []
    for place, rounds in places.items():
        row = rounds[0]
        ideal = 1.0 if cpu_shared else place[0] / base[0]
        speedup = _rate(rounds) / _rate(places[base])
        low, high = _interval(places[base], rounds, work) if place != base else (None, None)
        curve.append(
            {
                "scaling": kind,
                **{name: row.get(name) for name in ("implementation", "preset", "precision", "seq_len", "device")},
                "strategy": strategy,
                "micro_batch_size": row["micro_batch_size"],
                "grad_accum_steps": row["grad_accum_steps"],
                "global_batch_size": _global_batch(row),
                "world_size": place[0],
                "nodes": place[1],
                "base_world_size": base[0],
                "samples_per_second": _rate(rounds),
                "speedup": speedup,
                "ideal_speedup": ideal,
                "efficiency": speedup / ideal,
                "efficiency_low": None if low is None else low * speedup / ideal,
                "efficiency_high": None if high is None else high * speedup / ideal,
                "rounds": min(len(rounds), len(places[base])),
                "basis": basis,
            }
        )
    return curve


def _interval(
    base: Sequence[Row], rounds: Sequence[Row], work: Mapping[str, np.ndarray]
) -> tuple[float | None, float | None]:
    few, many = ([work[str(row["trial_id"])] for row in side if row.get("trial_id") in work] for side in (base, rounds))
    if not (any(one.size for one in few) and any(one.size for one in many)):
        return None, None
    ratio = rate_ratio(few, many)
    return ratio.low / ratio.value, ratio.high / ratio.value


def _basis(members: Sequence[Row], cpu_shared: bool) -> str:
    if members[0].get("device") != "cpu":
        return "per device"
    if not cpu_shared:
        return "same cores per rank"
    # Cores that the ranks do not divide evenly are left over: three cores are two for two ranks.
    threads = {row.get("total_threads") for row in members}
    return "same total cores" if len(threads) == 1 and None not in threads else "equal shares of the cores"


def _rounds(rows: Sequence[Row], strategy: str) -> list[Row]:
    """Repetitions on one number of devices; where both 'single' and `strategy` ran on one, the strategy's own count."""
    return [row for row in rows if row["strategy"] == strategy] or list(rows)


def _rate(rounds: Sequence[Row]) -> float:
    return float(median(float(row["samples_per_second"]) for row in rounds))
