"""Utilization of the kinds of cores (the pipes of the SMs), from the counters of every kernel (Nsight Compute).

For each pipe: sum over kernels(weight x percent) / sum(weight), the weight being the kernel's elapsed cycles, or its
duration where cycles are not known. docs/explanation/core-utilization.md derives it and lists the metrics.

Hardware counters that PyTorch's profiler sampled (CUPTI) say what SMs and tensor pipes did over time.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis.counters import KernelCounters
from analysis.metrics.kernels.ncu_metrics import PIPES, metrics_of, no_metric, pipe_percent
from analysis.names import family
from analysis.timeline import Timeline

FOUR: Mapping[str, str] = {"fma": "FMA", "fp16": "FP16", "tensor": "tensor cores", "sfu": "SFU"}
"""The four main kinds of cores, with the names shown to people."""


def core_use(counters: KernelCounters, window_ns: float | None = None) -> pd.DataFrame:
    """Return the utilization of each of PIPES over all kernels of a file, NaN where it is not known.

    The window is the length of the same iterations without the profiler; several processes have one each. Columns:
    percent of the peak rate while kernels run, in_window_percent with the time in which none runs, metric (what it was
    computed from; None where the file has none), reason (why it is NaN, or how many kernels were not counted).
    """
    frame = counters.kernels
    whole = core_use_by(counters, pd.Series("all", frame.index), window_ns).reindex(["all"])
    weights, late, table = frame[_weight(frame)], "", {}
    if window_ns is not None and frame["duration_ns"].isna().any():
        late = "the share of the window needs the duration of every kernel"
    elif window_ns is not None and frame["duration_ns"].sum() > _windows_ns(frame, window_ns):
        busy, window = (f"{ns / 1e6:,.3f} ms" for ns in (frame["duration_ns"].sum(), _windows_ns(frame, window_ns)))
        late = f"kernels took {busy} under ncu, the window {window}: record with `ncu --clock-control none`"
    for pipe in PIPES:
        metrics = metrics_of(pipe, counters.compute_capability)
        values, metric = pipe_percent(frame, metrics)
        lacking = int((values.isna() | weights.isna()).sum())
        if not len(frame):
            reasons = ["no kernel was profiled"]
        elif metric is None:
            reasons = [no_metric(frame, metrics)]
        elif weights.isna().all():
            reasons = ["the file has neither cycles nor durations, so kernels cannot be weighted"]
        else:
            partly = f"{lacking} of {len(frame)} kernels have no value and are skipped" if lacking else ""
            unknown = "the share of the window needs a value of every kernel" if values.isna().any() else ""
            reasons = [partly, late or (unknown if window_ns is not None else "")]
        percents = [whole.loc["all", f"{pipe}{end}"] for end in ("_percent", "_in_window_percent")]
        table[pipe] = [*percents, metric, ", ".join(filter(None, reasons))]
    return pd.DataFrame.from_dict(table, orient="index", columns=["percent", "in_window_percent", "metric", "reason"])


def core_use_by_family(counters: KernelCounters, window_ns: float | None = None) -> pd.DataFrame:
    """Return the utilization for each family of kernels (GEMM, attention, ...), as `core_use_by`."""
    return core_use_by(counters, counters.kernels["name"].map(family), window_ns)


def core_use_by(counters: KernelCounters, labels: "pd.Series[str]", window_ns: float | None = None) -> pd.DataFrame:
    """Return the utilization for each group of kernels, which `labels` names; the longest first, NaN where not known.

    Columns: kernels, timed (those that have a duration), kernel_time_ms (of these), cycles (NaN where not every kernel
    has them), and of each of PIPES <pipe>_percent and <pipe>_in_window_percent, which add up over the groups.
    """
    frame = counters.kernels
    groups, weight = frame.groupby(labels, sort=False), frame[_weight(frame)]
    lengths = groups[["duration_ns", "cycles"]]
    counts, sums = lengths.count(), lengths.sum(min_count=1)
    columns = {"kernels": groups.size(), "timed": counts["duration_ns"], "kernel_time_ms": sums["duration_ns"] / 1e6}
    columns["cycles"] = sums["cycles"].where(counts["cycles"] == columns["kernels"])
    window = float("nan") if window_ns is None else _windows_ns(frame, window_ns)
    fits = bool(frame["duration_ns"].notna().all()) and float(frame["duration_ns"].sum()) <= window
    for pipe in PIPES:
        values, _ = pipe_percent(frame, metrics_of(pipe, counters.compute_capability))
        parts = {
            "weighted": values * weight,
            "weight": weight.where(values.notna()),
            "busy": values * frame["duration_ns"],
        }
        totals = pd.DataFrame(parts).groupby(labels, sort=False).sum()
        columns[f"{pipe}_percent"] = totals["weighted"] / totals["weight"].where(totals["weight"] > 0)
        every = values.notna().groupby(labels, sort=False).all() & fits
        columns[f"{pipe}_in_window_percent"] = (totals["busy"] / window).where(every)
    table = pd.DataFrame(columns)
    order = table["kernel_time_ms"] if frame["duration_ns"].notna().any() else sums["cycles"]
    return table.loc[order.sort_values(ascending=False, kind="stable").index]


def utilization_row(counters: KernelCounters, window_ns: float | None = None) -> dict[str, Any]:
    """Return the row of core_utilization.csv of a file.

    Columns: device, kernels, kernel_time_ms, weight (what kernels are weighted by: "cycles" or "duration"),
    <pipe>_percent and <pipe>_in_window_percent for each of PIPES, metrics (what each pipe was computed from), reason.
    None is not known.
    """
    frame, use = counters.kernels, core_use(counters, window_ns)
    weight = _weight(frame) if frame[_weight(frame)].notna().any() else ""
    row: dict[str, Any] = {"device": counters.device_name, "kernels": len(frame)}
    row |= {"kernel_time_ms": frame["duration_ns"].sum(min_count=1) / 1e6}
    row |= {"weight": weight.removesuffix("_ns") or None}
    for pipe, percent, in_window in use[["percent", "in_window_percent"]].itertuples():
        row |= {f"{pipe}_percent": percent, f"{pipe}_in_window_percent": in_window}
    row = {name: None if value != value else value for name, value in row.items()}  # NaN
    row["metrics"] = "; ".join(f"{pipe}={metric}" for pipe, metric in use["metric"].dropna().items())
    row["reason"] = "; ".join(f"{pipe}: {reason}" for pipe, reason in use["reason"].items() if reason)
    return row


def _weight(frame: pd.DataFrame) -> str:
    """Return the column that weights the kernels: one unit for all, cycles unless more kernels have a duration."""
    return "cycles" if frame["cycles"].count() >= frame["duration_ns"].count() else "duration_ns"


def _windows_ns(frame: pd.DataFrame, window_ns: float) -> float:
    return window_ns * max(1, int(frame["process"].nunique()))


_SAMPLED = {
    "sm_utilization": r"sm__(?:cycles_active|throughput)\b.*pct_of_peak_sustained",
    "tensor_utilization": r"sm__\w*pipe_tensor.*pct_of_peak_sustained",
}
_PARTS = 20


def sampled_utilization(timeline: Timeline) -> pd.DataFrame:
    """Return means over the samples of each part of a trace: rank, part, begin_ms, samples, sm_utilization and
    tensor_utilization (fractions of the peak). Empty without such samples.

    Parts are the marked steps, by their number, or else _PARTS equal times from the first sample to the last; begin_ms
    counts from the first part. NaN where a part has no sample of the counter.
    """
    samples, steps = timeline.samples, timeline.steps
    kind = pd.Series(None, samples.index, dtype="object")
    for name, pattern in _SAMPLED.items():
        kind[samples["name"].astype(str).str.match(pattern)] = name
    if not kind.notna().any():
        return pd.DataFrame()
    start = samples["start"].to_numpy()
    if len(steps):
        numbers, begins, ends = (steps[name].to_numpy(dtype=np.int64) for name in ("step", "start", "end"))
    else:
        bounds = np.linspace(0, int(start.max() - start.min()) + 1, _PARTS + 1).astype(np.int64) + start.min()
        numbers, begins, ends = np.arange(_PARTS), bounds[:-1], bounds[1:]
    place = np.searchsorted(begins, start, side="right") - 1
    samples = samples.assign(kind=kind, place=place, value=samples["value"] / 100)
    samples = samples[(place >= 0) & (start < ends[place]) & kind.notna()]
    frame = pd.DataFrame({"rank": timeline.rank, "part": numbers, "begin_ms": (begins - begins[0]) / 1e6})
    frame["samples"] = samples["place"].value_counts().reindex(frame.index, fill_value=0)
    means = samples.pivot_table("value", "place", "kind").reindex(index=frame.index, columns=[*_SAMPLED])
    return frame.join(means).astype({"rank": "Int64"})
