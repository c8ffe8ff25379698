"""Two runs compared: is a configuration slower, with intervals, and what they can decide."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analysis.load import (
    CIRCUMSTANCES,
    CONFIGURATION,
    DAMAGED,
    Key,
    LoadedRun,
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
# Verdicts of `judged` that leave open whether there is a regression.
_OPEN = ("cannot decide", "slower")
# Relative difference of the samples of a step below which step times are compared as they are.
_SAME_SAMPLES = 0.01
# How a trial ends that ran into something, which is the same result where it happens again.
_FAILED = ("oom", "crashed", "timeout")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs compared with each other."""

    rows: list[dict[str, Any]]
    """One row per configuration found in both runs: see `compare_runs`."""
    differences: list[str]
    """What does not match: machines, libraries, configurations found in one run only."""
    threshold: float
    """Relative change of the step time above which a change counts."""
    spread: float | None = field(default=None)
    """Largest run-to-run difference of equal trials in both runs, relative; None where nothing was repeated."""
    scripts: bool = False
    """Whether both runs measured scripts, whose configuration is a name, a number of ranks and a device."""

    @property
    def regressed(self) -> bool:
        """Whether any row is a regression."""
        return any(row["verdict"] == "regression" for row in self.rows)

    @property
    def undecided(self) -> bool:
        """Whether any row leaves open if it is a regression: "cannot decide", and "slower" by an open amount."""
        return any(row["verdict"] in _OPEN for row in self.rows)


def compare_runs(a: RunDirectory, b: RunDirectory, threshold: float = THRESHOLD) -> Comparison:
    """Hold run b (new) against run a (old), configuration by configuration.

    Trials are rounds of one measurement where their circumstances agree too (data, window, seed, threads ...). A
    measurement that has no equal in the other run is compared with the only one of its configuration that is left over
    there, and what differs is listed; where several are left over, none is chosen.

    Rows hold CONFIGURATION, kind, data and data_fingerprint (those of b), step_time_ms_a, step_time_ms_b, time_ratio
    (see `change_of`, above 1 is slower), time_ratio_low, time_ratio_high, throughput_ratio (b / a), time_saved (1 -
    time_ratio), rounds_a, rounds_b, verdict and reason (see `judged`), differences (settings that do not agree). A
    configuration that ran and now ends as oom, crashed or timeout is a regression.

    Raises:
        UsageError: the threshold is not in [0, 1).
        InputError, SchemaError: see load_run.
    """
    if not 0 <= threshold < 1:
        raise UsageError("option-value", f"--threshold {threshold} must be in [0, 1): 0.05 means 5 %")
    old, new = load_run(a), load_run(b)
    spread = run_spread(old, new)
    groups = [_groups(trials) for trials in (old, new)]
    pairs = _pairs(*groups)
    rows = [_compare_row(groups[0][one], groups[1][other], threshold, spread) for one, other in pairs]
    differences = [*_damaged(a, old), *_damaged(b, new), *_machine_differences(old, new)]
    for side, name in enumerate((a.path, b.path)):
        paired = {pair[side] for pair in pairs}
        left = [trials for key, trials in groups[side].items() if key not in paired]
        named = [f"only in {name}: {_described(trials[0])}" for trials in left]
        differences += dict.fromkeys(named)
    scripts = all(any(trial.trial.kind == "measure" for trial in side) for side in (old, new))
    return Comparison(rows, differences, threshold, spread, scripts)


def _damaged(run: RunDirectory, loaded: LoadedRun) -> list[str]:
    return [f"{run.path}: {problem}" for problem in loaded.problems]


def _described(trial: LoadedTrial) -> str:
    return describe_key(trial.key()) + (", input only" if trial.trial.kind == "input" else "")


def describe_key(key: Key) -> str:
    """Return a configuration in words."""
    values = dict(zip(CONFIGURATION, key, strict=True))
    if not values["preset"]:  # a script
        return f"{values['implementation']} on {values['world_size']} {values['device']}"
    accumulation = "" if values["grad_accum_steps"] == 1 else f" x {values['grad_accum_steps']}"
    return (
        f"{values['task']} {values['implementation']} {values['preset']} {values['precision']} "
        f"seq {values['seq_len']} batch {values['micro_batch_size']}{accumulation}, "
        f"{values['world_size']} {values['device']} {values['strategy']}"
    )


def _groups(trials: Sequence[LoadedTrial]) -> dict[Key, list[LoadedTrial]]:
    groups: dict[Key, list[LoadedTrial]] = defaultdict(list)
    for trial in trials:
        if trial.trial.kind in ("throughput", "input", "measure"):
            groups[measurement(trial.row)].append(trial)
    return groups


def _pairs(old: Mapping[Key, Sequence[LoadedTrial]], new: Mapping[Key, Sequence[LoadedTrial]]) -> list[tuple[Key, Key]]:
    """Return which measurements are compared with each other: equal ones, then single ones of equal configuration."""

    def left_over(here: Mapping[Key, Sequence[LoadedTrial]], there: Mapping[Key, object]) -> dict[Key, list[Key]]:
        found: dict[Key, list[Key]] = defaultdict(list)
        for key, trials in here.items():
            if key not in there:
                found[(trials[0].trial.kind, *trials[0].key())].append(key)
        return found

    ones, others = left_over(old, new), left_over(new, old)
    pairs = [(key, key) for key in old if key in new]
    for configuration, keys in ones.items():
        candidates = others.get(configuration, [])
        if len(keys) == len(candidates) == 1:
            pairs.append((keys[0], candidates[0]))
    return pairs


def _compare_row(
    old: Sequence[LoadedTrial], new: Sequence[LoadedTrial], threshold: float, spread: float | None
) -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(CONFIGURATION, old[0].key(), strict=True))
    row |= {name: getattr(new[0].trial, name) for name in ("kind", "data", "data_fingerprint")}
    before, after = [t for t in old if t.ok], [t for t in new if t.ok]
    row |= {"rounds_a": len(before), "rounds_b": len(after), "differences": _setting_differences(old, new)}
    sizes = [_in_words(_samples_per_step(side)) for side in (before, after) if side]
    if len(set(sizes)) > 1:
        row["differences"].append(f"samples per step: {sizes[0]} -> {sizes[1]}")
    names = ("step_time_ms_a", "step_time_ms_b", "time_ratio", "time_ratio_low", "time_ratio_high")
    row |= dict.fromkeys((*names, "throughput_ratio", "time_saved"))
    if not before or not after:
        return {**row, **status_verdict(old, new)}
    ratio, undecided = change_of(before, after)
    row["step_time_ms_a"] = float(np.median([t.row["step_time_ms"] for t in before]))
    row["step_time_ms_b"] = float(np.median([t.row["step_time_ms"] for t in after]))
    row |= {"time_ratio": ratio.value, "time_ratio_low": ratio.low, "time_ratio_high": ratio.high}
    row["time_saved"] = 1 - ratio.value
    if samples_seen(before) == samples_seen(after):  # where neither side's are known, steps are compared
        row["throughput_ratio"] = rate_ratio([t.window_work() for t in before], [t.window_work() for t in after]).value
    if reason := undecided or disturbed_side(before, after):
        return {**row, "verdict": "cannot decide", "reason": reason}
    return {**row, **judged(ratio, len(before), len(after), threshold, spread)}


def change_of(before: Sequence[LoadedTrial], after: Sequence[LoadedTrial]) -> tuple[Ratio, str]:
    """Return the ratio, new / old, that two sides are judged by, and why it decides nothing ("" if it does).

    It is that of the step times; where steps hold different numbers of samples that of the times per sample.
    """
    times = ratio_interval([t.window_times() for t in before], [t.window_times() for t in after])
    old, new = _samples_per_step(before), _samples_per_step(after)
    if old == new or (old and new and abs(new / old - 1) < _SAME_SAMPLES):
        return times, ""
    if not old or not new:
        return times, f"{_in_words(new)} instead of {_in_words(old)} samples a step"
    rate = rate_ratio([t.window_work() for t in before], [t.window_work() for t in after])
    return Ratio(1 / rate.value, 1 / rate.high, 1 / rate.low), ""


def _samples_per_step(trials: Sequence[LoadedTrial]) -> float | None:
    """Samples of a step of all ranks, the median over the rounds; None where a script shows none."""
    if not samples_seen(trials):
        return None
    return float(np.median([t.row.get("samples_per_step") or t.trial.global_batch_size for t in trials]))


def _in_words(samples: float | None) -> str:
    return "an unknown number" if samples is None else f"{samples:,.4g}"


def judged(ratio: Ratio, before: int, after: int, threshold: float, spread: float | None) -> dict[str, str]:
    """Return verdict and reason of a ratio of step times, new / old, of so many processes before and after.

    A regression is a 95 % interval wholly above 1 + threshold, an improvement one wholly below 1 - threshold, "no
    change" one wholly between; "slower" and "quicker" have an interval that excludes 1 and reaches across the
    threshold; anything else, and too few processes, is "cannot decide".

    Args:
        ratio: with its interval.
        before: processes of the old side.
        after: processes of the new side.
        threshold: relative change that counts.
        spread: of `run_spread`.
    """
    reason = undecidable(before, after, max(ratio.value, 1 / ratio.value) - 1, spread)
    if reason is not None:
        return {"verdict": "cannot decide", "reason": reason}
    band = f"{100 * threshold:g} %"
    if ratio.low > 1 + threshold:
        return {"verdict": "regression", "reason": f"slower by more than {band}"}
    if ratio.high < 1 - threshold:
        return {"verdict": "improvement", "reason": f"quicker by more than {band}"}
    if 1 - threshold <= ratio.low and ratio.high <= 1 + threshold:
        return {"verdict": "no change", "reason": f"within {band}"}
    if ratio.low > 1 or ratio.high < 1:
        found = "slower" if ratio.low > 1 else "quicker"
        return {
            "verdict": found,
            "reason": f"whether by more than {band} is unknown; run more rounds to narrow the interval",
        }
    return {
        "verdict": "cannot decide",
        "reason": f"the 95 % interval of the change in step time, {100 * (ratio.low - 1):+.1f} to "
        f"{100 * (ratio.high - 1):+.1f} %, reaches across the threshold of {band}; run more rounds to narrow it",
    }


def status_verdict(old: Sequence[LoadedTrial], new: Sequence[LoadedTrial]) -> dict[str, str]:
    """Return verdict and reason where the rounds of one side, or of both, have no step time."""
    was, now = _ending(old), _ending(new)
    before, after = any(trial.ok for trial in old), any(trial.ok for trial in new)
    if before and now in _FAILED:
        return {"verdict": "regression", "reason": f"it ran, and now ends as {now}"}
    if after and was in _FAILED:
        return {"verdict": "improvement", "reason": f"it ended as {was}, and now runs"}
    if was == now and now in _FAILED:
        return {"verdict": "no change", "reason": f"it ends as {now} in both"}
    return {"verdict": "cannot decide", "reason": f"no measurement on both sides: {was}, now {now}"}


def _ending(trials: Sequence[LoadedTrial]) -> str:
    first = trials[0].row
    if first["status"] == DAMAGED:
        return f"{DAMAGED} ({first.get('reason')})"
    if first["status"] == "ok" and not trials[0].ok:
        return f"ok, but without steps ({trials[0].directory.path})"
    return str(first["status"])


# Fields that make two trials different measurements but are no part of a configuration's name.
_SETTINGS = (*CIRCUMSTANCES, "memory_limit_bytes")


def _setting_differences(old: Sequence[LoadedTrial], new: Sequence[LoadedTrial]) -> list[str]:
    found = []
    for name in _SETTINGS:
        sides = [sorted({str(getattr(trial.trial, name)) for trial in side}) for side in (old, new)]
        if sides[0] != sides[1] and not (name == "data" and _same_data(old, new)):
            found.append(f"{name}: {', '.join(sides[0])} -> {', '.join(sides[1])}")
    before, after = script_contents(old), script_contents(new)
    if before and after and (before != after or len(before) > 1):
        found.append(f"content of the script: {', '.join(before)} -> {', '.join(after)}")
    return found


def _same_data(old: Sequence[LoadedTrial], new: Sequence[LoadedTrial]) -> bool:
    """Whether the data are the same by fingerprint, or by name where there is none, wherever they lie."""
    place = CIRCUMSTANCES.index("data")
    return len({circumstances(trial.row)[place : place + 2] for trial in (*old, *new)}) == 1


def _machine_differences(old: Sequence[LoadedTrial], new: Sequence[LoadedTrial]) -> list[str]:
    def facts(trials: Sequence[LoadedTrial]) -> dict[str, str]:
        found: dict[str, set[str]] = defaultdict(set)
        for trial in trials:
            environment = trial.environment
            flat: dict[str, Any] = {name: environment.get(name) for name in ("device_name", "driver", "memory_bytes")}
            flat["cpu"] = (environment.get("cpu") or {}).get("model")
            flat["cores"] = (environment.get("cpu") or {}).get("physical_cores")
            flat["gpus"] = len(environment.get("gpus") or []) or None
            flat |= {f"library {name}": version for name, version in (environment.get("libraries") or {}).items()}
            for name, value in flat.items():
                if value is not None:
                    found[name].add(str(value))
        return {name: ", ".join(sorted(values)) for name, values in found.items()}

    a, b = facts(old), facts(new)
    names = [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]
    return [f"{name}: {a.get(name, 'not recorded')} -> {b.get(name, 'not recorded')}" for name in names]


def as_mapping(comparison: Comparison) -> Mapping[str, Any]:
    """Return a comparison as plain values, for JSON."""
    return {
        "threshold": comparison.threshold,
        "spread": comparison.spread,
        "regressed": comparison.regressed,
        "undecided": comparison.undecided,
        "rows": comparison.rows,
        "differences": comparison.differences,
    }
