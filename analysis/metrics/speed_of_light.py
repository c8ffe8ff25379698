"""The floor of a training step, and where a measured step is above it. Needs numpy only.

A part of a step takes at least as long as its arithmetic takes at the fastest rate of arithmetic that was measured, or
its memory traffic at the highest measured bandwidth (the roofline: Williams, Waterman and Patterson 2009,
Communications of the ACM 52(4)). The floor of the step is

    floor = model FLOPs / measured peak + sum over parts bound by memory of their bytes / measured bandwidth.

Model FLOPs are those of bert.model.step. Parts bound by memory are those without GEMMs: GELU, dropout with residual
and norm, embeddings, the losses, the optimizer; each is charged the traffic that cannot be avoided when it is done
alone. What is only there because better kernels are not (copies between precisions, sums of gradients) has a floor of
0.
The waterfall goes from the floor to the measured step: GEMMs on padding, then what every group of parts takes beyond
its own floor when it is timed alone, waiting for data, exposed communication, and a rest that is called not explained.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.metrics import statistics
from analysis.metrics.cautions import Caution
from analysis.metrics.ranks import combine, median_of
from analysis.metrics.throughput import summarize
from analysis.wording import percent
from common.errors import SchemaError
from records.kinds import GROUPS, SERIES, Component, read_components, read_rounds
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Ceilings:
    """What the device reaches."""

    flops_per_second: float
    bytes_per_second: float

    def __post_init__(self) -> None:
        """Refuse what nothing can be divided by."""
        values = (self.flops_per_second, self.bytes_per_second)
        if not all(math.isfinite(value) and value > 0 for value in values):
            raise SchemaError(
                "file-damaged", f"{self}: a floor needs a peak and a bandwidth above 0; measure that trial again"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What of a whole step is measured in it, in ms."""

    time_ms: float
    low_ms: float | None
    """Of its 95 % interval; None where there is none."""
    high_ms: float | None
    data_wait_ms: float
    communication_ms: float
    """Communication that backward did not hide; 0 with one device."""


def floor_ms(component: Component, ceilings: Ceilings) -> float:
    """Return the least time of one call in ms: model FLOPs at the peak, or without any its bytes at the bandwidth."""
    if component.computed_flops > 0:
        return 1e3 * component.model_flops / ceilings.flops_per_second
    return 1e3 * component.bytes / ceilings.bytes_per_second


def padding_ms(component: Component, ceilings: Ceilings) -> float:
    """Return the time of one call in ms that GEMMs on padding take at the peak."""
    return 1e3 * max(0.0, component.computed_flops - component.model_flops) / ceilings.flops_per_second


def component_rows(
    components: Sequence[Component], times: Mapping[str, Sequence[float]], ceilings: Ceilings
) -> list[dict[str, Any]]:
    """Return one row per part, in the order given: what of it a step takes, and how near it is to its ceiling.

    Columns: the fields of Component, rounds, time_ms (median of one call), time_ms_low, time_ms_high (95 % interval,
    None below two rounds), step_ms (calls_per_step x time_ms), floor_ms (of a step), flops_per_second (of GEMMs:
    computed FLOPs / time), bytes_per_second (of parts without GEMMs), of_ceiling (share of the peak or of the
    bandwidth that is reached on what is really computed; None for a part whose floor is 0).
    """
    rows = []
    for component in components:
        found = times[component.name]
        time = statistics.percentile(found, 50)
        low, high = _interval(found)
        calls, seconds = component.calls_per_step, time / 1e3
        products = component.computed_flops > 0
        rate = component.computed_flops / seconds if products else component.bytes / seconds
        ceiling = ceilings.flops_per_second if products else ceilings.bytes_per_second
        rows.append(
            {
                **dataclasses.asdict(component),
                "rounds": len(found),
                "time_ms": time,
                "time_ms_low": low,
                "time_ms_high": high,
                "step_ms": calls * time,
                "floor_ms": calls * floor_ms(component, ceilings),
                "flops_per_second": rate if products else None,
                "bytes_per_second": rate if not products and component.bytes else None,
                "of_ceiling": rate / ceiling if rate else None,
            }
        )
    return rows


def waterfall(
    components: Sequence[Component], times: Mapping[str, Sequence[float]], ceilings: Ceilings, step: Step
) -> list[dict[str, Any]]:
    """Return the bars from the floor to the measured step; those before the last add up to it.

    A loss may be below 0: parts that stay in a cache are faster than memory, small GEMMs may be faster than the
    peak, and in a step some parts run beside each other.

    Args:
        components: all parts.
        times: by name, the time of one call in ms in each round; as many for each.
        ceilings: of the device.
        step: the whole step.

    Returns:
        Rows {name, kind (floor | loss | total), ms, ms_low, ms_high (95 % interval over the rounds; None where there is
        none), share (of the step)}.
    """
    arithmetic = sum(c.calls_per_step * floor_ms(c, ceilings) for c in components if c.computed_flops > 0)
    memory = sum(c.calls_per_step * floor_ms(c, ceilings) for c in components if c.computed_flops == 0)
    padding = sum(c.calls_per_step * padding_ms(c, ceilings) for c in components)
    bars = [
        _bar(ARITHMETIC, FLOOR, arithmetic),
        _bar("memory-bound parts at the bandwidth", FLOOR, memory),
        _bar("GEMMs on padding", LOSS, padding),
    ]
    for group in GROUPS:
        own = [component for component in components if component.group == group and component.calls_per_step]
        if own:
            bars.append(_loss(_LOSSES[group], own, times, ceilings))
    bars.append(_bar("waiting for data", LOSS, step.data_wait_ms))
    bars.append(_bar("communication", LOSS, step.communication_ms))
    bars.append(_bar(NOT_EXPLAINED, LOSS, step.time_ms - sum(bar["ms"] for bar in bars)))
    bars.append(_bar("measured step", TOTAL, step.time_ms, step.low_ms, step.high_ms))
    return [{**bar, "share": bar["ms"] / step.time_ms} for bar in bars]


def _loss(
    name: str, components: Sequence[Component], times: Mapping[str, Sequence[float]], ceilings: Ceilings
) -> dict[str, Any]:
    """What a group takes beyond its floor and its padding: the median over the rounds of its sum."""
    per_round = np.sum(
        [component.calls_per_step * np.asarray(times[component.name]) for component in components], axis=0
    )
    least = sum(c.calls_per_step * (floor_ms(c, ceilings) + padding_ms(c, ceilings)) for c in components)
    low, high = _interval(per_round)
    moved = [None if end is None else end - least for end in (low, high)]
    return _bar(name, LOSS, float(np.median(per_round)) - least, *moved)


def _bar(name: str, kind: str, ms: float, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    return {"name": name, "kind": kind, "ms": ms, "ms_low": low, "ms_high": high}


def _interval(times: statistics.Times) -> tuple[float | None, float | None]:
    low, high = statistics.median_interval(times)
    return (low if math.isfinite(low) else None, high if math.isfinite(high) else None)


def summarize_components(
    trial: Trial, directory: TrialDirectory, price_per_hour: float | None = None
) -> dict[str, Any]:
    """Return the result of a trial of kind components: what throughput.summarize finds in its steps, and more.

    Further fields: floor_ms, of_floor (floor / step, the share of the speed of light), bandwidth_bytes_per_second,
    components (`component_rows`), waterfall (`waterfall`), drift ({steps, peak, bandwidth}: after / before - 1),
    rounds.
    """
    components = read_components(directory)
    times = read_rounds(directory, components)
    ranks = directory.read_ranks()
    steps = {rank: directory.read_steps(rank) for rank in directory.ranks()}
    series = _series(directory, ranks)
    window = dataclasses.replace(trial, start_iteration=series["before"][0], stop_iteration=series["after"][1])
    found = summarize(window, steps, ranks, directory.read_environment(), directory.read_telemetry(), price_per_hour)
    if found["step_time_ms"] is None:
        raise SchemaError("run-incomplete", f"{directory.path} has no complete step; measure that trial again")
    ceilings = Ceilings(
        flops_per_second=_best(ranks, "measured_peak"), bytes_per_second=_best(ranks, "measured_bandwidth")
    )
    step = Step(
        time_ms=found["step_time_ms"],
        low_ms=found["step_time_ms_low"],
        high_ms=found["step_time_ms_high"],
        data_wait_ms=found["data_wait_ms"] or 0.0,
        communication_ms=found["communication_ms"] or 0.0,
    )
    bars = waterfall(components, times, ceilings, step)
    floor = sum(bar["ms"] for bar in bars if bar["kind"] == FLOOR)
    drift = _drift(combine(steps), series, ranks)
    more = [dataclasses.asdict(caution) for caution in _cautions(bars, drift)]
    return {
        **found,
        "floor_ms": floor,
        "of_floor": floor / step.time_ms,
        "peak_flops_per_second": ceilings.flops_per_second,
        "bandwidth_bytes_per_second": ceilings.bytes_per_second,
        "components": component_rows(components, times, ceilings),
        "waterfall": bars,
        "drift": drift,
        "rounds": len(next(iter(times.values()))),
        "cautions": [*found["cautions"], *more],
    }


def _series(directory: TrialDirectory, ranks: Mapping[int, Mapping[str, Any]]) -> dict[str, list[int]]:
    series = (ranks.get(0) or {}).get("series")
    if not isinstance(series, dict) or any(len(series.get(name) or ()) != 2 for name in SERIES):
        raise SchemaError(
            "run-incomplete",
            f"{directory.rank_json(0)} does not record when steps were made; measure that trial again",
        )
    return series


def _best(ranks: Mapping[int, Mapping[str, Any]], name: str) -> float:
    """The better of before and after, the mean over the ranks; nan where one measured none."""
    best = []
    for record in ranks.values():
        values = [(record.get(name) or {}).get(when) for when in ("before", "after")]
        best.append(max((float(value) for value in values if value), default=math.nan))
    return float(np.mean(best)) if best else math.nan


def _drift(
    rows: Sequence[Mapping[str, Any]], series: Mapping[str, Sequence[int]], ranks: Mapping[int, Mapping[str, Any]]
) -> dict[str, float | None]:
    """How much steps, peak and bandwidth after the rounds are above those before, relative; None where not known."""

    def median(name: str) -> float | None:
        begin, end = series[name]
        return median_of([row for row in rows if begin <= row["step"] < end], "step_time_ms")

    first = ranks.get(0) or {}
    pairs = {"steps": (median("before"), median("after"))}
    for name in ("peak", "bandwidth"):
        record = first.get(f"measured_{name}") or {}
        pairs[name] = (record.get("before"), record.get("after"))
    return {name: after / before - 1 if before and after else None for name, (before, after) in pairs.items()}


def _cautions(bars: Sequence[Mapping[str, Any]], drift: Mapping[str, float | None]) -> list[Caution]:
    found = []
    moved = drift["steps"]
    if moved is not None and abs(moved) > _DRIFT:
        found.append(
            Caution(
                "drifted",
                f"steps after the rounds took {percent(abs(moved))} {'longer' if moved > 0 else 'less'} than before "
                "them: the machine changed speed between parts and steps",
                "stop other work, wait until the machine is warm and quiet, then measure again",
            )
        )
    rest = next(bar for bar in bars if bar["name"] == NOT_EXPLAINED)
    if abs(rest["share"]) > _MOST_NOT_EXPLAINED:
        found.append(
            Caution(
                "not_explained",
                f"the parts timed alone do not explain {percent(rest['share'])} of the step",
                "measure again on a quiet machine; if it remains, `bertbench profile` shows what runs between parts",
            )
        )
    return found
