"""Reads a run directory into memory, each trial with its metrics computed afresh from its raw records."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.metrics.ranks import combine
from analysis.metrics.throughput import summarize
from analysis.records import RunDirectory, Trial, TrialDirectory
from common.errors import InputError, SchemaError

# What makes two trials the same measurement; rounds repeat it. The rest of a Trial is listed as a difference.
CONFIGURATION = (
    "task",
    "implementation",
    "strategy",
    "preset",
    "precision",
    "seq_len",
    "micro_batch_size",
    "grad_accum_steps",
    "world_size",
    "device",
)

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class LoadedTrial:
    """One trial of a run, read whole."""

    trial: Trial
    """What ran."""
    directory: TrialDirectory
    """Where it was read from."""
    row: Mapping[str, Any]
    """Every field of the trial, status, reason, and what throughput.summarize found (None where it failed)."""
    steps: Sequence[Mapping[str, Any]]
    """All steps, warm-up included, as ranks.combine makes them."""
    environment: Mapping[str, Any]
    """env.json."""
    ranks: Mapping[int, Mapping[str, Any]]
    """Rank records."""

    @property
    def ok(self) -> bool:
        """Whether it ended well and has a step time."""
        return self.row["status"] == "ok" and self.row.get("step_time_ms") is not None

    def window_times(self) -> np.ndarray:
        """Step times in ms of the measured window."""
        start, stop = self.row.get("window_start"), self.row.get("window_stop")
        if start is None or stop is None:
            return np.array([])
        return np.array([row["step_time_ms"] for row in self.steps if start <= row["step"] < stop])

    def key(self, without: Sequence[str] = ()) -> Key:
        """CONFIGURATION's values, those named in `without` left out."""
        return tuple(getattr(self.trial, name) for name in CONFIGURATION if name not in without)


def load_run(run: RunDirectory, price_per_hour: float | None = None) -> list[LoadedTrial]:
    """Return every trial of a run, by name.

    A trial without result.json counts as interrupted; one with damaged records keeps its row and names the damage.

    Raises:
        InputError: no run directory, or one without trials.
        SchemaError: a trial.json is damaged or was written by a newer bertbench.
        UsageError: price_per_hour is not above 0.
    """
    return [_load_trial(directory, price_per_hour) for directory in run.require().trials()]


def _load_trial(directory: TrialDirectory, price_per_hour: float | None) -> LoadedTrial:
    trial = directory.read_trial()
    base = {**dataclasses.asdict(trial), "trial_id": trial.trial_id}
    try:
        result = directory.read_result()
        steps = {rank: directory.read_steps(rank) for rank in directory.ranks()}
        ranks = directory.read_ranks()
        environment = directory.read_environment()
        telemetry = directory.read_telemetry()
    except (InputError, OSError, ValueError) as error:
        if isinstance(error, SchemaError) and "upgrade bertbench" in str(error):
            raise
        return LoadedTrial(trial, directory, {**base, "status": "crashed", "reason": str(error)}, [], {}, {})
    if result is None:
        result = {"status": "interrupted", "reason": "no result.json: it was ended, or is still running"}
    row = {**base, "status": result.get("status"), "reason": result.get("reason")}
    row["wall_seconds"] = result.get("wall_seconds")
    if row["status"] == "ok":
        row |= summarize(trial, steps, ranks, environment, telemetry, price_per_hour)
    return LoadedTrial(trial, directory, row, combine(steps), environment, ranks)
