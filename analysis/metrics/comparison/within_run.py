"""Comparisons inside a run: implementations with a reference, the input with training, real with synthetic data."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.load import (
    CIRCUMSTANCES,
    CONFIGURATION,
    Key,
    LoadedTrial,
    circumstances,
)
from analysis.metrics.comparison.ratio import (
    Ratio,
    by_key,
    decision,
    disturbed_side,
    rate_ratio,
    run_spread,
)


def ratios_of(trials: Sequence[LoadedTrial], reference: str = "hf") -> list[dict[str, Any]]:
    """Return one row per configuration and implementation other than `reference` that has the reference beside it.

    Two different numbers, both named: throughput_ratio = new / old samples per second, time_saved = 1 - new / old time
    per sample. Columns: CONFIGURATION, CIRCUMSTANCES, reference, throughput_ratio, throughput_ratio_low,
    throughput_ratio_high, time_saved, rounds, reference_rounds, decided (yes: they differ | no: they are within
    ratio.EQUIVALENT of each other | cannot decide), reason.
    Where one side failed the ratio is None and the reason says so.
    """
    spread = run_spread(trials)
    good = by_key(trials, without=("implementation",))
    every: dict[Key, list[LoadedTrial]] = defaultdict(list)
    for trial in trials:
        if trial.trial.kind == "throughput":
            every[(*circumstances(trial.row), *trial.key(("implementation",)))].append(trial)
    rows = []
    for key, members in every.items():
        names = sorted({member.row["implementation"] for member in members})
        if reference not in names:
            continue
        for name in names:
            if name == reference:
                continue
            mine = [member for member in good.get(key, []) if member.row["implementation"] == name]
            other = [member for member in good.get(key, []) if member.row["implementation"] == reference]
            example = next(member for member in members if member.row["implementation"] == name)
            row = {field_name: example.row[field_name] for field_name in (*CONFIGURATION, *CIRCUMSTANCES)}
            row |= {"reference": reference, "rounds": len(mine), "reference_rounds": len(other)}
            row |= _ratio_row(mine, other, members, name, reference, spread)
            rows.append(row)
    return rows


def _ratio_row(
    mine: Sequence[LoadedTrial],
    other: Sequence[LoadedTrial],
    members: Sequence[LoadedTrial],
    name: str,
    reference: str,
    spread: float | None,
) -> dict[str, Any]:
    empty = dict.fromkeys(("throughput_ratio", "throughput_ratio_low", "throughput_ratio_high", "time_saved"))
    for side, label in ((mine, name), (other, reference)):
        if not side:
            status = next(member.row["status"] for member in members if member.row["implementation"] == label)
            return {**empty, "decided": "cannot decide", "reason": f"{label} has no measurement: {status}"}
    ratio = rate_ratio([x.window_work() for x in other], [x.window_work() for x in mine])
    row = {"throughput_ratio": ratio.value, "throughput_ratio_low": ratio.low, "throughput_ratio_high": ratio.high}
    # Per sample, so that it stays true where the sides' steps differ in size.
    row["time_saved"] = 1 - 1 / ratio.value
    decided, reason = _decision(mine, other, ratio, spread)
    return {**row, "decided": decided, "reason": reason}


def _decision(
    a: Sequence[LoadedTrial], b: Sequence[LoadedTrial], ratio: Ratio, spread: float | None
) -> tuple[str, str]:
    """What the ratio of two sides decides, and why; nothing where only one of them was disturbed."""
    reason = disturbed_side(a, b)
    return ("cannot decide", reason) if reason else decision(len(a), len(b), ratio, spread)


_SYNTHETIC = "synthetic:"
# What differs between a trial and its twin on synthetic batches.
_DATA = ("data", "data_fingerprint")


def input_ratios(trials: Sequence[LoadedTrial]) -> list[dict[str, Any]]:
    """Return one row per input-only measurement.

    Columns: CONFIGURATION, CIRCUMSTANCES, rounds, samples_per_second, tokens_per_second (medians over rounds),
    shards_read_samples_per_second (None where no shard is compressed), and of the training on the same data with the
    same configuration training_rounds, training_samples_per_second, throughput_ratio (input / training),
    throughput_ratio_low, throughput_ratio_high: None, and a reason, where there is none.
    """
    training = {_without_kind(group[0]): group for group in by_key(trials).values()}
    rows = []
    for group in by_key(trials, kind="input").values():
        names = ("samples_per_second", "tokens_per_second", "shards_read_samples_per_second")
        row = {**_fields(group[0]), "rounds": len(group), **{name: _median(group, name) for name in names}}
        beside = training.get(_without_kind(group[0]), [])
        row |= {"training_rounds": len(beside), "training_samples_per_second": _median(beside, "samples_per_second")}
        found = _throughput_ratio(group, beside)
        row["throughput_ratio"] = None if found is None else found.value
        row["throughput_ratio_low"], row["throughput_ratio_high"] = (found.low, found.high) if found else (None, None)
        row["reason"] = "" if found else "training with the same data and configuration was not measured here"
        rows.append(row)
    return rows


def synthetic_gaps(trials: Sequence[LoadedTrial]) -> list[dict[str, Any]]:
    """Return one row per measurement on real data that has a twin on synthetic batches.

    The gap is real / synthetic samples per second - 1: below 0 real data cost speed. Columns: CONFIGURATION,
    CIRCUMSTANCES, rounds, synthetic_rounds, samples_per_second, synthetic_samples_per_second, gap, gap_low, gap_high,
    decided and reason (see ratio.decision).
    """
    spread = run_spread(trials)
    twins = {
        _without_data(group[0], group[0].trial.data.removeprefix(_SYNTHETIC)): group
        for group in by_key(trials).values()
        if group[0].made_up_like_folder
    }
    rows = []
    for group in by_key(trials).values():
        twin = twins.get(_without_data(group[0], group[0].trial.data))
        if not twin:
            continue
        found = _throughput_ratio(group, twin)
        row = {**_fields(group[0]), "rounds": len(group), "synthetic_rounds": len(twin)}
        row["samples_per_second"] = _median(group, "samples_per_second")
        row["synthetic_samples_per_second"] = _median(twin, "samples_per_second")
        if found is None:
            continue
        row |= {"gap": found.value - 1, "gap_low": found.low - 1, "gap_high": found.high - 1}
        row["decided"], row["reason"] = _decision(group, twin, found, spread)
        rows.append(row)
    return rows


def _fields(trial: LoadedTrial) -> dict[str, Any]:
    return {name: trial.row[name] for name in (*CONFIGURATION, *CIRCUMSTANCES)}


def _without_kind(trial: LoadedTrial) -> Key:
    """What training and its input have in common; each may have a window of its own."""
    values = _fields(trial)
    source = values["data_fingerprint"] or values["data"]
    own = ("kind", "dropout", "start_iteration", "stop_iteration", *_DATA)
    return (source, *(value for name, value in values.items() if name not in own))


def _without_data(trial: LoadedTrial, folder: str) -> Key:
    return (folder, *(value for name, value in _fields(trial).items() if name not in _DATA))


def _median(group: Sequence[LoadedTrial], name: str) -> float | None:
    values = [float(trial.row[name]) for trial in group if trial.row.get(name) is not None]
    return float(np.median(values)) if values else None


def _throughput_ratio(group: Sequence[LoadedTrial], other: Sequence[LoadedTrial]) -> Ratio | None:
    """Samples/s of a group / those of the other, with its interval; None where one has none."""
    if any(_median(side, "samples_per_step") is None for side in (group, other)):
        return None
    return rate_ratio([trial.window_work() for trial in other], [trial.window_work() for trial in group])
