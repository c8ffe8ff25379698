"""Reads a run directory into memory; the metrics of each trial are computed from its raw records."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from analysis.metrics.communication.collectives import summarize_collective
from analysis.metrics.speed_of_light import summarize_components
from analysis.metrics.throughput import combine, summarize
from common.errors import Code, InputError, UsageError
from records.run import RunDirectory, TrialDirectory
from records.schema import OPTION_COLUMNS, SHAPE_COLUMNS
from records.trial import Trial

# Kinds of trials that are no series of steps alone.
TAKEN_APART = ("comm", "components")


def summarize_trial(trial: Trial, directory: TrialDirectory, price_per_hour: float | None = None) -> dict[str, Any]:
    """Return the metrics of a trial that ended well; a kind of TAKEN_APART has its own. Raises SchemaError."""
    if trial.kind == "comm":
        return summarize_collective(trial, directory)
    if trial.kind == "components":
        return summarize_components(trial, directory, price_per_hour)
    steps = {rank: directory.read_steps(rank) for rank in directory.ranks()}
    return summarize(
        trial, steps, directory.read_ranks(), directory.read_environment(), directory.read_telemetry(), price_per_hour
    )


# Fields that identify a measurement; together with CIRCUMSTANCES they are equal in all its rounds.
CONFIGURATION = (*SHAPE_COLUMNS, "nodes", "device", *OPTION_COLUMNS)

# What else has to agree before two trials are one measurement: a folder may hold several sweeps.
CIRCUMSTANCES = (
    "kind",
    "data",
    "data_fingerprint",
    "max_predictions",
    "padding",
    "vocab_size",
    "dropout",
    "seed",
    "threads_per_rank",
    "start_iteration",
    "stop_iteration",
    "command",
)

DAMAGED = "damaged"
"""Status of a trial whose records cannot be read: how it ended is not known."""

Key = tuple[Any, ...]


def circumstances(row: Mapping[str, Any]) -> Key:
    """Return CIRCUMSTANCES' values of a row, data by what they are: where they lie says nothing."""
    values = {name: row.get(name) for name in CIRCUMSTANCES}
    source = str(values["data"] or "")
    # Folders are named alike on every machine; their content is known only where it was fingerprinted.
    name = source if source.startswith("synthetic") else PurePath(source).name
    values["data"] = "" if values["data_fingerprint"] else name
    return tuple(values.values())


def measurement(row: Mapping[str, Any]) -> Key:
    """Return the values that all rounds of one measurement share: those of CIRCUMSTANCES and CONFIGURATION."""
    return (*circumstances(row), *(row.get(name) for name in CONFIGURATION))


@dataclass(frozen=True, slots=True)
class LoadedTrial:
    """One trial of a run, read whole."""

    trial: Trial
    directory: TrialDirectory
    row: Mapping[str, Any]
    """Every field of the trial, status, reason, and what throughput.summarize returns (None where it failed)."""
    steps: Sequence[Mapping[str, Any]]
    """All steps, warm-up included, as throughput.combine makes them."""
    environment: Mapping[str, Any]
    ranks: Mapping[int, Mapping[str, Any]]

    @property
    def ok(self) -> bool:
        """Whether it ended well and has a step time."""
        return self.row["status"] == "ok" and self.row.get("step_time_ms") is not None

    @property
    def made_up_like_folder(self) -> bool:
        """Whether its synthetic batches have the lengths of a folder's samples, for comparison with that folder."""
        return self.trial.data.startswith("synthetic:") and bool(self.trial.data_fingerprint)

    @property
    def _window(self) -> list[Mapping[str, Any]]:
        start, stop = self.row.get("window_start"), self.row.get("window_stop")
        return [row for row in self.steps if start is not None and stop is not None and start <= row["step"] < stop]

    def window_times(self) -> np.ndarray:
        """Step times in ms of the measured window."""
        return np.array([row["step_time_ms"] for row in self._window])

    def window_work(self) -> np.ndarray:
        """Samples of all ranks (of the global batch where steps do not show them), and step times in ms, [2, steps]."""
        seen = self.row.get("samples_per_step") is not None
        samples = [float(row["samples"] if seen else self.trial.global_batch_size) for row in self._window]
        return np.array([samples, self.window_times()])

    def key(self, without: Sequence[str] = ()) -> Key:
        """CONFIGURATION's values, those in `without` left out."""
        return tuple(self.row[name] for name in CONFIGURATION if name not in without)


def script_contents(trials: Sequence[LoadedTrial]) -> list[str]:
    """Return the contents that the scripts of the trials had, each once: the first digits of their hashes."""
    hashes = (trial.environment.get("script_sha256") for trial in trials)
    return list(dict.fromkeys(str(digest)[:8] for digest in hashes if digest))


class LoadedRun(list[LoadedTrial]):
    """The trials of a run that can be read, by name."""

    def __init__(self, trials: Iterable[LoadedTrial], problems: Sequence[str]) -> None:
        """Hold the trials, and per trial whose trial.json is damaged: which, why, and what to do."""
        super().__init__(trials)
        self.problems = tuple(problems)


def load_run(run: RunDirectory, price_per_hour: float | None = None) -> LoadedRun:
    """Return every trial of a run, by name.

    A trial without result.json counts as interrupted; one with damaged records keeps its row, as DAMAGED with the
    reason; one whose trial.json is damaged is left out and named in `problems`.

    Raises:
        InputError: no run directory, or one without trials that can be read.
        SchemaError: a record was written by another version of bertbench (record-version).
    """
    trials: list[LoadedTrial] = []
    problems: list[str] = []
    code: Code | None = None
    for directory in run.require().trials():
        try:
            trial = directory.read_trial()
        except InputError as error:
            if error.code == "record-version":
                raise
            problems.append(f"skipped trial {directory.path.name}, its trial.json is damaged: {error}")
            code = code or error.code
            continue
        trials.append(_load_trial(trial, directory, price_per_hour))
    if code is not None and not trials:
        raise InputError(code, f"no trial of {run.path} can be read: {problems[0]}")
    return LoadedRun(trials, problems)


def _load_trial(trial: Trial, directory: TrialDirectory, price_per_hour: float | None) -> LoadedTrial:
    row = {**trial.row(), "trial_id": trial.trial_id}
    steps: dict[int, list[dict[str, Any]]] = {}
    ranks: dict[int, dict[str, Any]] = {}
    environment: dict[str, Any] = {}
    try:
        result = directory.read_result()
        if result is None:
            result = {"status": "interrupted", "reason": "no result.json: the trial was stopped, or is still running"}
        steps = {rank: directory.read_steps(rank) for rank in directory.ranks()}
        ranks, environment = directory.read_ranks(), directory.read_environment()
        row |= {name: result.get(name) for name in ("status", "reason", "wall_seconds")}
        # CPU threads of all ranks together; None where a rank did not write its number down.
        threads = [record["threads"] for record in ranks.values() if isinstance(record.get("threads"), int)]
        row["total_threads"] = sum(threads) if len(threads) == trial.ranks else None
        if row["status"] == "ok" and trial.kind in TAKEN_APART:
            row |= summarize_trial(trial, directory, price_per_hour)
        elif row["status"] == "ok":
            row |= summarize(trial, steps, ranks, environment, directory.read_telemetry(), price_per_hour)
        if trial.kind == "profile":
            row["profile"] = result.get("profile")
    except (InputError, UsageError, OSError, ValueError, TypeError, LookupError) as error:
        if isinstance(error, InputError) and error.code == "record-version":
            raise
        row |= {"status": DAMAGED, "reason": str(error)}
    return LoadedTrial(trial, directory, row, combine(steps), environment, ranks)
