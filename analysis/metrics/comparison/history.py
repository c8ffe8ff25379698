"""Three or more runs over time: what became of each measurement, and which run changed it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from analysis.load import CIRCUMSTANCES, CONFIGURATION, Key, LoadedTrial, load_run
from analysis.metrics.comparison.ratio import THRESHOLD, typical_time
from analysis.metrics.comparison.runs import (
    Rounds,
    by_key,
    change_of,
    changed_settings,
    check_threshold,
    differing,
    environment_of,
    paired,
    run_spread,
    time_ratio,
)
from common.errors import InputError
from records.run import RunDirectory


class _Run(NamedTuple):
    began_ns: int
    path: Path
    groups: Mapping[Key, list[LoadedTrial]]
    spread: float | None
    environment: Mapping[str, str]
    machine: str  # of one kind of device; a run with two kinds is two of these


class _Place(NamedTuple):
    """The rounds of a measurement in a run."""

    run: _Run
    key: Key
    rounds: Rounds


def history_of(runs: Sequence[RunDirectory], threshold: float = THRESHOLD) -> dict[str, Any]:
    """Put the measurements of several runs in a row by time, each compared with the one before it.

    A series are measurements that compare_runs would pair, on machines that agree (device, cores, GPUs). Profiled,
    input-only and interrupted trials are left out.

    Returns:
        threshold, regressed (whether the newest point of any series is a regression), problems (what could not be
        read), and `series`: CONFIGURATION, CIRCUMSTANCES, machine, and `points`, a row per run.

        Points have run, began (first step of the run, UTC), status (ok, or how every round ended), rounds, step_time_ms
        (median of the rounds' medians), time_ratio_first (new / old, since the first point with a step time), changed
        (machine, versions and settings that differ), and change_of since the last point with a step time; its verdict
        is None for the first point. Unknown ones are None.

    Raises:
        InputError: no run holds a measurement.
        UsageError: the threshold is not in [0, 1).
    """
    check_threshold(threshold)
    problems: list[str] = []
    dated = [one for run in runs for one in _read(run, problems)]
    chains: dict[str, list[list[_Place]]] = defaultdict(list)
    for run in sorted(dated, key=lambda one: one.began_ns):
        latest = {chain[-1].key: chain for chain in chains[run.machine]}
        ends = {key: chain[-1].rounds for key, chain in latest.items()}
        before = {new: latest[old] for old, new in paired(ends, run.groups)}
        for key, rounds in run.groups.items():
            if key not in before:
                chains[run.machine].append(before.setdefault(key, []))
            elif before[key][-1].run.began_ns == run.began_ns:
                problems.append(f"{run.path}: skipped the measurements that {before[key][-1].run.path} has too")
                continue
            before[key].append(_Place(run, key, rounds))
    if not chains:
        why = f": {problems[0]}" if problems else ": give run directories of `bertbench throughput` or `measure`"
        raise InputError("run-incomplete", f"none of {len(runs)} runs contains a measurement with steps{why}")
    series = [_series(chain, machine, threshold) for machine, each in chains.items() for chain in each]
    series.sort(key=lambda one: tuple(str(one[name]).rjust(12) for name in (*CONFIGURATION, "machine")))
    regressed = any(one["points"][-1]["verdict"] == "regression" for one in series)
    problems = list(dict.fromkeys(problems))
    return {"threshold": threshold, "regressed": regressed, "problems": problems, "series": series}


def _read(run: RunDirectory, problems: list[str]) -> Iterator[_Run]:
    try:
        trials = load_run(run)
    except InputError as error:
        problems.append(str(error))
        return
    problems += [f"{run.path}: {problem}" for problem in trials.problems]
    shown = [one for one in trials if one.trial.profiler is None and one.row["status"] != "interrupted"]
    groups = by_key(shown, kinds=("throughput", "measure"), failed=True)
    starts = [start for one in groups.values() for trial in one for step in trial.steps[:1]
              if (start := step["start_ns"]) is not None]  # fmt: skip
    if not starts:
        problems.append(f"{run.path}: skipped, because none of its measurements has a step")
        return
    for device in dict.fromkeys(each[0].row["device"] for each in groups.values()):
        of_device = {key: each for key, each in groups.items() if each[0].row["device"] == device}
        environments = [one.environment for one in trials if one.row["device"] == device]
        machine = _machine_of(environments)
        yield _Run(min(starts), run.path, of_device, run_spread(trials), environment_of(environments), machine)


def _machine_of(environments: Sequence[Mapping[str, Any]]) -> str:
    # What crashed early has not written down where it ran.
    somewhere = next((one for one in environments if one.get("device_name")), {})
    cpu, gpus = somewhere.get("cpu") or {}, len(somewhere.get("gpus") or [])
    name, cores = somewhere.get("device_name") or "unknown device", cpu.get("usable_cores") or cpu.get("physical_cores")
    return f"{gpus} x {name}" if gpus else f"{name}, {cores} cores" if cores else str(name)


def _series(places: Sequence[_Place], machine: str, threshold: float) -> dict[str, Any]:
    points: list[dict[str, Any]] = []
    before: _Place | None = None
    first: Rounds = ()
    for place in places:
        run, rounds = place.run, place.rounds
        good, row = [trial for trial in rounds if trial.ok], rounds[0].row
        point: dict[str, Any] = {
            "run": str(run.path),
            "began": datetime.fromtimestamp(run.began_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "status": "ok" if good else str(row["status"]),
            "rounds": len(good),
            "step_time_ms": typical_time([trial.window_times() for trial in good]).value if good else None,
            **dict.fromkeys(("time_ratio", "time_ratio_low", "time_ratio_high")),
            "time_ratio_first": time_ratio(first, good)[0].value if first and good else None,
            "verdict": None,
            "reason": "" if good else str(row.get("reason") or ""),
            "changed": [],
        }
        if before:
            spread = max((one.spread for one in (run, before.run) if one.spread is not None), default=None)
            change = change_of(before.rounds, rounds, threshold, spread)
            reason = ": ".join(filter(None, (change["reason"], point["reason"])))
            changed = differing((before.run.environment, run.environment)) + changed_settings(before.rounds, rounds)
            point |= change | {"reason": reason, "changed": changed}
        points.append(point)
        first = first or good
        # What failed is no measure for what comes after it.
        if good or before is None or not any(trial.ok for trial in before.rounds):
            before = place
    row = places[-1].rounds[0].row
    return {**{name: row.get(name) for name in (*CONFIGURATION, *CIRCUMSTANCES)}, "machine": machine, "points": points}
