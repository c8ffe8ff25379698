"""The peak memory that a trial is expected to need, before it runs."""

from bert.model.memory import Memory, predict_memory
from records.trial import Trial


def predicted_bytes(trial: Trial) -> int:
    """Return the peak memory of a rank of a trial, before anything is measured."""
    return predicted_memory(trial).total


def predicted_memory(trial: Trial) -> Memory:
    """Return that memory by purpose, from the shapes of a preset or from the module of a given model."""
    if trial.model:
        from bench.implementations.given import given_memory

        return given_memory(trial)
    return predict_memory(trial, trial.device)
