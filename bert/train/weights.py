"""Load weights and moments into the model of a run, from its checkpoint or from weights of any form.

The encoder must be complete and of the run's shape. Missing heads keep their initial values, and so does a classifier
if that of the checkpoint has another number of labels or no pooler; what was not taken on either side is reported.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from bert.checkpoints.hugging_face import CLASSIFIER, labels_of, match_hugging_face_state, part_of, part_of_ours
from bert.checkpoints.model_config import read_config
from bert.checkpoints.ours import load_model
from bert.checkpoints.read import OURS, Found, find_checkpoint, read_weights
from bert.checkpoints.tensor_files import read_tensors
from bert.model.config import ModelConfig
from bert.model.heads import MaskedWordHead
from bert.train.resume import Initial
from common.errors import InputError

_ENCODER = "encoder."
_POOLER = "encoder.pooler."
# Of weights that have no place: those of a body that is larger than this run's.
_BODY = re.compile(r"(^|[./])(embeddings[./]|layers?\.\d+\.|layer_\d+/)")
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
    if found.format == OURS and whole:
        load_weights(found.path, model, config)
        return NotTaken()
    values, left = _ours(found, model, config) if found.format == OURS else _foreign(found, model, config)
    with torch.no_grad():
        model.load_state_dict(values, strict=False)
        for part in model.modules():
            if isinstance(part, MaskedWordHead):
                part.reset_padding()
    return left


def _ours(found: Found, model: nn.Module, config: ModelConfig) -> tuple[dict[str, Tensor], NotTaken]:
    saved, state = load_model(found.path)
    check_same_shape(saved, config, found.path)
    bare = not any(name.startswith(_ENCODER) for name in state)
    names = {(_ENCODER if bare else "") + name: name for name in state}
    wanted = model.state_dict()
    other = _other_classifier({name: state[original] for name, original in names.items()}, wanted, part_of_ours)
    names = {name: original for name, original in names.items() if name not in other}
    missing = sorted(wanted.keys() - names.keys())
    lacking = [name for name in missing if name.startswith(_ENCODER) and not name.startswith(_POOLER)]
    if lacking:
        raise InputError(
            "weights-mismatch",
            f"{found.path} lacks {len(lacking)} encoder tensors, {lacking[0]} first: give a complete model",
        )
    values = {
        name: fit_vocabulary(state[original], wanted[name], config, f"{original} of {found.path}")
        for name, original in names.items()
        if name in wanted
    }
    unused = sorted([names[name] for name in names.keys() - wanted.keys()] + other)
    return values, NotTaken(tuple(missing), tuple(unused))


def _foreign(found: Found, model: nn.Module, config: ModelConfig) -> tuple[dict[str, Tensor], NotTaken]:
    if found.config is not None:
        check_same_shape(unpadded(read_config(found.config), config), config, found.path)
    weights = read_weights(found)
    try:
        other = _other_classifier(weights.tensors, model.state_dict(), part_of)
        fitting = {name: value for name, value in weights.tensors.items() if name not in other}
        values, report = match_hugging_face_state(model, fitting)
    except InputError as error:
        raise InputError(error.code, f"{found.path}: {error}") from error
    unused = (*report.unexpected, *report.incomplete, *other)
    unused = tuple(sorted(weights.originals.get(name, name) for name in unused))
    body = [name for name in unused if _BODY.search(name)]
    if body:
        raise InputError(
            "weights-mismatch",
            f"{found.path} holds {len(body)} encoder weights too many, {body[0]} first: use its model shape",
        )
    return values, NotTaken(report.missing, unused)


def _other_classifier(
    given: Mapping[str, Tensor], wanted: Mapping[str, Tensor], part: Callable[[str], str]
) -> list[str]:
    """Names of the weights of a classifier that is none of this run's: of other labels, or without the pooler."""
    labels = labels_of({name: value.shape for name, value in wanted.items()}, part_of_ours)
    found = labels_of({name: value.shape for name, value in given.items()}, part)
    pooled = any(part(name) == "pooler" for name in given)
    same = labels is None or found is None or (labels == found and pooled)
    return [] if same else [name for name in given if part(name) == CLASSIFIER]


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


def load_weights(folder: Path, model: nn.Module, config: ModelConfig) -> None:
    """Copy saved weights into a model of the same shape; the vocabulary may be padded otherwise."""
    saved, state = load_model(folder)
    check_same_shape(saved, config, folder)
    expected = model.state_dict()
    _check_names(state, expected, f"the weights in {folder}", "tensors", "give a pretraining checkpoint with all heads")
    fitted = {
        name: fit_vocabulary(value, expected[name], config, f"{name} of {folder}") for name, value in state.items()
    }
    with torch.no_grad():
        model.load_state_dict(fitted)


def _check_names(saved: Mapping[str, object], own: Mapping[str, object], where: str, what: str, remedy: str) -> None:
    differ = sorted(saved.keys() ^ own.keys())
    if differ:
        raise InputError(
            "weights-mismatch",
            f"{where} and the model of this run differ in {len(differ)} {what}, {differ[0]} first: {remedy}",
        )


def fit_vocabulary(saved: Tensor, current: Tensor, config: ModelConfig, what: str) -> Tensor:
    """Return `saved` with the padding rows of `current` where only their number differs. Raises InputError."""
    if saved.shape == current.shape:
        return saved
    rows = config.vocab_size
    of_vocabulary = current.ndim > 0 and current.shape[0] == config.padded_vocab_size and saved.ndim == current.ndim
    if not of_vocabulary or saved.shape[1:] != current.shape[1:] or saved.shape[0] < rows:
        raise InputError(
            "weights-mismatch", f"{what} has shape {list(saved.shape)}, but this run needs {list(current.shape)}"
        )
    return torch.cat([saved[:rows].to(current), current[rows:]])


def load_moments(path: Path, shapes: Mapping[str, torch.Size], config: ModelConfig) -> dict[str, dict[str, Tensor]]:
    """Return the optimizer's state of a file, in which it is named `<parameter>.<key>`, by parameter and key, for a
    model whose vocabulary may be padded otherwise.

    Args:
        path: the file.
        shapes: of the parameters of this run's model.
        config: shape of the model.
    """
    saved: dict[str, dict[str, Tensor]] = {}
    for full_name, value in read_tensors(path).items():
        name, _, key = full_name.rpartition(".")
        saved.setdefault(name, {})[key] = value
    _check_names(saved, shapes, str(path), "parameters", "use the optimizer and preset it was saved with")

    def fitted(name: str, value: Tensor) -> Tensor:
        return value if value.ndim == 0 else fit_vocabulary(value, zeros[name], config, f"{name} of {path}")

    zeros = {name: torch.zeros((), dtype=torch.float32).expand(shape) for name, shape in shapes.items()}
    return {name: {key: fitted(name, value) for key, value in states.items()} for name, states in saved.items()}
