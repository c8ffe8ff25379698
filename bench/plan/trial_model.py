"""The shape of the model that a trial trains. Imports no torch."""

from bert.model.config import ModelConfig, preset, shape_from_words
from records.trial import Trial


def model_config(trial: Trial) -> ModelConfig:
    """Return shape, vocabulary and dropout; sequences longer than it has positions for get them. Raises UsageError."""
    config = shape_from_words(trial.shape) if trial.shape else preset(trial.preset)
    return config.replace(
        vocab_size=trial.vocab_size,
        hidden_dropout=trial.dropout,
        attention_dropout=trial.dropout,
        max_positions=max(config.max_positions, trial.seq_len),
    )
