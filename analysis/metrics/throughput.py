"""Throughput, step time, utilization, memory, energy and cost of one trial, from its records. Needs numpy only.

A step takes as long as on its slowest rank. Throughput is sum over sum: the samples (or tokens, FLOPs) of all steps
inside the window, over all ranks, divided by the sum of their times. Step time is the median.
docs/explanation/measurement.md derives every number.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.metrics import cautions, statistics
from analysis.metrics.telemetry import energy
from records.schema import MEASURED_COLUMNS, PHASE_COLUMNS
from records.trial import Trial

Row = Mapping[str, Any]
Ranks = Mapping[int, Mapping[str, Any]]
Rows = list[dict[str, Any]]
Unknown = dict[str, str]

_COST = "cost_per_million_samples"
_OF_LARGEST_RANK = ("peak_memory_bytes", "peak_memory_kind", "parameters")
_SPREAD = ("step_time_ms_std", "step_time_ms_low", "step_time_ms_high", "median_half_width")
_NO_PRICE = "no price was given (--price-per-hour)"
# Rate -> what of the steps it counts.
_RATES = {
    "samples_per_second": "samples",
    "tokens_per_second": "real_tokens",
    "padded_tokens_per_second": "padded_tokens",
    "model_flops_per_second": "model_flops",
}
_LONG = 3.0  # medians: such a step of a script evaluates, saves, or waits for what is rare
# A rank this much slower in its own work than the median of the others is a straggler.
STRAGGLER_SKEW = 0.05


def summarize(
    trial: Trial,
    steps: Mapping[int, Sequence[Row]],
    ranks: Ranks,
    environment: Row,
    telemetry: Sequence[Row] = (),
    price_per_hour: float | None = None,
) -> dict[str, Any]:
    """Return every measured column of a result, with what is needed to judge it. Nothing is NaN: unknown is None.

    Beside MEASURED_COLUMNS: unknown ({column: why it is None}), window_start, window_stop, warmup_source (given |
    detected), samples_per_step, samples_per_second_low, samples_per_second_high (95 %), median_half_width (relative),
    peak_memory_kind, parameters, measured_peak ({dtype, shape, drift}), step_lacks (what is not installed),
    per_rank, cautions ([{code, message, remedy}]), and of a script `whole_run`.

    `price_per_hour` is that of all devices together.
    """
    if trial.kind == "measure" and trial.profiler is not None:
        trial, steps = _not_profiled(trial, steps)
    absent = trial.world_size - sum(rank < trial.world_size for rank in steps) if trial.nodes > 1 else 0
    window, warmup, source = _window(trial, {} if absent else steps)
    unknown: Unknown = {}
    result: dict[str, Any] = {**dict.fromkeys(MEASURED_COLUMNS), "per_rank": []}
    result |= {"window_start": None, "window_stop": None, "warmup_source": source}
    result |= {"steps_measured": len(window), "steps_warmup": warmup}
    # The peak of the rank that needs most: what one device has to hold.
    most = max(ranks.values(), key=lambda record: int(record.get("peak_memory_bytes") or 0), default={})
    if most.get("peak_memory_bytes"):
        result |= {name: most.get(name) for name in _OF_LARGEST_RANK}
    else:
        result |= dict.fromkeys(_OF_LARGEST_RANK)
        unknown["peak_memory_bytes"] = "no rank recorded its peak memory"
    if window:
        start, stop = window[0]["step"], window[-1]["step"] + 1
        result |= {"window_start": start, "window_stop": stop}
        result |= _times(window, unknown) | _rates(window, unknown)
        result |= {"whole_run": whole_run(combine(steps), ranks)} if trial.kind == "measure" else {}
        result["per_rank"] = per_rank(steps, ranks, start, stop)
        result |= _utilization(trial, ranks, result["model_flops_per_second"], unknown)
        result |= _energy(trial, window, environment, telemetry, unknown)
        result["rank_skew"] = max((r["skew"] for r in result["per_rank"] if r["skew"] is not None), default=None)
    else:
        reason = _why_empty(trial, steps, absent)
        unknown = {name: reason for name in MEASURED_COLUMNS if result[name] is None} | unknown
    for record in ranks.values():  # what a rank says that it did not measure
        unknown |= record.get("unknown") or {}
        result |= dict.fromkeys(record.get("unknown") or {})
    first = next(iter(ranks.values()), {})
    result["step_lacks"] = first.get("step_lacks")
    # Every rank reads every compressed shard: the slowest one counts.
    read = [record["shards_read"] for record in ranks.values() if record.get("shards_read")]
    rates = [float(one["samples"]) / float(one["seconds"]) for one in read if one["seconds"] > 0]
    result["shards_read_samples_per_second"] = min(rates, default=None)
    why = "no compressed shard was read" if trial.kind == "input" else "measured with --input-only"
    unknown["shards_read_samples_per_second"] = why
    unknown.setdefault(_COST, unknown.get("samples_per_second", _NO_PRICE))
    result["unknown"] = {name: unknown.get(name, "not measured") for name in MEASURED_COLUMNS if result[name] is None}
    result["cautions"] = cautions.of_trial(trial, result, window, environment, telemetry)
    return result if price_per_hour is None else at_price(result, price_per_hour)


def at_price(result: Row, price_per_hour: float) -> dict[str, Any]:
    """Return a result with its cost at another price; one that has no cost for another reason stays as it is."""
    rate, unknown = result.get("samples_per_second"), dict(result.get("unknown") or {})
    known = result.get(_COST) is not None or unknown.pop(_COST, None) == _NO_PRICE
    if not rate or not known:
        return dict(result)
    return {**result, _COST: price_per_hour / 3600 / rate * 1e6, "unknown": unknown}


def _window(trial: Trial, steps: Mapping[int, Sequence[Row]]) -> tuple[Rows, int, str]:
    """Return the steps that count, as `combine` makes them, the steps of warm-up, and where these end.

    given: [start_iteration, stop_iteration); detected: all after the detected end of warm-up.
    """
    rows, start, stop = combine(steps), trial.start_iteration, trial.stop_iteration
    if start is not None and stop is not None:
        inside = [row for row in rows if start <= row["step"] < stop]
        return inside, sum(row["step"] < start for row in rows), "given"
    times = np.array([row["step_time_ms"] for row in rows])
    warmup = statistics.warmup_steps(times)
    if trial.kind == "measure" and warmup and np.median(times[:warmup]) < np.median(times[warmup:]):
        warmup = int(np.argmin(times > _LONG * np.median(times)))  # it slows down: only what is far above is warm-up
    return rows[warmup:], warmup, "detected"


def _not_profiled(trial: Trial, steps: Mapping[int, Sequence[Row]]) -> tuple[Trial, dict[int, list[Row]]]:
    """Return a script's trial without its window, which was profiled, and the longer run of steps outside of it.

    The step after the profile is left out too: other ranks wait in it for the one that writes its trace last.
    """
    start, stop = trial.start_iteration or 0, trial.stop_iteration or 0
    before = {rank: [row for row in rows if row["step"] < start] for rank, rows in steps.items()}
    after = {rank: [row for row in rows if row["step"] > stop] for rank, rows in steps.items()}
    longer = max(before, after, key=lambda part: min(map(len, part.values()), default=0))
    return dataclasses.replace(trial, start_iteration=None, stop_iteration=None), longer


def _why_empty(trial: Trial, steps: Mapping[int, Sequence[Row]], absent: int) -> str:
    if absent:
        ranks = f"{absent} rank{'s'[: absent != 1]}"
        return f"{ranks} ran on other nodes: copy the run directories of all {trial.nodes} nodes into one"
    made = len(combine(steps))
    if trial.start_iteration is not None and made:
        return f"only {made} steps were finished, none in [{trial.start_iteration}, {trial.stop_iteration})"
    if trial.kind == "measure" and trial.profiler is not None:
        return "no step was timed outside of the profiled ones"
    return "no step was finished by every rank"


def whole_run(rows: Sequence[Row], ranks: Ranks) -> dict[str, Any]:
    """Return what all steps of a script came to, also warm-up and the long ones.

    `long_every` is the distance of the latter where it is one, `aside` s of rank 0 by what a framework did.
    """
    times = np.array([row["step_time_ms"] for row in rows])
    long = times > _LONG * np.median(times)
    numbers = [row["step"] for row, is_long in zip(rows, long, strict=True) if is_long]
    gaps, first = set(np.diff(numbers[int(long[0]) :]).tolist()), ranks.get(0) or {}
    seconds, samples = float(times.sum()) / 1000, _total(rows, "samples")
    return {
        "seconds": seconds,
        "steps_per_second": len(times) / seconds,
        "samples_per_second": None if samples is None else samples / seconds,
        "long_steps": len(numbers),
        "long_share": float(times[long].sum() / times.sum()),
        "long_every": gaps.pop() if len(gaps) == 1 else None,
        "longest_ms": float(times.max()),
        "aside": {name: one["seconds"] for name, one in (first.get("aside") or {}).items()},
        "framework": first.get("framework") or {},
    }


def _times(window: Rows, unknown: Unknown) -> dict[str, Any]:
    times = np.array([row["step_time_ms"] for row in window])
    p5, median, p95 = np.percentile(times, (5, 50, 95)).tolist()
    values = {"step_time_ms": median, "step_time_ms_p5": p5, "step_time_ms_p95": p95}
    values["step_time_ms_mean"] = float(times.mean())
    spread: dict[str, float | None] = dict.fromkeys(_SPREAD)
    if len(times) > 1:
        low, high = statistics.median_interval(times)
        of_times = (float(times.std(ddof=1)), low, high, statistics.relative_half_width(times))
        spread = dict(zip(_SPREAD, of_times, strict=True))
    else:
        unknown |= dict.fromkeys(_SPREAD, "one measured step has no spread; measure more steps")
    phases = {name: median_of(window, name) for name in PHASE_COLUMNS}
    unknown |= {name: "this part of the step was not measured" for name, value in phases.items() if value is None}
    return values | spread | phases


def _rates(window: Rows, unknown: Unknown) -> dict[str, Any]:
    times = np.array([row["step_time_ms"] for row in window])
    seconds = float(times.sum()) / 1000
    totals = {source: _total(window, source) for source in _RATES.values()}
    rates = {name: None if (total := totals[source]) is None else total / seconds for name, source in _RATES.items()}
    unknown |= {name: f"the step records have no {_RATES[name]}" for name, rate in rates.items() if rate is None}
    real, padded, samples = totals["real_tokens"], totals["padded_tokens"], totals["samples"]
    rates["padding_efficiency"] = real / padded if real is not None and padded else None
    rates["samples_per_step"] = None if samples is None else samples / len(times)
    rates |= {"samples_per_second_low": None, "samples_per_second_high": None}
    if samples is not None and len(times) > 1:
        low, high = statistics.time_per_sample_interval(np.array([[row["samples"] for row in window], times]))
        rates |= {"samples_per_second_low": 1000 / high, "samples_per_second_high": 1000 / low}
    return rates


def _total(rows: Sequence[Row], name: str) -> float | None:
    """Sum of a column; None where a step has none, or all have 0."""
    values = [row[name] for row in rows if row[name] is not None]
    return float(sum(values)) if len(values) == len(rows) and any(values) else None


def _utilization(trial: Trial, ranks: Ranks, rate: float | None, unknown: Unknown) -> dict[str, Any]:
    """MFU of a rate in FLOP/s against the measured peak: per rank the better of before and after, of all devices."""
    measured = {rank: record["measured_peak"] for rank, record in ranks.items() if record.get("measured_peak")}
    pairs = {rank: [peak[when] for when in ("before", "after") if peak.get(when)] for rank, peak in measured.items()}
    peaks = {rank: pair for rank, pair in pairs.items() if pair}
    first = ranks[min(peaks)]["measured_peak"] if peaks else {}
    gemms = first.get("products") or ("float8_e4m3fn" if trial.precision == "fp8" else first.get("dtype"))
    missing = next((rank for rank in range(trial.ranks) if rank not in peaks), None)
    if missing is not None or gemms != first.get("dtype"):
        why = f"the GEMMs ran in {gemms}, but the peak was measured in {first.get('dtype')}"
        why = why if missing is None else f"rank {missing} measured no peak"
        unknown |= {"mfu": why, "measured_peak_flops": why}
        return {"measured_peak": None}
    # A rank that drives several devices measures its first one.
    total = sum(map(max, peaks.values())) * trial.devices_per_rank
    drift = max(max(values) / min(values) - 1 for values in peaks.values())
    mfu = None if rate is None else rate / total
    if rate is None:
        unknown["mfu"] = unknown["model_flops_per_second"]
    about = {"dtype": first.get("dtype"), "shape": first.get("shape"), "drift": drift}
    return {"measured_peak_flops": total, "mfu": mfu, "measured_peak": about}


def _energy(trial: Trial, window: Rows, environment: Row, telemetry: Sequence[Row], unknown: Unknown) -> dict[str, Any]:
    gpus = len({row["device"] for row in telemetry if str(row["device"]).startswith("gpu")})
    begin, end = window[0]["start_ns"], window[-1]["end_ns"]
    if trial.kind == "measure" and trial.device == "cuda" and gpus > trial.world_size:
        why = f"{gpus} GPUs were read, the script used {trial.world_size}: limit CUDA_VISIBLE_DEVICES to what it uses"
    elif begin is None or end is None:
        why = "the step records have no wall-clock times"
    else:
        joules, why = energy(telemetry, begin, end, trial.device, environment.get("telemetry_unavailable"))
        if joules is not None:
            samples = _total(window, "samples")
            return {"energy_joules": joules, "joules_per_sample": joules / samples if samples else None}
    unknown |= {"energy_joules": why, "joules_per_sample": why}
    return {}


def combine(steps: Mapping[int, Sequence[Row]]) -> list[dict[str, Any]]:
    """Return one row per step that every rank finished, of rows of records.schema.STEPS by rank.

    Time and phases are those of the slowest rank in that step, counts are summed over the ranks (None where a rank has
    none), start_ns is the earliest and end_ns the latest.
    """
    by_rank = [_by_step(rows) for rows in steps.values()]
    table = []
    for number in sorted(set.intersection(*map(set, by_rank))) if by_rank else []:
        rows = [by_step[number] for by_step in by_rank]
        slowest = max(rows, key=lambda row: float(row["step_time_ms"]))
        spans = [(int(row["start_ns"]), row["step_time_ms"]) for row in rows if row.get("start_ns") is not None]
        combined: dict[str, Any] = {"step": number, "step_time_ms": float(slowest["step_time_ms"])}
        combined["start_ns"] = min((begin for begin, _ in spans), default=None)
        combined["end_ns"] = max((begin + round(time_ms * 1e6) for begin, time_ms in spans), default=None)
        combined |= {name: slowest.get(name) for name in PHASE_COLUMNS}
        for name in _RATES.values():
            values = [row.get(name) for row in rows]
            combined[name] = None if None in values else sum(v for v in values if v is not None)
        table.append(combined)
    return table


def _by_step(rows: Sequence[Row], start: int = 0, stop: float = math.inf) -> dict[int, Row]:
    """The rows of the steps [start, stop) that have a time, by step; a killed process may leave one without."""
    known = [row for row in rows if row.get("step") is not None and row.get("step_time_ms") is not None]
    timed = {int(row["step"]): row for row in known if math.isfinite(row["step_time_ms"]) and row["step_time_ms"] > 0}
    return {step: row for step, row in timed.items() if start <= step < stop}


def median_of(rows: Sequence[Row], name: str) -> float | None:
    """Return the median of the finite values of a column; None where there is none."""
    values = [float(row[name]) for row in rows if row.get(name) is not None and math.isfinite(row[name])]
    return float(np.median(values)) if values else None


def per_rank(
    steps: Mapping[int, Sequence[Row]], ranks: Mapping[int, Mapping[str, Any]], start: int, stop: int
) -> list[dict[str, Any]]:
    """Return one row per rank over the steps [start, stop).

    Ranks wait for each other in the all-reduce, so their step times hide who is late. `work_ms` is the median of step
    time less exposed communication and data wait; `skew` is that relative to the quickest rank. A rank whose work is 5
    % above the median of the others is the `straggler`. Further columns: rank, step_time_ms, data_wait_ms,
    communication_ms (medians), slowest_share (of the steps), peak_memory_bytes.
    """
    windows = {rank: _by_step(rows, start, stop) for rank, rows in sorted(steps.items())}
    shared = set.intersection(*map(set, windows.values())) if windows else set()
    slowest = [max(windows, key=lambda rank: float(windows[rank][number]["step_time_ms"])) for number in shared]
    table: list[dict[str, Any]] = []
    for rank, by_step in windows.items():
        rows = list(by_step.values())
        waits = [(row.get("communication_ms") or 0.0) + (row.get("data_wait_ms") or 0.0) for row in rows]
        work = [max(float(row["step_time_ms"]) - wait, 0.0) for row, wait in zip(rows, waits, strict=True)]
        row: dict[str, Any] = {"rank": rank, "work_ms": float(np.median(work)) if work else None}
        row |= {name: median_of(rows, name) for name in ("step_time_ms", "data_wait_ms", "communication_ms")}
        row["slowest_share"] = slowest.count(rank) / len(shared) if shared else None
        row["peak_memory_bytes"] = ranks.get(rank, {}).get("peak_memory_bytes")
        table.append(row)
    works = [row["work_ms"] for row in table if row["work_ms"]]
    for row in table:
        row["skew"] = row["work_ms"] / min(works) - 1 if row["work_ms"] else None
        others = [other["work_ms"] for other in table if other is not row and other["work_ms"]]
        late = others and row["work_ms"] and row["work_ms"] > (1 + STRAGGLER_SKEW) * float(np.median(others))
        row["straggler"] = bool(late)
    return table
