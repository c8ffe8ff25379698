"""The weights that a new run begins from: a checkpoint of ours, or anything that `bertbench convert` reads.

The encoder has to be complete and of the run's shape. Heads that are absent keep their fresh values, and so does a
classifier where that of the checkpoint has another number of labels or follows no pooler; what was not taken on either
side is said.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bert.checkpoints.hugging_face import CLASSIFIER, labels_of, match_hugging_face_state, part_of, part_of_ours
from bert.checkpoints.model_config import read_config
from bert.checkpoints.ours import load_model
from bert.checkpoints.read import OURS, Found, find_checkpoint, read_weights
from bert.model.config import ModelConfig
from bert.model.heads import MaskedWordHead
from bert.train.resume import Initial
from bert.train.tensors import check_same_shape, fit_vocabulary, load_weights
from common.errors import InputError

_ENCODER = "encoder."
_POOLER = "encoder.pooler."
# Of weights that have no place: those of a body that is larger than this run's.
_BODY = re.compile(r"(^|[./])(embeddings[./]|layers?\.\d+\.|layer_\d+/)")


@dataclass(frozen=True, slots=True)
class NotTaken:
    """What was not taken from a checkpoint."""

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
        whole: whether a checkpoint of ours has to hold all weights of the model and no others.

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
            f"the weights in {found.path} lack {len(lacking)} of the encoder, {lacking[0]} first: give a whole model",
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
            f"{found.path} holds {len(body)} weights of a body that this run's model has not, {body[0]} first: begin "
            "with the shape these weights were made with",
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
