"""What the profile of a trial says: its files read, its tables made. One summary for terminal, JSON and run directory.

A summary's rows lie in trials/<id>/profile/summary.json; compute_utilization.csv and core_utilization.csv of the run
are the rows of all its trials.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.diagnose.advice import Advice, Context
from analysis.diagnose.explain import explain, to_do
from analysis.diagnose.finding import Finding
from analysis.metrics.cautions import disturbance
from analysis.metrics.kernels.core_utilization import utilization_row
from analysis.metrics.time.temporal import PROFILED_COLUMNS, compute_utilization_rows
from analysis.metrics.time.window import STEPS, parse_window, windowed
from analysis.open import Source, open_sources
from analysis.wording import inert
from common.atomic import atomic_path
from common.errors import InputError
from common.reading import read_notes
from records.files import read_record, write_record
from records.run import COLLECTED_FILE, RunDirectory, TrialDirectory
from records.trial import Trial

SUMMARY_FILE = "summary.json"
COST_FIELDS = ("step_time_ms", "unprofiled_step_time_ms", "step_time_ratio")
"""What the profiler cost, in every row: median step times with and without it, and their ratio."""
TABLES = {"compute_utilization.csv": "compute", "core_utilization.csv": "core"}
_PIPES = {"tensor": "Tensor", "fma": "FMA", "fp16": "FP16", "sfu": "SFU"}


@dataclass(frozen=True, kw_only=True)
class OpenedProfile:
    """Files that were read, those of a trial's profile with what the trial says about them."""

    source: Source
    """Empty but for its problems where no file can be used."""
    window_ns: float | None = None
    """Length of the counted steps without the profiler; None where unknown, or where not all kernels were counted."""
    context: Context = field(default_factory=Context)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What the analyses say."""
        return tuple(explain(self.source, self.window_ns, self.context))

    @cached_property
    def advice(self) -> tuple[Advice, ...]:
        """What to do about it, the largest gain first."""
        return tuple(to_do(self.source, self.findings, self.context))

    def within(self, window: str) -> "OpenedProfile":
        """Return the profile with every analysis over a window, as metrics.time.window.windowed takes it and raises."""
        if window == STEPS:
            return self
        timelines, problems = windowed(self.source.timelines, window)
        problems = (*self.source.problems, *problems)
        source = dataclasses.replace(self.source, timelines=timelines, problems=problems)
        return dataclasses.replace(self, source=source)


def open_profile(directory: TrialDirectory) -> OpenedProfile:
    """Read what a profiler left for a trial; what cannot be read is a problem, not the end."""
    trial, result = directory.read_trial(), directory.read_result() or {}
    files = sorted(directory.profile.rglob(COLLECTED_FILE)) if trial.profiler == "ncu" else []
    notes = {path: read_notes(path) for path in files}
    try:
        source = open_sources(directory.path)
    except InputError as error:
        source = Source(path=directory.path, problems=(str(error),))
    problems = [problem for note in notes.values() for problem in note.get("problems", [])]
    problems += [f"{path} is damaged: profile again" for path, note in notes.items() if not note]
    # Kernels that were passed over, or not reached, leave the window's share unknown.
    whole = notes and all(note and not note.get("limit_reached") for note in notes.values())
    step_time_ms, window = (result.get("profile") or {}).get("unprofiled_step_time_ms"), None
    if whole and step_time_ms and trial.start_iteration is not None and trial.stop_iteration is not None:
        window = (trial.stop_iteration - trial.start_iteration) * step_time_ms * 1e6
    return OpenedProfile(
        source=dataclasses.replace(source, problems=tuple(dict.fromkeys([*problems, *source.problems]))),
        window_ns=window,
        context=Context(
            row=dataclasses.asdict(trial),
            run=str(directory.path.parent.parent),
            disturbed=disturbance(result.get("cautions") or []),
            native_bf16=(directory.read_environment() or {}).get("native_bf16"),
        ),
    )


def analyze_paths(paths: Sequence[Path], window: str = "steps") -> OpenedProfile:
    """Read paths as one source, as views.analyze does; of the folder of a profiled trial with what the trial says."""
    parse_window(window)  # refuses before anything is read
    opened = OpenedProfile(source=open_sources(*paths))
    if len(paths) == 1 and (paths[0] / "trial.json").is_file():
        opened = open_profile(TrialDirectory(paths[0]))
    return opened.within(window)


def summarize(directory: TrialDirectory) -> tuple[OpenedProfile, dict[str, list[dict[str, Any]]]]:
    """Return the profile of a trial and its rows by kind (compute, core); write these to profile/summary.json.

    Raises:
        StorageError: the summary cannot be written.
    """
    trial, result = directory.read_trial(), directory.read_result() or {}
    profile = result.get("profile") or {}
    profiled = profile.get("profiled_step_time_ms", result.get("step_time_ms"))  # of a script both are in one trial
    cost = {"step_time_ms": profiled, **{name: profile.get(name) for name in COST_FIELDS[1:]}}
    missing = str(profile.get("problem") or result.get("reason") or "")
    opened = OpenedProfile(source=Source(path=directory.path))
    if not missing or any(directory.profile.glob("*")):
        opened = open_profile(directory)
    reason = missing or "; ".join(opened.source.problems[:1])
    fields = {name: getattr(trial, name) for name in PROFILED_COLUMNS}
    fields["profiler_options"] = " ".join(trial.profiler_options)
    rows: dict[str, list[dict[str, Any]]] = {"compute": [], "core": []}
    if trial.profiler == "ncu":
        rows["core"] = [{**fields, **row, **cost} for row in _core_rows(trial, opened, reason)]
    else:
        rows["compute"] = [{**row, **cost} for row in compute_utilization_rows(fields, opened.source.timelines, reason)]
    if directory.profile.is_dir():
        write_record(directory.profile / SUMMARY_FILE, rows)
    return opened, rows


def write_tables(run: RunDirectory) -> list[Path]:
    """Write the tables of the run from the summaries of all its trials; return those that have rows."""
    tables = {run.path / name: rows for name, rows in zip(TABLES, summary_rows(run).values(), strict=True) if rows}
    for path, rows in tables.items():
        with atomic_path(path) as temporary:
            pd.DataFrame(rows, dtype=object).map(inert).to_csv(temporary, index=False)
    return list(tables)


def summary_rows(run: RunDirectory) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the summaries of all trials, by kind (compute, core), by batch size."""
    paths = [path for trial in run.trials() if (path := trial.profile / SUMMARY_FILE).exists()]
    records = [read_record(path) for path in paths]
    return {kind: sorted((row for one in records for row in one[kind]), key=_order) for kind in TABLES.values()}


def utilization_by_batch(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[int, float]]:
    """Return the utilization of the devices by what is counted and micro batch, a fraction: mean over the ranks.

    Core utilization by pipe where Nsight Compute counted it, else the share of the time in which kernels ran.
    """
    values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows["core"]:
        for pipe, word in _PIPES.items():
            if (share := row.get(f"{pipe}_percent")) is not None:
                values[f"{word} utilization"][int(row["micro_batch_size"])].append(float(share) / 100)
    for row in rows["compute"] if not values else ():
        if (share := row.get("compute_utilization")) is not None:
            values["Compute utilization"][int(row["micro_batch_size"])].append(float(share))
    return {name: {batch: sum(each) / len(each) for batch, each in sorted(by.items())} for name, by in values.items()}


def _core_rows(trial: Trial, opened: OpenedProfile, reason: str) -> list[dict[str, Any]]:
    """Return the rows of core_utilization.csv: one per table of counters, or one that says why there is none."""
    problems = "; ".join(opened.source.problems)
    counted = [
        {
            "micro_batch_size": trial.micro_batch_size,
            **row,
            "reason": "; ".join(filter(None, [problems, row["reason"]])),
        }
        for row in (utilization_row(counters, opened.window_ns) for counters in opened.source.counters)
    ]
    return counted or [{"reason": reason or problems}]


def _order(row: dict[str, Any]) -> tuple[Any, ...]:
    """Model and device count together, there by batch size and rank; unknown values first."""
    words = tuple(str(row.get(name) or "") for name in ("preset", "precision"))
    numbers = ("seq_len", "world_size", "micro_batch_size", "rank")
    return (*words, *(int(row[name]) if row.get(name) is not None else -1 for name in numbers), row["trial_id"])
