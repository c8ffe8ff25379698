"""The floor of a training step, and where a measured step is above it. Needs numpy only.

A part of a step takes at least as long as its arithmetic at the fastest measured rate, or its memory traffic at the
highest measured bandwidth (the roofline: Williams, Waterman and Patterson 2009, Communications of the ACM 52(4)):

    floor = model FLOPs / measured peak + sum over parts bound by memory of their bytes / measured bandwidth.

Parts bound by memory are those without GEMMs, each charged the traffic that cannot be avoided when it is done alone;
copies between precisions and sums of gradients have a floor of 0. The waterfall goes from the floor to the measured
step: GEMMs on padding, what every group of parts takes beyond its floor when it is timed alone, waiting for data,
exposed communication, and a rest that is not explained.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from analysis.metrics import statistics
from analysis.metrics.cautions import Caution
from analysis.metrics.throughput import combine, median_of, summarize
from analysis.wording import percent
from common.errors import SchemaError
from records.components import GROUPS, Component, read_components, read_rounds
from records.run import TrialDirectory
from records.trial import Trial

# Bars of a waterfall.
FLOOR, LOSS, TOTAL = "floor", "loss", "total"

ARITHMETIC = "GEMMs at the peak"
NOT_EXPLAINED = "not explained"
_LOSSES = {
    "layers": "GEMMs below the peak",
    "attention": "attention",
    "head": "head and its loss",
    "elementwise": "elementwise parts",
    "copies": "casts and sums of gradients",
    "optimizer": "optimizer",
}
_DRIFT = 0.10
_MOST_NOT_EXPLAINED = 0.25


class Ceilings(NamedTuple):
    """Fastest rates measured on the device."""

    flops_per_second: float
    bytes_per_second: float

    def floor_ms(self, component: Component) -> float:
        """Least time of one call: model FLOPs at the peak, or without any its bytes at the bandwidth."""
        work, rate = component.model_flops, self.flops_per_second
        if component.computed_flops <= 0:
            work, rate = component.bytes, self.bytes_per_second
        return 1e3 * work / rate

    def padding_ms(self, component: Component) -> float:
        """Time of one call that GEMMs on padding take at the peak."""
        return 1e3 * max(0.0, component.computed_flops - component.model_flops) / self.flops_per_second


def component_rows(
    components: Sequence[Component], times: Mapping[str, Sequence[float]], ceilings: Ceilings
) -> list[dict[str, Any]]:
    """Return one row per part: what of it a step takes, and how near it is to its ceiling.

    Columns: the fields of Component, rounds, time_ms (median of one call) with _low and _high (95 %, None below two
    rounds), step_ms, floor_ms (both of a step), flops_per_second (of GEMMs), bytes_per_second (of other parts),
    of_ceiling (share of peak or bandwidth; None for a part whose floor is 0).
    """
    rows = []
    for component in components:
        rounds, gemms = times[component.name], component.computed_flops > 0
        time = statistics.percentile(rounds, 50)
        row: dict[str, Any] = {**dataclasses.asdict(component), "rounds": len(rounds), "time_ms": time}
        row["time_ms_low"], row["time_ms_high"] = _interval(rounds)
        row["step_ms"] = component.calls_per_step * time
        row["floor_ms"] = component.calls_per_step * ceilings.floor_ms(component)
        rate = (component.computed_flops if gemms else component.bytes) / (time / 1e3)
        row["flops_per_second"] = rate if gemms else None
        row["bytes_per_second"] = rate if not gemms and component.bytes else None
        row["of_ceiling"] = rate / ceilings[0 if gemms else 1] if rate else None
        rows.append(row)
    return rows


def waterfall(
    components: Sequence[Component], times: Mapping[str, Sequence[float]], ceilings: Ceilings, step: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the bars from the floor to the measured step; those before the last add up to it.

    A loss may be below 0: small parts may be faster than the ceilings, and in a step some run beside each other.
    `times` are those of one call in ms in each round by name; `step` has step_time_ms with _low and _high, data_wait_ms
    and communication_ms. Columns: name, kind (floor | loss | total), ms, ms_low, ms_high (None without interval),
    share.
    """
    whole = step["step_time_ms"]
    bars: list[dict[str, Any]] = []

    def add(name: str, kind: str, ms: float, low: float | None = None, high: float | None = None) -> None:
        bars.append({"name": name, "kind": kind, "ms": ms, "ms_low": low, "ms_high": high, "share": ms / whole})

    gemms = [one for one in components if one.computed_flops > 0]
    others = [one for one in components if one.computed_flops == 0]
    add(ARITHMETIC, FLOOR, sum(one.calls_per_step * ceilings.floor_ms(one) for one in gemms))
    memory = sum(one.calls_per_step * ceilings.floor_ms(one) for one in others)
    add("memory-bound parts at the bandwidth", FLOOR, memory)
    add("GEMMs on padding", LOSS, sum(one.calls_per_step * ceilings.padding_ms(one) for one in components))
    for group in GROUPS:
        members = [component for component in components if component.group == group]
        if members:  # what a group takes beyond its floor and its padding: the median over the rounds of its sum
            per_round = np.sum([one.calls_per_step * np.asarray(times[one.name]) for one in members], axis=0)
            least = sum(one.calls_per_step * (ceilings.floor_ms(one) + ceilings.padding_ms(one)) for one in members)
            ends = (None if end is None else end - least for end in _interval(per_round))
            add(_LOSSES[group], LOSS, float(np.median(per_round)) - least, *ends)
    add("waiting for data", LOSS, step["data_wait_ms"] or 0.0)
    add("communication", LOSS, step["communication_ms"] or 0.0)
    add(NOT_EXPLAINED, LOSS, whole - sum(bar["ms"] for bar in bars))
    add("measured step", TOTAL, whole, step["step_time_ms_low"], step["step_time_ms_high"])
    return bars


def _interval(times: statistics.Times) -> tuple[float | None, float | None]:
    low, high = statistics.median_interval(times)
    return (low if math.isfinite(low) else None, high if math.isfinite(high) else None)


def summarize_components(
    trial: Trial, directory: TrialDirectory, price_per_hour: float | None = None
) -> dict[str, Any]:
    """Return the result of a trial of kind components: throughput.summarize, and the parts of its step.

    Further fields: floor_ms, of_floor (floor / step), peak_flops_per_second, bandwidth_bytes_per_second, components,
    waterfall, drift ({steps, peak, bandwidth}: after / before - 1), rounds. Raises SchemaError: a record is not
    complete.
    """
    components = read_components(directory)
    times = read_rounds(directory, components)
    ranks, steps = directory.read_ranks(), {rank: directory.read_steps(rank) for rank in directory.ranks()}
    first = ranks.get(0) or {}
    ceilings = Ceilings(_best(ranks, "measured_peak"), _best(ranks, "measured_bandwidth"))
    series = first.get("series")
    if not series or not all(ceilings):
        missing = "series of steps" if not series else "peak and bandwidth above 0"
        raise SchemaError("run-incomplete", f"{directory.path} has no {missing}; measure that trial again")
    window = dataclasses.replace(trial, start_iteration=series["before"][0], stop_iteration=series["after"][1])
    result = summarize(window, steps, ranks, directory.read_environment(), directory.read_telemetry(), price_per_hour)
    if result["step_time_ms"] is None:
        raise SchemaError("run-incomplete", f"{directory.path} has no complete step; measure that trial again")
    bars = waterfall(components, times, ceilings, result)
    floor = sum(bar["ms"] for bar in bars if bar["kind"] == FLOOR)
    rows = combine(steps)
    pairs = {name: first.get(f"measured_{name}") or {} for name in ("peak", "bandwidth")}
    pairs["steps"] = {
        name: median_of([row for row in rows if series[name][0] <= row["step"] < series[name][1]], "step_time_ms")
        for name in ("before", "after")
    }
    drift = {
        name: pair["after"] / pair["before"] - 1 if pair.get("before") and pair.get("after") else None
        for name, pair in pairs.items()
    }
    return {
        **result,
        "floor_ms": floor,
        "of_floor": floor / result["step_time_ms"],
        "peak_flops_per_second": ceilings.flops_per_second,
        "bandwidth_bytes_per_second": ceilings.bytes_per_second,
        "components": component_rows(components, times, ceilings),
        "waterfall": bars,
        "drift": drift,
        "rounds": len(next(iter(times.values()))),
        "cautions": [*result["cautions"], *map(dataclasses.asdict, _cautions(bars, drift["steps"]))],
    }


def _best(ranks: Mapping[int, Mapping[str, Any]], name: str) -> float:
    """The better of before and after, the mean over the ranks; 0 where one measured none."""
    values = [[(record.get(name) or {}).get(when) or 0.0 for when in ("before", "after")] for record in ranks.values()]
    best = [float(max(pair)) for pair in values]
    return float(np.mean(best)) if best and all(best) else 0.0


def _cautions(bars: Sequence[Mapping[str, Any]], moved: float | None) -> list[Caution]:
    cautions = []
    if moved is not None and abs(moved) > _DRIFT:
        change = f"{percent(abs(moved))} {'longer' if moved > 0 else 'less'}"
        message = f"steps after the rounds took {change} than before them: the machine changed speed"
        cautions.append(Caution("drifted", message, "wait until the machine is warm and quiet, then measure again"))
    rest = next(bar for bar in bars if bar["name"] == NOT_EXPLAINED)["share"]
    if abs(rest) > _MOST_NOT_EXPLAINED:
        message = f"the parts timed alone do not explain {percent(rest)} of the step"
        remedy = "measure again on a quiet machine; if it remains, `bertbench profile` shows what runs between parts"
        cautions.append(Caution("not_explained", message, remedy))
    return cautions
