"""Two runs compared: is a configuration slower, with intervals, and what they can decide."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis import wording
from analysis.load import (
    CIRCUMSTANCES,
    CONFIGURATION,
    DAMAGED,
    Key,
    LoadedTrial,
    circumstances,
    load_run,
    measurement,
    script_contents,
)
from analysis.metrics.comparison.ratio import (
    Ratio,
    disturbed_side,
    rate_ratio,
    ratio_interval,
    run_spread,
    samples_seen,
    undecidable,
)
from common.errors import UsageError
from records.run import RunDirectory

# Relative change of the step time above which a change counts, unless another one is asked for.
THRESHOLD = 0.02
# Relative difference of the samples of a step below which step times are compared as they are.
_SAME_SAMPLES = 0.01
# How a trial ends that ran into something, which is the same result where it happens again.
_FAILED = ("oom", "crashed", "timeout")


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two runs compared with each other."""

    rows: list[dict[str, Any]]
    differences: list[str]
    """What does not match: machines, libraries, configurations of one run only."""
    threshold: float
    """Relative change of the step time above which a change counts."""
    spread: float | None
    """Largest run-to-run difference of equal trials in both runs, relative; None where nothing was repeated."""
    scripts: bool
    """Whether both runs measured scripts, whose configuration is a name, a number of ranks and a device."""

    @property
    def regressed(self) -> bool:
        """Whether any row is a regression."""
        return any(row["verdict"] == "regression" for row in self.rows)

    @property
    def undecided(self) -> bool:
        """Whether any row leaves open if it is a regression: "cannot decide", and "slower" by an open amount."""
        return any(row["verdict"] in ("cannot decide", "slower") for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        names = ("threshold", "spread", "regressed", "undecided", "rows", "differences")
        return {name: getattr(self, name) for name in names}


def compare_runs(a: RunDirectory, b: RunDirectory, threshold: float = THRESHOLD) -> Comparison:
    """Compare run b (new) with run a (old), configuration by configuration.

    A measurement that has no equal in the other run is compared with the only one of its configuration that is left
    over there, and what differs is listed. Rows hold CONFIGURATION, kind, data, data_fingerprint (of b), `change_of`,
    step_time_ms_a, step_time_ms_b, throughput_ratio (b / a), time_saved, rounds_a, rounds_b, differences.

    Raises:
        UsageError: the threshold is not in [0, 1).
        InputError, SchemaError: see load_run.
    """
    check_threshold(threshold)
    sides = [load_run(run) for run in (a, b)]
    spread = run_spread(*sides)
    groups: list[dict[Key, list[LoadedTrial]]] = [defaultdict(list), defaultdict(list)]
    for group, loaded in zip(groups, sides, strict=True):
        for trial in loaded:
            if trial.trial.kind in ("throughput", "input", "measure"):
                group[measurement(trial.row)].append(trial)
    pairs = _pairs(*groups)
    rows = [_compare_row(groups[0][old], groups[1][new], threshold, spread) for old, new in pairs]
    differences = [f"{run.path}: {text}" for run, side in zip((a, b), sides, strict=True) for text in side.problems]
    differences += differing(map(_machines, sides))
    for side, run in enumerate((a, b)):
        left = [trials[0].row for key, trials in groups[side].items() if key not in {pair[side] for pair in pairs}]
        differences += dict.fromkeys(f"only in {run.path}: {describe(row)}" for row in left)
    scripts = all(any(trial.trial.kind == "measure" for trial in side) for side in sides)
    return Comparison(rows=rows, differences=differences, threshold=threshold, spread=spread, scripts=scripts)


def check_threshold(threshold: float) -> None:
    """Raise UsageError for a threshold outside of [0, 1)."""
    if not 0 <= threshold < 1:
        raise UsageError("option-value", f"--threshold {threshold} must be in [0, 1): 0.05 means 5 %")


def describe(row: Mapping[str, Any]) -> str:
    """Return the configuration of a row in words."""
    model = "" if row["kind"] == "measure" else f" {wording.model(row)}"
    task = f"{wording.task(row)} " if row["task"] else ""
    return f"{task}{wording.implementation_or_input(row)}{model} {wording.place(row)}"


def differing(sides: Iterable[Mapping[str, Any]], missing: str = "not recorded") -> list[str]:
    """Return "name: old -> new" for each value that two sides do not share."""
    a, b = sides
    names = [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]
    return [f"{name}: {a.get(name, missing)} -> {b.get(name, missing)}" for name in names]


def _pairs(old: Mapping[Key, Sequence[LoadedTrial]], new: Mapping[Key, Sequence[LoadedTrial]]) -> list[tuple[Key, Key]]:
    """Return which measurements are compared with each other: equal ones, then single ones of equal configuration."""
    left: list[dict[Key, list[Key]]] = [defaultdict(list), defaultdict(list)]
    for groups, here, there in ((left[0], old, new), (left[1], new, old)):
        for key, trials in here.items():
            if key not in there:
                groups[(trials[0].trial.kind, *trials[0].key())].append(key)
    single = [(keys, left[1].get(name, [])) for name, keys in left[0].items()]
    return [(key, key) for key in old if key in new] + [
        (keys[0], others[0]) for keys, others in single if len(keys) == len(others) == 1
    ]


def _compare_row(
    old: Sequence[LoadedTrial], new: Sequence[LoadedTrial], threshold: float, spread: float | None
) -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(CONFIGURATION, old[0].key(), strict=True))
    row |= {name: getattr(new[0].trial, name) for name in ("kind", "data", "data_fingerprint")}
    before, after = [t for t in old if t.ok], [t for t in new if t.ok]
    row |= {"rounds_a": len(before), "rounds_b": len(after), "differences": _setting_differences(old, new)}
    row |= dict.fromkeys(("step_time_ms_a", "step_time_ms_b", "throughput_ratio", "time_saved"))
    row |= change_of(old, new, threshold, spread)
    for name, side in (("a", before), ("b", after)):
        if before and after:
            row[f"step_time_ms_{name}"] = float(np.median([t.row["step_time_ms"] for t in side]))
    if row["time_ratio"] is not None:
        row["time_saved"] = 1 - row["time_ratio"]
        if samples_seen(before) == samples_seen(after):  # where neither side's are known, steps are compared
            row["throughput_ratio"] = rate_ratio(
                [t.window_work() for t in before], [t.window_work() for t in after]
            ).value
    return row


def change_of(
    old: Sequence[LoadedTrial], new: Sequence[LoadedTrial], threshold: float, spread: float | None
) -> dict[str, Any]:
    """Return time_ratio, time_ratio_low, time_ratio_high (new / old, None without step times), verdict and reason.

    A configuration that ran and now ends as oom, crashed or timeout is a regression; see `judged` for the others.
    """
    before, after = [t for t in old if t.ok], [t for t in new if t.ok]
    if not before or not after:
        return {**dict.fromkeys(("time_ratio", "time_ratio_low", "time_ratio_high")), **_status_verdict(old, new)}
    ratio, undecided = time_ratio(before, after)
    row = {"time_ratio": ratio.value, "time_ratio_low": ratio.low, "time_ratio_high": ratio.high}
    if reason := undecided or disturbed_side(before, after):
        return {**row, "verdict": "cannot decide", "reason": reason}
    return {**row, **judged(ratio, len(before), len(after), threshold, spread)}


def time_ratio(before: Sequence[LoadedTrial], after: Sequence[LoadedTrial]) -> tuple[Ratio, str]:
    """Return the ratio, new / old, that two sides are judged by, and why it decides nothing ("" if it does).

    It is that of the step times; where steps hold different numbers of samples that of the times per sample.
    """
    times = ratio_interval([t.window_times() for t in before], [t.window_times() for t in after])
    old, new = _samples_per_step(before), _samples_per_step(after)
    if old == new or (old and new and abs(new / old - 1) < _SAME_SAMPLES):
        return times, ""
    if not old or not new:
        return times, f"{_count(new)} instead of {_count(old)} samples a step"
    rate = rate_ratio([t.window_work() for t in before], [t.window_work() for t in after])
    return Ratio(1 / rate.value, 1 / rate.high, 1 / rate.low), ""


def _samples_per_step(trials: Sequence[LoadedTrial]) -> float | None:
    """Samples of a step of all ranks, the median over the rounds; None where a script shows none."""
    if not samples_seen(trials):
        return None
    return float(np.median([t.row.get("samples_per_step") or t.trial.global_batch_size for t in trials]))


def _count(samples: float | None) -> str:
    return "an unknown number" if samples is None else f"{samples:,.4g}"


def judged(ratio: Ratio, before: int, after: int, threshold: float, spread: float | None) -> dict[str, str]:
    """Return verdict and reason of a ratio of step times, new / old, of so many processes before and after.

    regression: the 95 % interval is wholly above 1 + threshold; improvement: wholly below 1 - threshold; no change:
    wholly between; slower, quicker: it excludes 1 and reaches across the threshold; cannot decide: anything else.
    """
    band = f"{100 * threshold:g} %"
    verdict, reason = "cannot decide", undecidable(before, after, max(ratio.value, 1 / ratio.value) - 1, spread)
    if reason is not None:
        pass
    elif ratio.low > 1 + threshold:
        verdict, reason = "regression", f"slower by more than {band}"
    elif ratio.high < 1 - threshold:
        verdict, reason = "improvement", f"quicker by more than {band}"
    elif 1 - threshold <= ratio.low and ratio.high <= 1 + threshold:
        verdict, reason = "no change", f"within {band}"
    elif ratio.low > 1 or ratio.high < 1:
        verdict = "slower" if ratio.low > 1 else "quicker"
        reason = f"whether by more than {band} is unknown; run more rounds to narrow the interval"
    else:
        span = f"{100 * (ratio.low - 1):+.1f} to {100 * (ratio.high - 1):+.1f} %"
        reason = f"the change in step time, {span}, reaches across the threshold of {band}; run more rounds"
    return {"verdict": verdict, "reason": reason}


def _status_verdict(old: Sequence[LoadedTrial], new: Sequence[LoadedTrial]) -> dict[str, str]:
    was, now = _ending(old), _ending(new)
    if any(trial.ok for trial in old) and now in _FAILED:
        return {"verdict": "regression", "reason": f"it ran, and now ends as {now}"}
    if any(trial.ok for trial in new) and was in _FAILED:
        return {"verdict": "improvement", "reason": f"it ended as {was}, and now runs"}
    if was == now and now in _FAILED:
        return {"verdict": "no change", "reason": f"it ends as {now} in both"}
    return {"verdict": "cannot decide", "reason": f"no measurement on both sides: {was}, now {now}"}


def _ending(trials: Sequence[LoadedTrial]) -> str:
    row = trials[0].row
    if row["status"] == DAMAGED:
        return f"{DAMAGED} ({row.get('reason')})"
    if row["status"] == "ok" and not trials[0].ok:
        return f"ok, but without steps ({trials[0].directory.path})"
    return str(row["status"])


def _setting_differences(old: Sequence[LoadedTrial], new: Sequence[LoadedTrial]) -> list[str]:
    """What makes two trials different measurements but is no part of a configuration's name."""
    names = [*CIRCUMSTANCES, "memory_limit_bytes"]
    place = CIRCUMSTANCES.index("data")
    if len({circumstances(trial.row)[place : place + 2] for trial in (*old, *new)}) == 1:
        names.remove("data")  # the same by fingerprint, or by name where there is none, wherever they lie
    sides = [
        {name: ", ".join(sorted({str(getattr(trial.trial, name)) for trial in side})) for name in names}
        for side in (old, new)
    ]
    for side, values in zip((old, new), sides, strict=True):
        good = [trial for trial in side if trial.ok]
        values |= {"samples per step": _count(_samples_per_step(good))} if good else {}
    contents = [", ".join(script_contents(side)) for side in (old, new)]
    edited = all(contents) and (contents[0] != contents[1] or ", " in contents[0])
    scripts = [f"content of the script: {contents[0]} -> {contents[1]}"] if edited else []
    return [*(text for text in differing(sides) if "not recorded" not in text), *scripts]


def _machines(trials: Sequence[LoadedTrial]) -> dict[str, str]:
    values: dict[str, set[str]] = defaultdict(set)
    for environment in (trial.environment for trial in trials):
        cpu, gpus = environment.get("cpu") or {}, environment.get("gpus") or []
        row: dict[str, Any] = {name: environment.get(name) for name in ("device_name", "driver", "memory_bytes")}
        row |= {"cpu": cpu.get("model"), "cores": cpu.get("physical_cores"), "gpus": len(gpus) or None}
        row |= {f"library {name}": version for name, version in (environment.get("libraries") or {}).items()}
        for name, value in row.items():
            if value is not None:
                values[name].add(str(value))
    return {name: ", ".join(sorted(each)) for name, each in values.items()}
