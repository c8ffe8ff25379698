"""Comparisons inside a run: implementations with a reference, the input with training, real with synthetic data."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis import wording
from analysis.load import CIRCUMSTANCES, CONFIGURATION, Key, LoadedTrial
from analysis.metrics.comparison.ratio import Ratio, by_key, decision, disturbed_side, rate_ratio, run_spread

Side = tuple[str, str]
"""Implementation and its optimizations (`Trial.levers`)."""


def ratios_of(trials: Sequence[LoadedTrial], reference: Side = ("hf", "")) -> list[dict[str, Any]]:
    """Return one row per configuration and implementation other than `reference` that has the reference beside it.

    Columns: CONFIGURATION, CIRCUMSTANCES, reference, reference_levers, throughput_ratio (new / old samples per second)
    with _low and _high, time_saved (1 - new / old time per sample), rounds, reference_rounds, decided and reason
    (ratio.decision). The ratio is None where a side failed.
    """
    spread = run_spread(trials)
    rows = []
    for members in by_key(trials, without=("implementation", "levers"), failed=True).values():
        names = sorted({side_of(member) for member in members})
        for name in names if reference in names else ():
            if name == reference:
                continue
            sides = [[one for one in members if side_of(one) == side] for side in (name, reference)]
            good = [[one for one in side if one.ok] for side in sides]
            row = {**_fields(sides[0][0]), "reference": reference[0], "reference_levers": reference[1]}
            row |= {"rounds": len(good[0]), "reference_rounds": len(good[1])}
            row |= dict.fromkeys(("throughput_ratio", "throughput_ratio_low", "throughput_ratio_high", "time_saved"))
            failed = next((side[0].row for side, ok in zip(sides, good, strict=True) if not ok), None)
            if failed is not None:
                row["decided"] = "cannot decide"
                row["reason"] = f"{wording.implementation(failed)} has no measurement: {failed['status']}"
            else:
                ratio = _ratio(*good)
                row |= _columns("throughput_ratio", ratio)
                # Per sample, so that it stays true where the sides' steps differ in size.
                row["time_saved"] = 1 - 1 / ratio.value
                row["decided"], row["reason"] = _decision(good[0], good[1], ratio, spread)
            rows.append(row)
    return rows


def side_of(trial: LoadedTrial) -> Side:
    """Return which side of a comparison of implementations a trial is."""
    return trial.row["implementation"], trial.row["levers"] or ""


def input_ratios(trials: Sequence[LoadedTrial]) -> list[dict[str, Any]]:
    """Return one row per input-only measurement, with its ratio to training on the same data.

    Columns: CONFIGURATION, CIRCUMSTANCES, rounds, samples_per_second, tokens_per_second, shards_read_samples_per_second
    (medians), training_rounds, training_samples_per_second, throughput_ratio (input / training) with _low and _high,
    reason.
    """
    training = {_without_kind(group[0]): group for group in by_key(trials).values()}
    rows = []
    for group in by_key(trials, kind="input").values():
        names = ("samples_per_second", "tokens_per_second", "shards_read_samples_per_second")
        row = {**_fields(group[0]), "rounds": len(group), **{name: _median(group, name) for name in names}}
        beside = training.get(_without_kind(group[0]), [])
        row |= {"training_rounds": len(beside), "training_samples_per_second": _median(beside, "samples_per_second")}
        row |= _columns("throughput_ratio", ratio := _ratio(group, beside) if beside else None)
        row["reason"] = "" if ratio else "training with the same data and configuration was not measured here"
        rows.append(row)
    return rows


def synthetic_gaps(trials: Sequence[LoadedTrial]) -> list[dict[str, Any]]:
    """Return one row per measurement on real data that has a twin on synthetic batches.

    Columns: CONFIGURATION, CIRCUMSTANCES, rounds, synthetic_rounds, samples_per_second, synthetic_samples_per_second,
    gap (real / synthetic samples per second - 1) with _low and _high, decided and reason (ratio.decision).
    """
    spread, groups = run_spread(trials), [*by_key(trials).values()]
    twins = {
        _without_data(group[0], group[0].trial.data.removeprefix("synthetic:")): group
        for group in groups
        if group[0].made_up_like_folder
    }
    rows = []
    for group in groups:
        twin = twins.get(_without_data(group[0], group[0].trial.data))
        if twin:
            ratio = _ratio(group, twin)
            row = {**_fields(group[0]), "rounds": len(group), "synthetic_rounds": len(twin)}
            row["samples_per_second"] = _median(group, "samples_per_second")
            row["synthetic_samples_per_second"] = _median(twin, "samples_per_second")
            row |= _columns("gap", Ratio(ratio.value - 1, ratio.low - 1, ratio.high - 1))
            row["decided"], row["reason"] = _decision(group, twin, ratio, spread)
            rows.append(row)
    return rows


def _ratio(group: Sequence[LoadedTrial], other: Sequence[LoadedTrial]) -> Ratio:
    return rate_ratio([trial.window_work() for trial in other], [trial.window_work() for trial in group])


def _decision(
    a: Sequence[LoadedTrial], b: Sequence[LoadedTrial], ratio: Ratio, spread: float | None
) -> tuple[str, str]:
    reason = disturbed_side(a, b)
    return ("cannot decide", reason) if reason else decision(len(a), len(b), ratio, spread)


def _columns(name: str, ratio: Ratio | None) -> dict[str, float | None]:
    values = (None, None, None) if ratio is None else (ratio.value, ratio.low, ratio.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def _fields(trial: LoadedTrial) -> dict[str, Any]:
    return {name: trial.row[name] for name in (*CONFIGURATION, *CIRCUMSTANCES)}


# What differs between a trial and its twin on synthetic batches.
_DATA = ("data", "data_fingerprint")


def _without_kind(trial: LoadedTrial) -> Key:
    """What training and its input have in common; each may have a window of its own."""
    values = _fields(trial)
    different = ("kind", "dropout", "start_iteration", "stop_iteration", *_DATA)
    source = values["data_fingerprint"] or values["data"]
    return (source, *(value for name, value in values.items() if name not in different))


def _without_data(trial: LoadedTrial, folder: str) -> Key:
    return (folder, *(value for name, value in _fields(trial).items() if name not in _DATA))


def _median(group: Sequence[LoadedTrial], name: str) -> float | None:
    values = [float(trial.row[name]) for trial in group if trial.row.get(name) is not None]
    return float(np.median(values)) if values else None
