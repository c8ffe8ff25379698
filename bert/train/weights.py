"""Load weights and moments into the model of a run, from its checkpoint or from weights of any form.

The encoder must be complete and of the run's shape. Missing heads keep their initial values, and so does a classifier
if that of the checkpoint has another number of labels or no pooler; what was not taken on either side is reported.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from bert.checkpoints.model_config import read_config
from bert.checkpoints.read import OURS, Found, find_checkpoint, read_weights
from bert.checkpoints.tensor_files import read_tensors
from bert.checkpoints.weights import CLASSIFIER, POOLER, fit, fit_vocabulary
from bert.model.config import ModelConfig
from bert.train.resume import Initial
from common.errors import InputError

# What a model computes with besides its weights; the shape is the rest.
_NOT_SHAPE = ("hidden_dropout", "attention_dropout", "initializer_range", "vocab_multiple")


@dataclass(frozen=True, slots=True)
class NotTaken:
    """Weights that do not match between a checkpoint and the model."""

    missing: tuple[str, ...] = ()
    """Names of this run's weights that the checkpoint lacks; they keep their fresh values."""
    unused: tuple[str, ...] = ()
    """Names in the checkpoint, as they are there, that this run's model has no place for."""


def load_initial(initial: Initial, model: nn.Module, config: ModelConfig, whole: bool) -> NotTaken:
    """Copy the weights of a checkpoint into a fresh model, which stays as it was where that fails.

    Args:
        initial: where they are.
        model: a model with an `encoder`, without what a strategy wraps around it.
        config: its shape.
        whole: whether a bertbench checkpoint has to hold all weights of the model and no others.

    Raises:
        InputError: a file is missing, damaged or holds no BERT, the encoder is not complete, or it has another shape or
            vocabulary; both sides are named.
    """
    found = initial.found or find_checkpoint(initial.weights)
    return _load(found, model, config, whole=whole and found.format == OURS)


def load_weights(folder: Path, model: nn.Module, config: ModelConfig) -> None:
    """Copy saved weights into a model of the same shape; the vocabulary may be padded otherwise."""
    _load(find_checkpoint(folder), model, config, whole=True)


def _load(found: Found, model: nn.Module, config: ModelConfig, whole: bool) -> NotTaken:
    if found.config is not None:
        saved = read_config(found.config)
        check_same_shape(saved if found.format == OURS else unpadded(saved, config), config, found.path)
    weights = read_weights(found)
    classifier = getattr(model, CLASSIFIER, None)
    if classifier is not None and (weights.labels != len(classifier.weight) or POOLER not in weights.parts):
        weights = weights.without({CLASSIFIER})
    values, report = fit(weights, model, found.path)
    left = NotTaken(report.missing, tuple(sorted([*report.unexpected, *weights.incomplete])))
    if whole and (left.missing or left.unused):
        names = [*left.missing, *left.unused]
        raise InputError(
            "weights-mismatch",
            f"{found.path} and the model of this run differ in {len(names)} tensors, {names[0]} first: give a "
            "pretraining checkpoint with all heads",
        )
    model.load_state_dict(values, strict=False)
    return left


def unpadded(saved: ModelConfig, wanted: ModelConfig) -> ModelConfig:
    """Take the padding out of a shape that counts it as words (NVIDIA's 30528), where it is the `wanted` one's."""
    if saved.vocab_size == wanted.replace(vocab_multiple=8).padded_vocab_size:
        return saved.replace(vocab_size=wanted.vocab_size)
    return saved


def check_same_shape(saved: ModelConfig, wanted: ModelConfig, where: Path) -> None:
    """Raise InputError if a saved model is not of the shape of this run's."""
    if saved.vocab_size != wanted.vocab_size:
        raise InputError(
            "vocabulary-mismatch",
            f"{where} has a vocabulary of {saved.vocab_size}, this run {wanted.vocab_size}: use the same",
        )
    names = [name for name in ModelConfig.__dataclass_fields__ if name not in _NOT_SHAPE]
    other = [name for name in names if getattr(saved, name) != getattr(wanted, name)]
    if other:
        theirs = ", ".join(f"{name}={getattr(saved, name)}" for name in other)
        ours = ", ".join(f"{name}={getattr(wanted, name)}" for name in other)
        raise InputError(
            "weights-mismatch", f"{where} has {theirs}, this run {ours}: use the preset it was trained with"
        )


def load_moments(path: Path, shapes: Mapping[str, torch.Size], config: ModelConfig) -> dict[str, dict[str, Tensor]]:
    """Return the optimizer's state of a file, in which it is named `<parameter>.<key>`, by parameter and key, for a
    model whose vocabulary may be padded otherwise.

    Args:
        path: the file.
        shapes: of the parameters of this run's model.
        config: shape of the model.
    """
    moments: dict[str, dict[str, Tensor]] = {}
    for full_name, value in read_tensors(path).items():
        name, _, key = full_name.rpartition(".")
        states = moments.setdefault(name, {})
        states[key] = fit_vocabulary(name, value, shapes[name], config, padding=0.0) if name in shapes else value
    differ = sorted(moments.keys() ^ shapes.keys())
    differ += [
        name
        for name, states in moments.items()
        for value in states.values()
        if value.shape not in ((), shapes.get(name))
    ]
    if differ:
        raise InputError(
            "weights-mismatch",
            f"{path} and the model of this run differ in {len(differ)} parameters, {differ[0]} first: use the "
            "optimizer and preset it was saved with",
        )
    return moments
