"""What the profile of a trial says: its files read, its tables made. One summary for terminal, JSON and run directory.

A summary's rows lie in trials/<id>/profile/summary.json; compute_utilization.csv and core_utilization.csv of the run
are the rows of all its trials.
"""

import csv
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.metrics.breakdown import Breakdown, breakdown
from analysis.metrics.core_utilization import rows as core_rows
from analysis.metrics.range_tree import RangeNode, range_tree
from analysis.metrics.telemetry import telemetry_in_window
from analysis.metrics.utilization import TRIAL_FIELDS, UTILIZATION_COLUMNS, compute_utilization_rows
from analysis.records import RunDirectory, Trial, TrialDirectory, read_record, write_record
from analysis.timeline import Timeline
from common.atomic import atomic_path
from common.errors import InputError, SchemaError

COST_FIELDS = ("step_time_ms", "unprofiled_step_time_ms", "step_time_ratio")
"""What the profiler cost, in every row: median step times with and without it, and their ratio."""
TABLES = {"compute_utilization.csv": "compute", "core_utilization.csv": "core"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileSummary:
    """What was found in one trial's profile."""

    breakdowns: tuple[Breakdown, ...] = ()
    """One per rank whose trace holds operators or kernels, by rank."""
    tree: RangeNode | None = None
    """The ranges of the first recorded step of the first rank, where the trace has ranges."""
    compute: tuple[dict[str, Any], ...] = ()
    """Rows of compute_utilization.csv."""
    core: tuple[dict[str, Any], ...] = ()
    """Rows of core_utilization.csv."""
    sensors: tuple[dict[str, Any], ...] = ()
    """Rows of telemetry_in_window: what the sensors read while the window ran."""
    problems: tuple[str, ...] = ()
    """What could not be read, one sentence each."""

    @property
    def unread(self) -> str:
        """Why nothing of the files could be used; "" where something could, or there was none."""
        return self.problems[0] if self.problems and not (self.breakdowns or self.tree or self.counted) else ""

    @property
    def counted(self) -> bool:
        """Whether kernels were counted."""
        return any(row.get("kernels") for row in self.core)


def summarize(directory: TrialDirectory, files: Sequence[Path]) -> ProfileSummary:
    """Read the files that a profiler left for a trial; keep the rows in profile/summary.json.

    Raises:
        StorageError: the summary cannot be written.
    """
    trial, result = directory.read_trial(), directory.read_result() or {}
    profile = result.get("profile") or {}
    cost = {"step_time_ms": result.get("step_time_ms"), **{name: profile.get(name) for name in COST_FIELDS[1:]}}
    timelines, problems = _timelines(files)
    reason = str(profile.get("problem") or result.get("reason") or (problems[0] if problems else ""))
    compute: list[dict[str, Any]] = []
    core: list[dict[str, Any]] = []
    if trial.profiler == "ncu":
        core, lost = _core_rows(trial, files, reason, cost["unprofiled_step_time_ms"])
        problems += lost
    elif trial.profiler != "nvtx":
        compute = compute_utilization_rows({name: _field(trial, name) for name in TRIAL_FIELDS}, timelines, reason)
    with_work = [timeline for timeline in timelines if len(timeline.kernels) or len(timeline.operators)]
    summary = ProfileSummary(
        breakdowns=tuple(breakdown(timeline) for timeline in with_work),
        tree=_first_tree(timelines),
        compute=tuple({**row, **cost} for row in compute),
        core=tuple({**row, **cost} for row in core),
        sensors=tuple(_sensors(directory, trial)),
        problems=tuple(dict.fromkeys([*problems, *(problem for found in timelines for problem in found.problems)])),
    )
    if directory.profile.is_dir():
        rows = {name: list(getattr(summary, name)) for name in ("compute", "core", "sensors")}
        write_record(_summary_json(directory), rows)
    return summary


def write_tables(run: RunDirectory) -> list[Path]:
    """Write the tables of the run from the summaries of all its trials; return those that have rows."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in TABLES.values()}
    for directory in run.trials():
        path = _summary_json(directory)
        if not path.exists():
            continue
        try:
            record = read_record(path)
        except SchemaError:
            continue
        for kind, kept in found.items():
            kept.extend(record.get(kind, []))
    written = []
    for name, kind in TABLES.items():
        if found[kind]:
            _write_csv(run.path / name, sorted(found[kind], key=_order))
            written.append(run.path / name)
    return written


def _timelines(files: Sequence[Path]) -> tuple[list[Timeline], list[str]]:
    """Read every trace among the files, by rank; a damaged one is a problem, not the end."""
    timelines: list[Timeline] = []
    problems: list[str] = []
    for file in files:
        try:
            if file.name.startswith("trace-rank"):
                from analysis.readers import kineto

                timelines.append(kineto.read(file))
            elif file.suffix == ".sqlite":
                from analysis.readers import nsys

                timelines.extend(nsys.read(file))
            elif file.suffix == ".nvvp":
                problems.append(f"{file.name} is kept for NVIDIA's Visual Profiler; this version does not read it")
        except InputError as error:
            problems.append(str(error))
    return sorted(timelines, key=lambda found: (found.rank is None, found.rank or 0)), problems


def _core_rows(
    trial: Trial, files: Sequence[Path], reason: str, step_time_ms: float | None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of core_utilization.csv, with the trial's fields, and what could not be read.

    `step_time_ms` is the unprofiled one: the window that the kernels' time is held against.
    """
    from analysis.readers import ncu

    own = {name: _field(trial, name) for name in TRIAL_FIELDS}
    problems: list[str] = []
    windows = None
    for file in files:
        if file.name == "collected.json":
            try:
                note = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                problems.append(f"cannot read {file}: {error}; whether all kernels were counted is not known")
                continue
            problems.extend(note["problems"])
            # Kernels that were passed over leave the window's share unknown.
            skipped = any(word.startswith("skip=") for word in trial.profiler_options)
            if not note.get("limit_reached") and not skipped and step_time_ms:
                assert trial.start_iteration is not None and trial.stop_iteration is not None
                steps = trial.stop_iteration - trial.start_iteration
                windows = {trial.micro_batch_size: steps * step_time_ms * 1e6}
    said = "; ".join(problems)
    found: list[dict[str, Any]] = []
    for file in files:
        if file.suffix != ".csv":
            continue
        try:
            counters = ncu.read(file)
        except InputError as error:
            problems.append(str(error))
            continue
        problems.extend(counters.problems)
        for row in core_rows({trial.micro_batch_size: counters}, windows):
            found.append({**own, **row, "reason": "; ".join(filter(None, [said, row["reason"]]))})
    if not found:
        found = [{**own, "reason": reason or "; ".join(problems)}]
    return found, problems


def _sensors(directory: TrialDirectory, trial: Trial) -> list[dict[str, Any]]:
    steps = {rank: directory.read_steps(rank) for rank in directory.ranks()}
    if not steps or trial.start_iteration is None or trial.stop_iteration is None:
        return []
    return telemetry_in_window(directory.read_telemetry(), steps, trial.start_iteration, trial.stop_iteration)


def _field(trial: Trial, name: str) -> Any:
    """Return a field of the trial as a table shows it."""
    value = getattr(trial, name)
    return " ".join(value) if isinstance(value, tuple) else value


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    """Model and device count together, there by batch size and rank; unknown values first."""
    words = tuple(str(row.get(name) or "") for name in ("preset", "precision"))
    numbers = ("seq_len", "world_size", "micro_batch_size", "rank")
    return (*words, *(int(row[name]) if row.get(name) is not None else -1 for name in numbers), row["trial_id"])


def _first_tree(timelines: Sequence[Timeline]) -> RangeNode | None:
    for timeline in timelines:
        if len(timeline.steps) and len(timeline.ranges):
            return range_tree(timeline, int(timeline.steps["step"].min()))
    return None


def _summary_json(directory: TrialDirectory) -> Path:
    return directory.profile / "summary.json"


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    known = [*UTILIZATION_COLUMNS, *COST_FIELDS]
    if path.name == "compute_utilization.csv":
        columns = [*known, *(name for name in columns if name not in known)]
    with atomic_path(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows({name: "" if value is None else value for name, value in row.items()} for row in rows)


def plain(summary: ProfileSummary) -> dict[str, Any]:
    """Return a summary as plain JSON values."""
    return {
        "breakdowns": [dataclasses.asdict(found) for found in summary.breakdowns],
        "ranges": None if summary.tree is None else dataclasses.asdict(summary.tree),
        "compute_utilization": list(summary.compute),
        "core_utilization": list(summary.core),
        "sensors": list(summary.sensors),
        "problems": list(summary.problems),
    }
