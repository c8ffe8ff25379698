"""What one trial's records say: throughput, step time, utilization, memory, energy and cost. Needs numpy only.

Throughput is sum over sum: the samples (or tokens, FLOPs) of all steps inside the window, over all ranks, divided by
the sum of their times, each that of the slowest rank. Step time is the median. docs/explanation/measurement.md derives
every number.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.metrics import cautions, statistics
from analysis.metrics.ranks import combine, median_of, per_rank
from analysis.metrics.telemetry import energy
from common.errors import UsageError
from records.schema import MEASURED_COLUMNS, PHASE_COLUMNS
from records.trial import Trial

Row = Mapping[str, Any]

_NO_PRICE = "no price was given (--price-per-hour)"


@dataclass(frozen=True, slots=True)
class Window:
    """Which steps count."""

    rows: list[dict[str, Any]]
    """Steps inside the window, as `ranks.combine` makes them."""
    start: int | None
    """Number of the first measured step; None when there is none."""
    stop: int | None
    """One past the number of the last measured step."""
    warmup: int
    source: str
    """given (start_iteration, stop_iteration) or detected (end of warm-up)."""


def summarize(
    trial: Trial,
    steps: Mapping[int, Sequence[Row]],
    ranks: Mapping[int, Mapping[str, Any]],
    environment: Mapping[str, Any],
    telemetry: Sequence[Row] = (),
    price_per_hour: float | None = None,
) -> dict[str, Any]:
    """Return every measured column of a result, with what is needed to judge it. Nothing is NaN: unknown is None.

    Args:
        trial: what ran.
        steps: rows of records.schema.STEPS by rank.
        ranks: rank records: peak_memory_bytes, peak_memory_kind, measured_peak, parameters, seconds.
        environment: env.json.
        telemetry: rows of records.schema.TELEMETRY.
        price_per_hour: price of all devices of the trial together.

    Returns:
        MEASURED_COLUMNS, and unknown ({column: why it is None}), window_start, window_stop, warmup_source (given |
        detected), samples_per_step, samples_per_second_low, samples_per_second_high (95 % interval), median_half_width
        (relative), peak_memory_kind, parameters, energy_devices (those that train), host_energy_joules (of GPU trials,
        where RAPL was read), measured_peak ({dtype, shape, drift}),
        levers_on (optimizations that were on, None if not recorded), levers_left_out ({name: why it has no effect}),
        attention (operator, shape, times_ms and left_out of attention without padding on a GPU, else None),
        per_rank (see ranks.per_rank), cautions ([{code, message, remedy}]).

    Raises:
        UsageError: price_per_hour is not above 0.
    """
    check_price(price_per_hour)
    made = steps
    if trial.kind == "measure" and trial.profiler is not None:
        trial, steps = _not_profiled(trial, steps)
    absent = trial.world_size - sum(rank < trial.world_size for rank in steps) if trial.nodes > 1 else 0
    window = find_window(trial, {} if absent else steps)
    unknown: dict[str, str] = {}
    result: dict[str, Any] = dict.fromkeys(MEASURED_COLUMNS)
    result |= {"window_start": window.start, "window_stop": window.stop, "warmup_source": window.source}
    result |= {"steps_measured": len(window.rows), "steps_warmup": window.warmup}
    result |= _memory(ranks, unknown)
    if window.rows and window.start is not None and window.stop is not None:
        result |= _times(window, unknown)
        result |= _rates(window, unknown)
        result["per_rank"] = per_rank(steps, ranks, window.start, window.stop)
        result |= _utilization(trial, ranks, result, unknown)
        result |= _energy(trial, window, environment, telemetry, unknown)
        result["rank_skew"] = max((r["skew"] for r in result["per_rank"] if r["skew"] is not None), default=None)
    else:
        reason = _why_empty(trial, steps, absent)
        unknown.update({name: reason for name in MEASURED_COLUMNS if result[name] is None and name not in unknown})
        result["per_rank"] = []
    unknown |= _not_measured(ranks, result)
    first = next(iter(ranks.values()), {})
    result |= {"levers_on": first.get("levers"), "levers_left_out": first.get("levers_left_out") or {}}
    result["shards_read_samples_per_second"] = _read_rate(ranks)
    unknown["shards_read_samples_per_second"] = (
        "no compressed shard was read" if trial.kind == "input" else "measured with --input-only"
    )
    rate = result["samples_per_second"]
    if "cost_per_million_samples" in unknown:
        pass
    elif price_per_hour is None:
        unknown["cost_per_million_samples"] = _NO_PRICE
    elif rate:
        result["cost_per_million_samples"] = _cost(price_per_hour, rate)
    result["unknown"] = {name: unknown.get(name, "not measured") for name in MEASURED_COLUMNS if result[name] is None}
    result["cautions"] = cautions.of_trial(trial, result, window.rows, environment, telemetry)
    result["cautions"] += cautions.of_records(made, ranks)
    return result


def at_price(result: Mapping[str, Any], price_per_hour: float) -> dict[str, Any]:
    """Return a result with its cost at another price; one that has no cost for another reason stays as it is.

    Args:
        result: what `summarize` returned, or result.json.
        price_per_hour: price of all devices of the trial together, above 0.
    """
    name = "cost_per_million_samples"
    rate, unknown = result.get("samples_per_second"), dict(result.get("unknown") or {})
    known = result.get(name) is not None or unknown.pop(name, None) == _NO_PRICE
    if not rate or not known:
        return dict(result)
    return {**result, name: _cost(price_per_hour, rate), "unknown": unknown}


def _cost(price_per_hour: float, samples_per_second: float) -> float:
    return price_per_hour / 3600 / samples_per_second * 1e6


def check_price(price_per_hour: float | None) -> None:
    """Raise UsageError for a price that is not above 0."""
    if price_per_hour is not None and not (math.isfinite(price_per_hour) and price_per_hour > 0):
        raise UsageError(
            "option-value",
            f"--price-per-hour {price_per_hour} must be above 0: give the price of the machine for one hour",
        )


def find_window(trial: Trial, steps: Mapping[int, Sequence[Row]]) -> Window:
    """Return the steps that count: [start_iteration, stop_iteration), or all after the detected end of warm-up."""
    rows = combine(steps)
    if trial.start_iteration is not None and trial.stop_iteration is not None:
        inside = [row for row in rows if trial.start_iteration <= row["step"] < trial.stop_iteration]
        before = sum(row["step"] < trial.start_iteration for row in rows)
        source = "given"
    else:
        before = statistics.warmup_steps([row["step_time_ms"] for row in rows])
        inside = rows[before:]
        source = "detected"
    if not inside:
        return Window([], None, None, before, source)
    return Window(inside, inside[0]["step"], inside[-1]["step"] + 1, before, source)


def _not_profiled(trial: Trial, steps: Mapping[int, Sequence[Row]]) -> tuple[Trial, dict[int, list[Row]]]:
    """Return a script's trial without its window, which was profiled, and the longer run of steps outside of it.

    The step after the profile is left out too: other ranks wait in it for the one that writes its trace last.
    """
    start, stop = trial.start_iteration or 0, trial.stop_iteration or 0
    before = {rank: [row for row in rows if row["step"] < start] for rank, rows in steps.items()}
    after = {rank: [row for row in rows if row["step"] > stop] for rank, rows in steps.items()}
    longer = max(before, after, key=lambda part: min(map(len, part.values()), default=0))
    return dataclasses.replace(trial, start_iteration=None, stop_iteration=None), longer


def _not_measured(ranks: Mapping[int, Mapping[str, Any]], result: dict[str, Any]) -> dict[str, str]:
    """Make unknown what a rank says that it did not measure; return why, by column."""
    reasons = {name: reason for record in ranks.values() for name, reason in (record.get("unknown") or {}).items()}
    result |= dict.fromkeys(reasons)
    return reasons


def _read_rate(ranks: Mapping[int, Mapping[str, Any]]) -> float | None:
    """Samples of compressed shards that the slowest rank read per second; every rank reads every shard."""
    read = [record["shards_read"] for record in ranks.values() if record.get("shards_read")]
    rates = [float(one["samples"]) / float(one["seconds"]) for one in read if one["seconds"] > 0]
    return min(rates, default=None)


def _why_empty(trial: Trial, steps: Mapping[int, Sequence[Row]], absent: int) -> str:
    if absent:
        ranks = f"{absent} rank{'s'[: absent != 1]}"
        return (
            f"the records of {ranks} are on other nodes: copy the run directories of all {trial.nodes} nodes into one"
        )
    made = len(combine(steps))
    if trial.start_iteration is not None and made:
        return f"only {made} steps were finished, none in [{trial.start_iteration}, {trial.stop_iteration})"
    if trial.kind == "measure" and trial.profiler is not None:
        return "no step was timed outside of the profiled ones"
    return "no step was finished by every rank"


def _times(window: Window, unknown: dict[str, str]) -> dict[str, Any]:
    times = np.array([row["step_time_ms"] for row in window.rows])
    described = statistics.describe(times)
    low, high = statistics.median_interval(times)
    values: dict[str, float | None] = {"step_time_ms": described["median"]}
    values |= {f"step_time_ms_{name}": described[name] for name in ("p5", "p95", "mean", "std")}
    values |= {"step_time_ms_low": low, "step_time_ms_high": high}
    values["median_half_width"] = statistics.relative_half_width(times)
    for name, value in values.items():
        if value is None or not math.isfinite(value):
            values[name] = None
            unknown[name] = "one measured step has no spread; measure more steps"
    for name in PHASE_COLUMNS:
        values[name] = median_of(window.rows, name)
        if values[name] is None:
            unknown[name] = "this part of the step was not measured"
    return values


def _rates(window: Window, unknown: dict[str, str]) -> dict[str, Any]:
    times = np.array([row["step_time_ms"] for row in window.rows])
    seconds = float(times.sum()) / 1000
    columns = {
        "samples_per_second": "samples",
        "tokens_per_second": "real_tokens",
        "padded_tokens_per_second": "padded_tokens",
        "model_flops_per_second": "model_flops",
    }
    totals = {source: _total(window.rows, source) for source in columns.values()}
    rates: dict[str, Any] = {}
    for name, source in columns.items():
        total = totals[source]
        rates[name] = None if total is None else total / seconds
        if total is None:
            unknown[name] = f"the step records have no {source}"
    real, padded, samples = totals["real_tokens"], totals["padded_tokens"], totals["samples"]
    rates["padding_efficiency"] = real / padded if real is not None and padded else None
    rates["samples_per_step"] = None if samples is None else samples / len(times)
    rates |= {"samples_per_second_low": None, "samples_per_second_high": None}
    if samples is not None and len(times) > 1:
        work = np.array([[row["samples"] for row in window.rows], times])
        low, high = statistics.time_per_sample_interval(work)
        rates |= {"samples_per_second_low": 1000 / high, "samples_per_second_high": 1000 / low}
    return rates


def _total(rows: Sequence[Row], name: str) -> float | None:
    values = [row.get(name) for row in rows]
    if any(value is None or not math.isfinite(value) for value in values) or not any(values):
        return None
    return float(sum(value for value in values if value is not None))


def _memory(ranks: Mapping[int, Mapping[str, Any]], unknown: dict[str, str]) -> dict[str, Any]:
    """Peak of the rank that needs most: what one device has to hold."""
    records = [record for record in ranks.values() if record.get("peak_memory_bytes")]
    if not records:
        unknown["peak_memory_bytes"] = "no rank recorded its peak memory"
        return {"peak_memory_bytes": None, "peak_memory_kind": None, "parameters": None}
    most = max(records, key=lambda record: int(record["peak_memory_bytes"]))
    return {
        "peak_memory_bytes": int(most["peak_memory_bytes"]),
        "peak_memory_kind": most.get("peak_memory_kind"),
        "parameters": most.get("parameters"),
    }


def _utilization(
    trial: Trial, ranks: Mapping[int, Mapping[str, Any]], result: Mapping[str, Any], unknown: dict[str, str]
) -> dict[str, Any]:
    """MFU against the measured peak: per rank the better of before and after the trial, summed over all devices.

    A peak of another type than the trial's GEMMs does not count: older records have one in bf16 beside FP8.
    """
    found = {rank: _peak_of(record.get("measured_peak") or {}) for rank, record in ranks.items()}
    peaks = {rank: values for rank, values in found.items() if values}
    missing = trial.ranks - sum(rank < trial.ranks for rank in peaks)
    if missing:
        first_missing = next(rank for rank in range(trial.ranks) if rank not in peaks)
        others = f" (nor {missing - 1} other{'s'[: missing > 2]})" if missing > 1 else ""
        reason = f"rank {first_missing} measured no peak{others}"
        unknown["mfu"] = unknown["measured_peak_flops"] = reason
        return {"measured_peak": None}
    # A rank that drives several devices measures its first one.
    total = sum(max(values) for values in peaks.values()) * trial.devices_per_rank
    first = ranks[min(peaks)]["measured_peak"]
    drift = max(max(values) / min(values) - 1 for values in peaks.values())
    products, dtype = _products(trial, first), first.get("dtype")
    if products is not None and products != dtype:
        again = "" if first.get("products") else ": measure the trial again"
        unknown["mfu"] = unknown["measured_peak_flops"] = (
            f"the GEMMs ran in {products}, but the peak was measured in {dtype}{again}"
        )
        return {"measured_peak": None}
    rate = result["model_flops_per_second"]
    if rate is None:
        unknown["mfu"] = unknown["model_flops_per_second"]
    return {
        "measured_peak_flops": total,
        "mfu": None if rate is None else rate / total,
        "measured_peak": {"dtype": first.get("dtype"), "shape": first.get("shape"), "drift": drift},
    }


def _products(trial: Trial, peak: Mapping[str, Any]) -> str | None:
    """Return the type that GEMMs ran in; None if no record says that it differs from the peak's."""
    if peak.get("products"):
        return str(peak["products"])
    return "float8_e4m3fn" if "fp8" in trial.levers.split("+") else None


def _peak_of(peak: Mapping[str, Any]) -> list[float]:
    values = [peak.get("before"), peak.get("after")]
    return [float(value) for value in values if value is not None and math.isfinite(value) and value > 0]


def _energy(
    trial: Trial,
    window: Window,
    environment: Mapping[str, Any],
    telemetry: Sequence[Row],
    unknown: dict[str, str],
) -> dict[str, Any]:
    gpus = len({row["device"] for row in telemetry if str(row["device"]).startswith("gpu")})
    if trial.kind == "measure" and trial.device == "cuda" and gpus > trial.world_size:
        unknown["energy_joules"] = unknown["joules_per_sample"] = (
            f"{gpus} GPUs were read and the script used {trial.world_size}: limit CUDA_VISIBLE_DEVICES to what it uses"
        )
        return {}
    begin, end = window.rows[0]["start_ns"], window.rows[-1]["end_ns"]
    if begin is None or end is None:
        unknown["energy_joules"] = unknown["joules_per_sample"] = "the step records have no wall-clock times"
        return {}
    used = energy(telemetry, begin, end, trial.device, environment.get("telemetry_unavailable"))
    samples = _total(window.rows, "samples")
    host = {} if used.host_joules is None else {"host_energy_joules": used.host_joules}
    if used.joules is None:
        unknown["energy_joules"] = unknown["joules_per_sample"] = used.reason or "not measured"
        return host
    per_sample = used.joules / samples if samples else None
    return {"energy_joules": used.joules, "joules_per_sample": per_sample, "energy_devices": list(used.devices), **host}
