"""Store what commands predict with the run, for `bertbench history --predictions`."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.machine.devices import find_devices
from bench.plan.trials import expand
from common.errors import BertbenchError, InputError, StorageError
from records.prediction import Prediction, add_predictions
from records.run import RunDirectory
from records.trial import Trial

if TYPE_CHECKING:
    from analysis.diagnose.answer import Answer
    from analysis.load import LoadedTrial
    from analysis.metrics.communication.projection import Projected


def store_predictions(
    run: RunDirectory,
    trials: "Sequence[LoadedTrial]",
    said: "Sequence[Answer]",
    projected: "Sequence[Projected]" = (),
) -> list[str]:
    """Store the projections and floors of a run, and the gains that its answers expect.

    Args:
        run: the run directory.
        trials: all of the run.
        said: its answers.
        projected: what projection.projections returned.

    Returns:
        Why they could not be stored, as notes; a run directory may be one that nobody can write.
    """
    from analysis.diagnose.predictions import floors, projections, what_ifs

    return stored(run, [*projections(trials, projected), *floors(trials), *what_ifs(trials, said, configuration)])


def stored(run: RunDirectory, predictions: Sequence[Prediction]) -> list[str]:
    """Store predictions; return why that failed, as notes."""
    try:
        add_predictions(run, predictions)
    except (StorageError, InputError) as error:
        return [f"predictions were not stored: {error}"]
    return []


def configuration(command: str) -> Trial | None:
    """Return what a `bertbench throughput` command measures; None if it cannot run here, or measures several."""
    from bench.cli.throughput import read_words

    words = shlex.split(command)
    try:
        options = read_words(words[2:], "bertbench throughput")
        trials = expand(options.sweep, find_devices(options.device))
    except BertbenchError:
        return None
    first = [trial for trial in trials if trial.round == 0]
    return first[0] if len(first) == 1 else None
