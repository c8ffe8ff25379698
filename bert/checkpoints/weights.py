"""Weights under our names, whatever form they had on the disk, and how they fit into a model."""

from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bert.model.config import ModelConfig
from bert.model.encoder import BertEncoder
from bert.model.heads import PADDING_BIAS
from common.errors import InputError

ENCODER = "encoder."
POOLER = "pooler"
CLASSIFIER = "classifier"
"""Head whose size is in no configuration: as many rows as there are labels."""
WORD = "encoder.embeddings.word.weight"
PREDICTION_BIAS = "masked_words.bias"
PADDING = {WORD: 0.0, PREDICTION_BIAS: PADDING_BIAS}
"""Parameters with a row for each word piece, and what their padding rows hold."""


@dataclass(frozen=True, slots=True)
class Weights:
    """What a checkpoint holds."""

    tensors: Mapping[str, Tensor]
    """By the names of our models; those of a body that no model of ours has begin with "encoder." too."""
    sources: Mapping[str, tuple[str, ...]]
    """Those names -> the names in the file."""
    unexpected: tuple[str, ...] = ()
    """Names in the file that no model of ours has a place for."""
    incomplete: tuple[str, ...] = ()
    """Names in the file that were left out because another part of the same parameter of ours is missing: query, key
    and value are one."""
    skipped: tuple[str, ...] = ()
    """Names in the file that are not weights: an optimizer's, a schedule's, text, position numbers."""

    @property
    def parts(self) -> Set[str]:
        """Heads they have weights of, and "pooler"."""
        return {part_of(name) for name in self.tensors} - {""}

    @property
    def labels(self) -> int | None:
        """Rows of the classifier; None without one."""
        classifier = self.tensors.get(f"{CLASSIFIER}.weight")
        return None if classifier is None or classifier.dim() != 2 else len(classifier)

    @property
    def read(self) -> int:
        """Number of tensors of the file that they were made of, or that have no place."""
        return sum(len(self.sources[name]) for name in self.tensors) + len(self.unexpected) + len(self.incomplete)

    def without(self, parts: Collection[str]) -> "Weights":
        """Return them without some heads, or the pooler, whose names in the file are then unexpected."""
        names = [name for name in self.tensors if part_of(name) in parts]
        left_out = [source for name in names for source in self.sources[name]]
        tensors = {name: value for name, value in self.tensors.items() if name not in names}
        return replace(self, tensors=tensors, unexpected=(*self.unexpected, *left_out))


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Which weights were used, missing or left over."""

    missing: tuple[str, ...] = ()
    """Names of the model's parameters that the checkpoint lacks; they keep their values."""
    unexpected: tuple[str, ...] = ()
    """Names in the file that the model lacks."""
    used: tuple[str, ...] = ()
    """Names in the file that were used."""


def part_of(name: str) -> str:
    """Return the head, or "pooler", that a parameter of our models is of; nothing for embeddings and layers."""
    first, _, rest = name.partition(".")
    if first == "encoder":
        return POOLER if rest.startswith("pooler.") else ""
    return first


def parameters_of(model: nn.Module) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Return the shape and parameters of a model with an encoder; those of a bare encoder are named as in a model."""
    if isinstance(model, BertEncoder):
        return model.config, {ENCODER + name: value for name, value in model.named_parameters()}
    encoder = model.encoder
    assert isinstance(encoder, BertEncoder)
    return encoder.config, dict(model.named_parameters())


def fit(weights: Weights, model: nn.Module, where: object = "the checkpoint") -> tuple[dict[str, Tensor], LoadReport]:
    """Return weights of any vocabulary padding by the names of a model's parameters, in their types, and a report.

    The model, which may be on the device "meta", stays as it is. Raises InputError if encoder weights are missing or
    have no place, or a shape differs; `where` is what holds them.
    """
    config, parameters = parameters_of(model)
    values = {
        name: _fitted(name, weights.tensors[name], parameter, config, where)
        for name, parameter in parameters.items()
        if name in weights.tensors
    }
    missing = [name for name in parameters if name not in values]
    lacking = [name for name in missing if _is_body(name)]
    if lacking:
        held = _some([*weights.unexpected, *weights.tensors])
        raise InputError(
            "weights-mismatch",
            f"{where} lacks {len(lacking)} encoder parameters ({_some(lacking)}) and holds {held}: give the weights of "
            "a model of this shape",
        )
    surplus = [name for name in weights.tensors if name not in parameters]
    if body := [source for name in surplus if _is_body(name) for source in weights.sources[name]]:
        raise InputError(
            "weights-mismatch",
            f"{where} holds {len(body)} encoder weights too many ({_some(body)}): use its model shape, by --config",
        )
    unexpected = [source for name in surplus for source in weights.sources[name]]
    used = [source for name in values for source in weights.sources[name]]
    return values, LoadReport(
        tuple(sorted(missing)), tuple(sorted([*weights.unexpected, *unexpected])), tuple(sorted(used))
    )


def fit_vocabulary(name: str, value: Tensor, shape: torch.Size, config: ModelConfig, padding: float) -> Tensor:
    """Return a value with as many rows as `shape` has, if it is of word pieces; those added are `padding`."""
    rows = config.vocab_size
    if name not in PADDING or value.dim() == 0 or len(value) < rows:
        return value
    return torch.cat([value[:rows], value.new_full((shape[0] - rows, *value.shape[1:]), padding)])


def _fitted(name: str, value: Tensor, parameter: Tensor, config: ModelConfig, where: object) -> Tensor:
    if not value.is_floating_point():
        raise InputError("model-unsupported", f"{name} of {where} is {value.dtype}: convert floating-point weights")
    fitted = value
    if name in PADDING and len(value) in (config.vocab_size, config.padded_vocab_size):
        fitted = fit_vocabulary(name, value, parameter.shape, config, PADDING[name])
    if fitted.shape != parameter.shape:
        raise InputError(
            "weights-mismatch",
            f"{name} of {where} has shape {list(value.shape)}, but the model needs {list(parameter.shape)}: use the "
            "preset or configuration it was made with",
        )
    return fitted.to(parameter.dtype)


def _is_body(name: str) -> bool:
    return name.startswith(ENCODER) and part_of(name) != POOLER


def _some(names: list[str]) -> str:
    return (", ".join(names[:3]) or "nothing") + (", ..." if len(names) > 3 else "")
