"""What the records of a finished trial come to, whatever its kind."""

from typing import Any

from analysis.metrics.communication.collectives import summarize_collective
from analysis.metrics.speed_of_light import summarize_components
from analysis.metrics.throughput import summarize
from records.run import TrialDirectory
from records.trial import Trial

# Kinds of trials that are no series of steps alone.
TAKEN_APART = ("comm", "components")


def summarize_trial(trial: Trial, directory: TrialDirectory, price_per_hour: float | None = None) -> dict[str, Any]:
    """Return the metrics of a trial that ended well; a kind of TAKEN_APART has its own.

    Raises:
        SchemaError: a record is damaged or missing.
        UsageError: the trial describes no test of a collective, or price_per_hour is not above 0.
    """
    if trial.kind == "comm":
        return summarize_collective(trial, directory)
    if trial.kind == "components":
        return summarize_components(trial, directory, price_per_hour)
    steps = {rank: directory.read_steps(rank) for rank in directory.ranks()}
    return summarize(
        trial, steps, directory.read_ranks(), directory.read_environment(), directory.read_telemetry(), price_per_hour
    )
