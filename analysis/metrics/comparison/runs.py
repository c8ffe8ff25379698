"""Rounds of trials held against each other: within a run, and two runs, configuration by configuration."""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from analysis import wording
from analysis.load import (
    CIRCUMSTANCES,
    CONFIGURATION,
    Key,
    LoadedTrial,
    circumstances,
    load_run,
    script_contents,
)
from analysis.metrics.cautions import disturbance
from analysis.metrics.comparison.ratio import (
    FEWEST_PROCESSES,
    THRESHOLD,
    Ratio,
    decision,
    judged,
    rate_ratio,
    ratio_columns,
    ratio_interval,
)
from common.errors import UsageError
from records.run import RunDirectory

Rounds = Sequence[LoadedTrial]
Side = tuple[str, str]
"""Implementation and how it computes a step (`Trial.step`)."""

# Relative difference of the samples of a step below which step times are compared as they are.
_SAME_SAMPLES = 0.01
# How a trial ends that ran into something, which is the same result where it happens again.
_FAILED = ("oom", "crashed", "timeout")


def by_key(
    trials: Rounds, without: Sequence[str] = (), kinds: Sequence[str] = ("throughput",), failed: bool = False
) -> dict[Key, list[LoadedTrial]]:
    """Return the trials of some kinds that repeat each other, by what they have in common; `failed` ones too."""
    groups: dict[Key, list[LoadedTrial]] = defaultdict(list)
    for trial in trials:
        if trial.trial.kind in kinds and (trial.ok or failed):
            groups[(*circumstances(trial.row), *trial.key(without))].append(trial)
    return groups


def run_spread(*runs: Rounds) -> float | None:
    """Return the largest (slowest / quickest - 1) of equal trials repeated at least three times within a run."""
    repeated = [group for run in runs for group in by_key(run).values() if len(group) >= FEWEST_PROCESSES]
    times = [[float(trial.row["step_time_ms"]) for trial in group] for group in repeated]
    return max((max(group) / min(group) - 1 for group in times), default=None)


def disturbed_side(a: Rounds, b: Rounds) -> str:
    """Return why two sides cannot be compared: at least half of the rounds of one of them alone were disturbed."""
    messages = []
    for side in (a, b):
        seen = [message for trial in side if (message := disturbance(trial.row.get("cautions") or []))]
        messages.append(seen[0] if seen and 2 * len(seen) >= len(side) else "")
    if all(messages) or not any(messages):
        return ""
    return f"the machine was disturbed on one side only: {messages[0] or messages[1]}; measure both when it is idle"


def ratios_of(trials: Rounds, reference: Side = ("hf", "fast")) -> list[dict[str, Any]]:
    """Return one row per configuration and implementation other than `reference` that has the reference beside it.

    Columns: CONFIGURATION, CIRCUMSTANCES, reference, reference_step, rounds, reference_rounds, throughput_ratio (new
    / old samples per second) with _low and _high, time_saved (1 - new / old time per sample), decided and reason
    (ratio.decision). The ratio is None where a side failed.
    """
    spread, rows = run_spread(trials), []
    for members in by_key(trials, without=("implementation", "step"), failed=True).values():
        sides: dict[Side, list[LoadedTrial]] = defaultdict(list)
        for member in members:
            sides[side_of(member)].append(member)
        for name in sorted(sides.keys() - {reference}) if reference in sides else ():
            new, old = ([one for one in sides[side] if one.ok] for side in (name, reference))
            row = {**_fields(sides[name][0]), "reference": reference[0], "reference_step": reference[1]}
            row |= {"rounds": len(new), "reference_rounds": len(old)}
            ratio, decided = _rate_ratio(old, new) if new and old else None, "cannot decide"
            if ratio is None:
                failed = sides[reference if new else name][0].row
                reason = f"{wording.implementation(failed)} has no measurement: {failed['status']}"
            elif not (reason := disturbed_side(new, old)):
                decided, reason = decision(len(new), len(old), ratio, spread)
            # Time per sample, so that it stays true where the sides' steps differ in size.
            row |= {**ratio_columns("throughput_ratio", ratio), "time_saved": 1 - 1 / ratio.value if ratio else None}
            rows.append(row | {"decided": decided, "reason": reason})
    return rows


def side_of(trial: LoadedTrial) -> Side:
    """Return which side of a comparison of implementations a trial is."""
    return trial.row["implementation"], trial.row["step"] or ""


def input_ratios(trials: Rounds) -> list[dict[str, Any]]:
    """Return one row per input-only measurement, with its ratio to training on the same data.

    Columns: CONFIGURATION, CIRCUMSTANCES, rounds, samples_per_second, tokens_per_second, shards_read_samples_per_second
    (medians), training_rounds, training_samples_per_second, throughput_ratio (input / training) with _low and _high,
    reason.
    """

    apart = ("data", "data_fingerprint", "kind", "dropout", "start_iteration", "stop_iteration")

    def key(trial: LoadedTrial) -> Key:  # each may have a window of its own
        source = trial.row["data_fingerprint"] or trial.row["data"]
        return (source, *(value for name, value in _fields(trial).items() if name not in apart))

    training = {key(group[0]): group for group in by_key(trials).values()}
    rows = []
    for group in by_key(trials, kinds=("input",)).values():
        old = training.get(key(group[0]), [])
        row = {**_fields(group[0]), "rounds": len(group)}
        names = ("samples_per_second", "tokens_per_second", "shards_read_samples_per_second")
        row |= {name: _median(group, name) for name in names}
        row |= {"training_rounds": len(old), "training_samples_per_second": _median(old, "samples_per_second")}
        row |= ratio_columns("throughput_ratio", _rate_ratio(old, group) if old else None)
        row["reason"] = "" if old else "training with the same data and configuration was not measured here"
        rows.append(row)
    return rows


def _fields(trial: LoadedTrial) -> dict[str, Any]:
    return {name: trial.row[name] for name in (*CONFIGURATION, *CIRCUMSTANCES)}


def _median(group: Rounds, name: str) -> float | None:
    values = [float(trial.row[name]) for trial in group if trial.row.get(name) is not None]
    return float(np.median(values)) if values else None


def compare_runs(a: RunDirectory, b: RunDirectory, threshold: float = THRESHOLD) -> dict[str, Any]:
    """Compare run b (new) with run a (old), configuration by configuration.

    A measurement that has no equal in the other run is compared with the only one of its configuration that is left
    over there, and what differs is listed.

    Returns:
        threshold, spread (run_spread of both), regressed, undecided (whether a row leaves open if it is a regression:
        "cannot decide", and "slower" by an open amount), differences (machines, libraries, configurations of one run
        only), and `rows`: CONFIGURATION, kind, data, data_fingerprint (of b), rounds_a, rounds_b, differences,
        step_time_ms_a, step_time_ms_b, throughput_ratio (b / a), time_saved, and `change_of`.

    Raises:
        UsageError: the threshold is not in [0, 1).
        InputError, SchemaError: see load_run.
    """
    check_threshold(threshold)
    sides = [load_run(run) for run in (a, b)]
    spread = run_spread(*sides)
    old, new = (by_key(side, kinds=("throughput", "input", "measure"), failed=True) for side in sides)
    pairs = paired(old, new)
    rows = [_compare_row(old.pop(before), new.pop(after), threshold, spread) for before, after in pairs]
    differences = [f"{run.path}: {text}" for run, side in zip((a, b), sides, strict=True) for text in side.problems]
    differences += differing(environment_of(trial.environment for trial in side) for side in sides)
    for run, left in ((a, old), (b, new)):
        differences += dict.fromkeys(f"only in {run.path}: {describe(rounds[0].row)}" for rounds in left.values())
    verdicts = {row["verdict"] for row in rows}
    return {
        "threshold": threshold,
        "spread": spread,
        "regressed": "regression" in verdicts,
        "undecided": not verdicts.isdisjoint(("cannot decide", "slower")),
        "rows": rows,
        "differences": differences,
    }


def paired(old: Mapping[Key, Rounds], new: Mapping[Key, Rounds]) -> list[tuple[Key, Key]]:
    """Return the keys of the groups to compare: equal ones, then single ones left of one kind and CONFIGURATION."""
    left: dict[Key, tuple[list[Key], list[Key]]] = defaultdict(lambda: ([], []))
    for side, (groups, others) in enumerate(((old, new), (new, old))):
        for key, rounds in groups.items():
            if key not in others:
                left[rounds[0].trial.kind, *rounds[0].key()][side].append(key)
    single = [(olds[0], news[0]) for olds, news in left.values() if len(olds) == len(news) == 1]
    return [(key, key) for key in old if key in new] + single


def check_threshold(threshold: float) -> None:
    """Raise UsageError for a threshold outside of [0, 1)."""
    if not 0 <= threshold < 1:
        raise UsageError("option-value", f"--threshold {threshold} must be in [0, 1): 0.05 means 5 %")


def describe(row: Mapping[str, Any]) -> str:
    """Return the configuration of a row in words."""
    model = "" if row["kind"] == "measure" else f" {wording.model(row)}"
    task = f"{wording.task(row)} " if row["task"] else ""
    return f"{task}{wording.implementation(row)}{model} {wording.place(row)}"


def differing(sides: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return "name: old -> new" for each value that two sides do not share."""
    a, b = sides
    names = [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]
    return [f"{name}: {a.get(name, 'not recorded')} -> {b.get(name, 'not recorded')}" for name in names]


def _compare_row(old: Rounds, new: Rounds, threshold: float, spread: float | None) -> dict[str, Any]:
    row: dict[str, Any] = dict(zip(CONFIGURATION, old[0].key(), strict=True))
    row |= {name: getattr(new[0].trial, name) for name in ("kind", "data", "data_fingerprint")}
    before, after = [t for t in old if t.ok], [t for t in new if t.ok]
    row |= {"rounds_a": len(before), "rounds_b": len(after), "differences": changed_settings(old, new)}
    row |= dict.fromkeys(("step_time_ms_a", "step_time_ms_b", "throughput_ratio", "time_saved"))
    row |= change_of(old, new, threshold, spread)
    if row["time_ratio"] is not None:
        row |= {"step_time_ms_a": _median(before, "step_time_ms"), "step_time_ms_b": _median(after, "step_time_ms")}
        row["time_saved"] = 1 - row["time_ratio"]
        # Where neither side's are known, steps are compared.
        if (samples_per_step(before) is None) == (samples_per_step(after) is None):
            row["throughput_ratio"] = _rate_ratio(before, after).value
    return row


def change_of(old: Rounds, new: Rounds, threshold: float, spread: float | None) -> dict[str, Any]:
    """Return time_ratio, time_ratio_low, time_ratio_high (new / old, None without step times), verdict and reason.

    A configuration that ran and now ends as oom, crashed or timeout is a regression; see `judged` for the others.
    """
    before, after = [t for t in old if t.ok], [t for t in new if t.ok]
    if not before or not after:
        ratio, (verdict, reason) = None, _status_verdict(old, new)
    else:
        ratio, undecided = time_ratio(before, after)
        verdict, reason = "cannot decide", undecided or disturbed_side(before, after)
        if not reason:
            verdict, reason = judged(ratio, len(before), len(after), threshold, spread)
    return {**ratio_columns("time_ratio", ratio), "verdict": verdict, "reason": reason}


def time_ratio(before: Rounds, after: Rounds) -> tuple[Ratio, str]:
    """Return the ratio, new / old, that two sides are judged by, and why it decides nothing ("" if it does).

    It is that of the step times; where steps hold different numbers of samples that of the times per sample.
    """
    old, new = samples_per_step(before), samples_per_step(after)
    if old and new and abs(new / old - 1) >= _SAME_SAMPLES:
        rate = _rate_ratio(before, after)
        return Ratio(1 / rate.value, 1 / rate.high, 1 / rate.low), ""
    times = ratio_interval([t.window_times() for t in before], [t.window_times() for t in after])
    return times, "" if bool(old) == bool(new) else f"{_count(new)} instead of {_count(old)} samples a step"


def _rate_ratio(before: Rounds, after: Rounds) -> Ratio:
    return rate_ratio([trial.window_work() for trial in before], [trial.window_work() for trial in after])


def samples_per_step(trials: Rounds) -> float | None:
    """Return the samples of a step of all ranks, the median over the rounds; None of a script that shows none."""
    if not all(trial.trial.kind != "measure" or trial.row.get("samples_per_step") for trial in trials):
        return None
    return float(np.median([t.row.get("samples_per_step") or t.trial.global_batch_size for t in trials]))


def _count(samples: float | None) -> str:
    return "an unknown number" if samples is None else f"{samples:,.4g}"


def _status_verdict(old: Rounds, new: Rounds) -> tuple[str, str]:
    was, now = old[0].row["status"], new[0].row["status"]
    if any(trial.ok for trial in old) and now in _FAILED:
        return "regression", f"it ran, and now ends as {now}"
    if any(trial.ok for trial in new) and was in _FAILED:
        return "improvement", f"it ended as {was}, and now runs"
    if was == now and now in _FAILED:
        return "no change", f"it ends as {now} in both"
    name, row = ("new", new[0].row) if any(trial.ok for trial in old) else ("old", old[0].row)
    return "cannot decide", f"the {name} run has no measurement ({row['status']}: {row.get('reason') or 'no steps'})"


def changed_settings(old: Rounds, new: Rounds) -> list[str]:
    """Return what makes two sides different measurements but is no part of a configuration's name."""
    names = [*CIRCUMSTANCES, "memory_limit_bytes"]
    place = CIRCUMSTANCES.index("data")
    if len({circumstances(trial.row)[place : place + 2] for trial in (*old, *new)}) == 1:
        names.remove("data")  # the same by fingerprint, or by name where there is none, wherever they lie
    sides = []
    for side in (old, new):
        values = {name: ", ".join(sorted({str(getattr(trial.trial, name)) for trial in side})) for name in names}
        values["command"] = ", ".join(sorted({shlex.join(trial.trial.command) for trial in side}))
        good = [trial for trial in side if trial.ok]
        values |= {"samples per step": _count(samples_per_step(good))} if good else {}
        contents = ", ".join(script_contents(side))
        sides.append(values | ({"content of the script": contents} if contents else {}))
    shared = sides[0].keys() & sides[1].keys()
    return differing({name: value for name, value in side.items() if name in shared} for side in sides)


def environment_of(environments: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the machine and the versions that trials ran on, by name; several values are joined."""
    values: dict[str, set[str]] = defaultdict(set)
    for environment in environments:
        cpu, gpus = environment.get("cpu") or {}, environment.get("gpus") or []
        row = {name: environment.get(name) for name in ("device_name", "driver", "memory_bytes", "system", "python")}
        row |= {"cpu": cpu.get("model"), "cores": cpu.get("physical_cores"), "gpus": len(gpus) or None}
        row |= {"commit": environment.get("git_commit")}
        row |= {f"library {name}": version for name, version in (environment.get("libraries") or {}).items()}
        for name, value in row.items():
            if value is not None:
                values[name].add(str(value))
    return {name: ", ".join(sorted(each)) for name, each in values.items()}
