"""The peak memory that a trial is expected to need, stored with the run before it runs.

`bertbench history --predictions` compares it with what the trial needed.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.implementations import OURS
from bert.model.memory import Memory, predict_memory
from common.errors import InputError, StorageError
from records.prediction import Origin, Prediction, add_predictions, configuration_of, machine_of
from records.run import RunDirectory
from records.trial import Trial

_KINDS = ("throughput", "probe")
"""Trials whose peak memory is that of the training alone."""
_FROM_SHAPES = "model states, activations and workspace from shapes (bert/model/memory.py)"

_FROM_MODULE = "model states, and tensors saved by a step of the module on fake tensors"


def predicted_bytes(trial: Trial) -> int:
    """Return the peak memory of a rank of a trial, before anything is measured."""
    return predicted_memory(trial).total


def predicted_memory(trial: Trial) -> Memory:
    """Return that memory by purpose, from the shapes of a preset or from the module of a given model."""
    if trial.model:
        from bench.implementations.given import given_memory

        return given_memory(trial)
    return predict_memory(trial, trial.device)


def store_memory(run: RunDirectory, trial: Trial, environment: Mapping[str, Any], note: Callable[[str], None]) -> None:
    """Store the predicted peak memory of a trial of bertbench's own model that is about to run.

    Args:
        run: the run directory.
        trial: nothing is stored for other implementations, profiles, and given models.
        environment: env.json of the trial.
        note: called with a sentence if the prediction cannot be stored.
    """
    if trial.kind in _KINDS and trial.implementation == OURS and not trial.model:
        _store(run, [_prediction("memory", trial, predicted_bytes(trial), environment, _FROM_SHAPES)], note)


def store_given_memory(
    run: RunDirectory, trial: Trial, count: int, environment: Mapping[str, Any], note: Callable[[str], None]
) -> None:
    """Store the peak memory in bytes that a search has predicted of a trial of a given model, from a step on fake
    tensors: `store_memory` leaves it out, because building the model for each trial of a sweep would take too long.
    """
    _store(run, [_prediction("memory", trial, count, environment, _FROM_MODULE)], note)


def store_corrected_memory(
    run: RunDirectory,
    trial: Trial,
    expected_bytes: int,
    origins: Sequence[Origin],
    environment: Mapping[str, Any],
    note: Callable[[str], None],
) -> None:
    """Store the peak memory of a trial that a search expects from the trials it has measured.

    Args:
        run: the run directory.
        trial: what the search is about to measure.
        expected_bytes: per rank.
        origins: trials that the search has measured.
        environment: env.json of the trial.
        note: called with a sentence if the prediction cannot be stored.
    """
    basis = "a line through measured trials of other batch sizes, or shapes plus the error for one of them"
    _store(run, [_prediction("memory_corrected", trial, expected_bytes, environment, basis, origins)], note)


def _prediction(
    kind: str, trial: Trial, count: int, environment: Mapping[str, Any], basis: str, origins: Sequence[Origin] = ()
) -> Prediction:
    return Prediction(
        kind=kind,
        quantity="peak_memory_bytes",
        value=float(count),
        trial=configuration_of(trial),
        machine=machine_of(environment),
        origins=tuple(origins),
        basis=basis,
    )


def _store(run: RunDirectory, predictions: Sequence[Prediction], note: Callable[[str], None]) -> None:
    try:
        add_predictions(run, predictions)
    except (StorageError, InputError) as error:
        note(f"predictions were not stored: {error}")
