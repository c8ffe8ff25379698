"""Many runs over time: what became of each measurement, and which run changed it."""

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.load import CIRCUMSTANCES, CONFIGURATION, Key, LoadedTrial, load_run, measurement, script_contents
from analysis.metrics.comparison.ratio import measured_rate, run_spread, samples_seen, typical_time
from analysis.metrics.comparison.regression import (
    THRESHOLD,
    change_of,
    check_threshold,
    describe,
    differing,
    time_ratio,
)
from common.errors import InputError
from records.run import RunDirectory


@dataclass(frozen=True, slots=True)
class Series:
    """One measurement on one kind of machine, by every run that made it."""

    row: Mapping[str, Any]
    points: tuple[dict[str, Any], ...]
    """One row per run, by time.

    Columns: run, began (of its first step, UTC), status (ok, or how every round ended), commit, rounds,
    samples_per_second (of all ranks) with _low and _high, step_time_ms (median of the rounds' medians), time_ratio and
    time_ratio_first (regression.change_of since the last and the first point with a step time; above 1 is slower),
    verdict (against the last), reason, changed (versions and commit that differ). Unknown ones are None.
    """


@dataclass(frozen=True, slots=True)
class History:
    """What several runs measured, by time."""

    series: tuple[Series, ...]
    problems: tuple[str, ...]
    """What could not be read, and measurements that another run has too."""
    threshold: float

    @property
    def regressed(self) -> bool:
        """Whether the newest point of any series is a regression."""
        return any(series.points[-1]["verdict"] == "regression" for series in self.series)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        series = [{**one.row, "points": list(one.points)} for one in self.series]
        about = {"threshold": self.threshold, "regressed": self.regressed, "problems": list(self.problems)}
        return {**about, "series": series}


@dataclass(frozen=True, slots=True)
class _Group:
    """The rounds of one measurement in one run."""

    run: Path
    began_ns: int
    trials: list[LoadedTrial]
    spread: float | None

    @property
    def good(self) -> list[LoadedTrial]:
        return [trial for trial in self.trials if trial.ok]


def history_of(runs: Sequence[RunDirectory], threshold: float = THRESHOLD) -> History:
    """Put the measurements of several runs in a row by time, each compared with the one before it.

    A series are the rounds with equal configuration and circumstances on machines that agree (device, CPU, cores,
    GPUs); other libraries, drivers and commits are reported. A script is known by its name and the name of its folder,
    unless a run has several commands of that name. Profiled, input-only and interrupted trials are left out.

    Raises:
        InputError: no run holds a measurement.
        UsageError: the threshold is not in [0, 1).
    """
    check_threshold(threshold)
    problems: list[str] = []
    groups: dict[Key, list[_Group]] = defaultdict(list)
    for run in runs:
        for key, group in _groups(run, problems):
            groups[key].append(group)
    series = []
    for members in groups.values():
        members.sort(key=lambda group: group.began_ns)
        once: list[_Group] = []
        for group in members:
            if once and once[-1].began_ns == group.began_ns:
                problems.append(f"{group.run}: skipped only the measurements that {once[-1].run} has too")
            else:
                once.append(group)
        series.append(_series(once, threshold))
    if not series:
        why = f": {problems[0]}" if problems else ": give run directories of `bertbench throughput` or `measure`"
        raise InputError("run-incomplete", f"none of {len(runs)} runs contains a measurement with steps{why}")
    series.sort(key=lambda one: tuple(str(one.row[name]).rjust(12) for name in (*CONFIGURATION, "machine")))
    return History(tuple(series), tuple(dict.fromkeys(problems)), threshold)


def _groups(run: RunDirectory, problems: list[str]) -> list[tuple[Key, _Group]]:
    try:
        loaded = load_run(run)
    except InputError as error:
        problems.append(str(error))
        return []
    problems += [f"{run.path}: {problem}" for problem in loaded.problems]
    spread = run_spread(loaded)
    # What crashed early has not written down where it ran.
    somewhere = next((trial.environment for trial in loaded if trial.environment.get("device_name")), {})
    compared = [
        trial
        for trial in loaded
        if trial.trial.kind in ("throughput", "measure")
        and trial.trial.profiler is None
        and trial.row["status"] != "interrupted"
    ]
    commands: dict[Key, set[Any]] = defaultdict(set)
    for trial in compared:
        commands[trial.key()].add(trial.trial.command)
    groups: dict[Key, list[LoadedTrial]] = defaultdict(list)
    for trial in compared:
        known = trial if trial.environment.get("device_name") else replace(trial, environment=somewhere)
        one_command = len(commands[trial.key()]) == 1
        row = {**trial.row, "command": (known.environment.get("script_folder"),)} if one_command else trial.row
        groups[(*measurement(row), *_machine_of(known.environment).values())].append(known)
    starts = {
        key: [steps[0]["start_ns"] for trial in trials if (steps := trial.steps) and steps[0]["start_ns"] is not None]
        for key, trials in groups.items()
    }
    # What failed before its first step is dated by the other measurements of its run.
    usual = min((time for times in starts.values() for time in times), default=None)
    result = []
    for key, trials in groups.items():
        when = min(starts[key], default=usual)
        if when is not None:
            result.append((key, _Group(run.path, when, trials, spread)))
            continue
        row = trials[0].row
        why = f"{row['status']}, {row.get('reason') or 'no step is recorded'}"
        problems.append(f"{run.path}: skipped {describe(row)}, because its start time is unknown: {why}")
    return result


def _machine_of(environment: Mapping[str, Any]) -> dict[str, Any]:
    cpu = environment.get("cpu") or {}
    return {
        "device_name": environment.get("device_name"),
        "cpu": cpu.get("model"),
        "cores": cpu.get("physical_cores"),
        "usable_cores": cpu.get("usable_cores"),
        "gpus": len(environment.get("gpus") or []),
    }


def _series(groups: Sequence[_Group], threshold: float) -> Series:
    points: list[dict[str, Any]] = []
    before: _Group | None = None
    first = next((group for group in groups if group.good), None)
    for group in groups:
        points.append(_point(group, before, None if group is first else first, threshold))
        # What failed is no measure for what comes after it.
        before = group if group.good or before is None or not before.good else before
    last = groups[-1].trials[0]
    row = {name: last.row.get(name) for name in (*CONFIGURATION, *CIRCUMSTANCES)}
    machine = _machine_of(last.environment)
    name, cores = machine["device_name"] or "unknown device", machine["usable_cores"] or machine["cores"]
    shown = f"{machine['gpus']} x {name}" if machine["gpus"] else f"{name}, {cores} cores" if cores else str(name)
    return Series({**row, "machine": shown}, tuple(points))


def _point(group: _Group, before: _Group | None, first: _Group | None, threshold: float) -> dict[str, Any]:
    good, last = group.good, group.trials[0]
    point: dict[str, Any] = {
        "run": str(group.run),
        "began": datetime.fromtimestamp(group.began_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "status": "ok" if good else str(last.row["status"]),
        "commit": str(last.environment.get("git_commit") or ""),
        "rounds": len(good),
        **dict.fromkeys(("samples_per_second", "samples_per_second_low", "samples_per_second_high", "step_time_ms")),
        **dict.fromkeys(("time_ratio", "time_ratio_first", "verdict")),
        "reason": "" if good else str(last.row.get("reason") or ""),
        "changed": (),
    }
    if good:
        point["step_time_ms"] = typical_time([trial.window_times() for trial in good]).value
        if first is not None:
            point["time_ratio_first"] = time_ratio(first.good, good)[0].value
        if samples_seen(good):
            rate = measured_rate(good)
            ends = {"samples_per_second_low": rate.low, "samples_per_second_high": rate.high}
            point |= {"samples_per_second": rate.value, **ends}
    if before:
        spread = max((one.spread for one in (group, before) if one.spread is not None), default=None)
        change = change_of(before.trials, group.trials, threshold, spread)
        point |= {"time_ratio": change["time_ratio"], "verdict": change["verdict"]}
        point["reason"] = ": ".join(filter(None, (change["reason"], point["reason"])))
        point["changed"] = tuple(
            text.replace(":", "", 1) for text in differing(map(_versions, (before, group)), "none")
        )
    return point


def _versions(group: _Group) -> dict[str, str]:
    environment = group.trials[0].environment
    values = {"commit": environment.get("git_commit"), "driver": environment.get("driver")}
    values |= {"system": environment.get("system"), "Python": environment.get("python")}
    values |= {"command": shlex.join(group.trials[0].trial.command)}
    values |= {"content of the script": ", ".join(script_contents(group.trials))}
    return {name: str(value) for name, value in {**values, **(environment.get("libraries") or {})}.items() if value}
