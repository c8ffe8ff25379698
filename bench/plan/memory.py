"""The peak memory that a trial is expected to need, before it runs."""

from bert.model.memory import Memory, predict_memory
from records.trial import Trial


def predicted_bytes(trial: Trial) -> int | None:
    """Return the peak memory of a rank of a trial, before anything is measured; None for a given model."""
    memory = predicted_memory(trial)
    return None if memory is None else memory.total


def predicted_memory(trial: Trial) -> Memory | None:
    """Return that memory by purpose, from the shapes of a preset; None for a given model."""
    return None if trial.model else predict_memory(trial, trial.device)
