"""Scaling efficiency over device counts: weak and strong."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from statistics import median
from typing import Any

from analysis.load import circumstances

Row = Mapping[str, Any]

_SAME = ("task", "implementation", "preset", "precision", "seq_len", "device")


def efficiency(rows: Sequence[Row]) -> list[dict[str, Any]]:
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

    Returns:
        Rows with scaling (weak | strong), implementation, strategy, preset, precision, seq_len, device,
        micro_batch_size, grad_accum_steps, global_batch_size, world_size, base_world_size, samples_per_second, speedup,
        ideal_speedup, efficiency, basis (per device | same total cores | equal shares of the cores |
        same cores per rank).
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
                result.extend(_curve(members, kind, strategy))
    return result


def _global_batch(row: Row) -> int:
    return int(row["micro_batch_size"]) * int(row["grad_accum_steps"]) * int(row["world_size"])


def _group(row: Row, kind: str) -> Hashable:
    batch = (row["micro_batch_size"], row["grad_accum_steps"]) if kind == "weak" else (_global_batch(row),)
    return (*circumstances(row), *(row.get(name) for name in _SAME), *map(int, batch))


def _strategies(group: Sequence[Row]) -> list[str]:
    """One device needs no parallelism: 'single' serves as the base of every strategy."""
    names = sorted({str(row["strategy"]) for row in group})
    return [name for name in names if name != "single"] or names


def _is_single(row: Row, strategy: str) -> bool:
    return strategy != "single" and row["strategy"] == "single" and int(row["world_size"]) == 1


def _curve(members: Sequence[Row], kind: str, strategy: str) -> list[dict[str, Any]]:
    by_size: dict[int, list[Row]] = defaultdict(list)
    for row in members:
        by_size[int(row["world_size"])].append(row)
    if len(by_size) < 2:
        return []
    sizes = sorted(by_size)
    rates = {size: _rate(by_size[size], strategy) for size in sizes}
    base = sizes[0]
    cpu_shared = members[0].get("device") == "cpu" and members[0].get("threads_per_rank") is None
    basis = _basis(members, cpu_shared)
    curve = []
    for size in sizes:
        row = by_size[size][0]
        ideal = 1.0 if cpu_shared else size / base
        speedup = rates[size] / rates[base]
        curve.append(
            {
                "scaling": kind,
                **{name: row.get(name) for name in ("implementation", "preset", "precision", "seq_len", "device")},
                "strategy": strategy,
                "micro_batch_size": row["micro_batch_size"],
                "grad_accum_steps": row["grad_accum_steps"],
                "global_batch_size": _global_batch(row),
                "world_size": size,
                "base_world_size": base,
                "samples_per_second": rates[size],
                "speedup": speedup,
                "ideal_speedup": ideal,
                "efficiency": speedup / ideal,
                "basis": basis,
            }
        )
    return curve


def _basis(members: Sequence[Row], cpu_shared: bool) -> str:
    if members[0].get("device") != "cpu":
        return "per device"
    if not cpu_shared:
        return "same cores per rank"
    # Cores that the ranks do not divide evenly are left over: three cores are two for two ranks.
    threads = {row.get("total_threads") for row in members}
    return "same total cores" if len(threads) == 1 and None not in threads else "equal shares of the cores"


def _rate(rows: Sequence[Row], strategy: str) -> float:
    """Median over rounds; where both 'single' and `strategy` ran on one device, the strategy's own counts."""
    own = [row for row in rows if row["strategy"] == strategy] or rows
    return float(median(float(row["samples_per_second"]) for row in own))
