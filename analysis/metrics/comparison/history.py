"""Many runs over time: what became of each measurement, and which run changed it."""

import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analysis.load import CIRCUMSTANCES, CONFIGURATION, Key, LoadedTrial, load_run, measurement, script_contents
from analysis.metrics.comparison.ratio import (
    measured_rate,
    run_spread,
    samples_seen,
    typical_time,
)
from analysis.metrics.comparison.regression import THRESHOLD, change_of, describe_key, judged, status_verdict
from common.errors import InputError, UsageError
from records.run import RunDirectory

_NS = 1_000_000_000
_MEASURED = (
    "samples_per_second", "samples_per_second_low", "samples_per_second_high", "step_time_ms", "time_ratio",
    "time_ratio_first",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One measurement by one run."""

    run: str
    began: str
    """When its first step began: ISO 8601, UTC, seconds."""
    status: str
    """ok, or how every round of it ended."""
    commit: str
    """Of the code that ran, "+" behind one with changes; empty where it was not recorded."""
    rounds: int
    samples_per_second: float | None
    """Of all ranks together; None where no round ended well, as everything below, and for a script that shows no
    samples."""
    samples_per_second_low: float | None
    """Lower end of its 95 % interval (ratio.measured_rate)."""
    samples_per_second_high: float | None
    step_time_ms: float | None
    """Median over the rounds of their medians."""
    time_ratio: float | None
    """Change since the last point before that has a step time (regression.change_of); above 1 is slower."""
    time_ratio_first: float | None
    """Change since the first point that has a step time: many small losses add up here."""
    verdict: str | None
    """Against the last point before that has a step time (regression.judged); None of the first point."""
    reason: str
    changed: tuple[str, ...]
    """Versions and commit that are others than at the point that it is compared with."""


@dataclass(frozen=True, slots=True)
class Series:
    """One measurement on one kind of machine, by every run that made it."""

    row: Mapping[str, Any]
    """CONFIGURATION, CIRCUMSTANCES and `machine`, as the last run has them."""
    points: tuple[Point, ...]

    @property
    def regressed(self) -> bool:
        """Whether the newest point is a regression."""
        return self.points[-1].verdict == "regression"


@dataclass(frozen=True, slots=True)
class History:
    """What several runs measured, by time."""

    series: tuple[Series, ...]
    problems: tuple[str, ...]
    """Runs and trials that could not be read."""
    threshold: float
    """Relative change of the step time that counts."""
    notes: tuple[str, ...] = ()
    """Measurements that another run has too and that were skipped."""

    @property
    def regressed(self) -> bool:
        """Whether the newest point of any series is a regression."""
        return any(series.regressed for series in self.series)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        series = [{**one.row, "points": [asdict(point) for point in one.points]} for one in self.series]
        about = {"threshold": self.threshold, "regressed": self.regressed, "problems": list(self.problems)}
        about |= {"notes": list(self.notes)}
        return {**about, "series": series}


@dataclass(frozen=True, slots=True)
class _Group:
    """The rounds of one measurement in one run."""

    run: Path
    began_ns: int
    trials: tuple[LoadedTrial, ...]
    spread: float | None

    @property
    def good(self) -> list[LoadedTrial]:
        return [trial for trial in self.trials if trial.ok]


def history_of(runs: Sequence[RunDirectory], threshold: float = THRESHOLD) -> History:
    """Put the measurements of several runs in a row, each compared with the one before it.

    A series are the rounds whose configuration and circumstances agree (load.measurement) on machines that agree
    (device, CPU, cores, GPUs); libraries, driver and commit may differ, and are reported where they do. A measured
    script is known by its name and the name of its folder: its command and its content may differ too, unless a run has
    several commands of that name. Trials under a profiler, of the input alone and interrupted ones are left out.

    Raises:
        InputError: no run holds a measurement.
        SchemaError: a record was written by another version of bertbench.
        UsageError: the threshold is not in [0, 1).
    """
    if not 0 <= threshold < 1:
        raise UsageError("option-value", f"--threshold {threshold} must be in [0, 1): 0.05 means 5 %")
    problems: list[str] = []
    found: dict[Key, list[_Group]] = defaultdict(list)
    for run in runs:
        for key, group in _groups(run, problems):
            found[key].append(group)
    series = []
    repeated: list[str] = []
    for groups in found.values():
        groups.sort(key=lambda group: group.began_ns)
        series.append(_series(_once(groups, repeated), threshold))
    if not series:
        raise InputError(
            "run-incomplete",
            f"none of {len(runs)} runs contains a measurement with steps"
            f"{': ' + problems[0] if problems else ': give run directories of `bertbench throughput` or `measure`'}",
        )
    series.sort(key=lambda one: tuple(str(one.row[name]).rjust(12) for name in (*CONFIGURATION, "machine")))
    return History(tuple(series), tuple(dict.fromkeys(problems)), threshold, tuple(dict.fromkeys(repeated)))


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
    groups: dict[Key, list[LoadedTrial]] = defaultdict(list)
    compared = [trial for trial in loaded if _is_compared(trial)]
    commands: dict[Key, set[Any]] = defaultdict(set)
    for trial in compared:
        commands[trial.key()].add(trial.trial.command)
    for trial in compared:
        known = trial if trial.environment.get("device_name") else replace(trial, environment=somewhere)
        row = trial.row
        if len(commands[trial.key()]) == 1:
            row = {**row, "command": (known.environment.get("script_folder"),)}
        groups[(*measurement(row), *_machine_of(known.environment).values())].append(known)
    began = {key: _began_ns(trials) for key, trials in groups.items()}
    # What failed before its first step is dated by the other measurements of its run.
    usual = min((time for time in began.values() if time is not None), default=None)
    result = []
    for key, trials in groups.items():
        when = began[key] or usual
        if when is not None:
            result.append((key, _Group(run.path, when, tuple(trials), spread)))
            continue
        row, name = trials[0].row, describe_key(trials[0].key())
        why = f"{row['status']}, {row.get('reason') or 'no step is recorded'}"
        problems.append(f"{run.path}: skipped {name}, because its start time is unknown: {why}")
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


def _is_compared(trial: LoadedTrial) -> bool:
    one = trial.trial
    return one.kind in ("throughput", "measure") and one.profiler is None and trial.row["status"] != "interrupted"


def _began_ns(trials: Sequence[LoadedTrial]) -> int | None:
    starts = [trial.steps[0]["start_ns"] for trial in trials if trial.steps and trial.steps[0]["start_ns"] is not None]
    return min(starts, default=None)


def _once(groups: Sequence[_Group], notes: list[str]) -> list[_Group]:
    kept: list[_Group] = []
    for group in groups:
        if kept and kept[-1].began_ns == group.began_ns:
            notes.append(f"{group.run}: skipped only the measurements that {kept[-1].run} has too")
        else:
            kept.append(group)
    return kept


def _series(groups: Sequence[_Group], threshold: float) -> Series:
    points: list[Point] = []
    before: _Group | None = None
    first = next((group for group in groups if group.good), None)
    for group in groups:
        points.append(_point(group, before, None if group is first else first, threshold))
        # What failed is no measure for what comes after it.
        before = group if group.good or before is None or not before.good else before
    last = groups[-1].trials[0]
    row = {name: last.row.get(name) for name in (*CONFIGURATION, *CIRCUMSTANCES)}
    return Series({**row, "machine": _named(_machine_of(last.environment))}, tuple(points))


def _point(group: _Group, before: _Group | None, first: _Group | None, threshold: float) -> Point:
    good = group.good
    point: dict[str, Any] = dict.fromkeys(_MEASURED)
    verdict, reason = None, "" if good else str(group.trials[0].row.get("reason") or "")
    if good:
        time = typical_time([trial.window_times() for trial in good])
        point["step_time_ms"] = time.value
        if first is not None:
            point["time_ratio_first"] = change_of(first.good, good)[0].value
        if samples_seen(good):
            rate = measured_rate(good)
            point |= {"samples_per_second": rate.value}
            point |= {"samples_per_second_low": rate.low, "samples_per_second_high": rate.high}
    if before and good and before.good:
        ratio, undecided = change_of(before.good, good)
        point["time_ratio"] = ratio.value
        spread = max((one.spread for one in (group, before) if one.spread is not None), default=None)
        found = judged(ratio, len(before.good), len(good), threshold, spread)
        verdict, reason = ("cannot decide", undecided) if undecided else (found["verdict"], found["reason"])
    elif before:
        found = status_verdict(before.trials, group.trials)
        verdict, reason = found["verdict"], ": ".join(filter(None, (found["reason"], reason)))
    return Point(
        run=str(group.run),
        began=datetime.fromtimestamp(group.began_ns / _NS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        status="ok" if good else str(group.trials[0].row["status"]),
        commit=str(group.trials[0].environment.get("git_commit") or ""),
        rounds=len(good),
        verdict=verdict,
        reason=reason,
        changed=_changed(before, group) if before else (),
        **point,
    )


def _named(machine: Mapping[str, Any]) -> str:
    name = machine["device_name"] or "unknown device"
    if machine["gpus"]:
        return f"{machine['gpus']} x {name}"
    cores = machine["usable_cores"] or machine["cores"]
    return f"{name}, {cores} cores" if cores else str(name)


def _versions(group: _Group) -> dict[str, str]:
    environment = group.trials[0].environment
    found = {"commit": environment.get("git_commit"), "driver": environment.get("driver")}
    found |= {"system": environment.get("system"), "Python": environment.get("python")}
    found |= {"command": shlex.join(group.trials[0].trial.command)}
    found |= {"content of the script": ", ".join(script_contents(group.trials))}
    return {name: str(value) for name, value in {**found, **(environment.get("libraries") or {})}.items() if value}


def _changed(before: _Group, after: _Group) -> tuple[str, ...]:
    old, new = _versions(before), _versions(after)
    names = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    return tuple(f"{name} {old.get(name, 'none')} -> {new.get(name, 'none')}" for name in names)
