"""Models of transformers' that checkpoints are converted from and to, and the models of ours that take their weights.

A new head gets its names in bert.checkpoints.hugging_face and a row here.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

import torch
from torch import nn

from bert.model.config import ModelConfig
from bert.model.models import BertForPretraining, BertForQuestionAnswering, BertForSequenceClassification

_POOLER = "pooler"
CLASSIFIER = "classifier"
"""Head whose size is in no configuration: as many rows as there are labels."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model of transformers', known by what it has beside embeddings and layers."""

    name: str
    parts: frozenset[str]
    """Names of our heads, and "pooler"."""
    model: Callable[[ModelConfig, int], nn.Module]
    """Our model that has a place for all of them, made of a shape and a number of labels."""
    segments: bool = True
    """Whether it has segment embeddings, which DistilBERT has not."""


def _pretraining(config: ModelConfig, labels: int) -> nn.Module:
    return BertForPretraining(config)


def _questions(config: ModelConfig, labels: int) -> nn.Module:
    return BertForQuestionAnswering(config)


# Of two that have a head in common, or as many parts, the first is taken.
_ARCHITECTURES = (
    Architecture("BertModel", frozenset({_POOLER}), _pretraining),
    Architecture("BertForMaskedLM", frozenset({"masked_words"}), _pretraining),
    Architecture("BertForPreTraining", frozenset({_POOLER, "masked_words", "next_sentence"}), _pretraining),
    Architecture("BertForQuestionAnswering", frozenset({"answer_span"}), _questions),
    Architecture("BertForSequenceClassification", frozenset({_POOLER, CLASSIFIER}), BertForSequenceClassification),
    Architecture("DistilBertModel", frozenset(), _pretraining, segments=False),
    Architecture("DistilBertForMaskedLM", frozenset({"masked_words"}), _pretraining, segments=False),
    Architecture("DistilBertForQuestionAnswering", frozenset({"answer_span"}), _questions, segments=False),
)


def our_model(config: ModelConfig, parts: Set[str], labels: int = 1) -> nn.Module:
    """Return the model of ours for weights with these parts, with names and shapes and no memory.

    A classifier has so many `labels`; without the pooler it is another model's head (one of tokens, DistilBERT's).
    Weights without any known head get the pretraining model, which has a place for the pooler too.
    """
    heads = parts - {_POOLER} if _POOLER in parts else parts - {CLASSIFIER}
    fitting = (one for one in _ARCHITECTURES if one.parts & heads)
    with torch.device("meta"):
        return next(fitting, _ARCHITECTURES[0]).model(config, labels)


def architecture_of(config: ModelConfig, parts: Set[str]) -> Architecture:
    """Return the smallest model of transformers' that has these parts of one of our models.

    Parts for which no DistilBERT has a place do not count where the shape is DistilBERT's, which is without segments.
    """
    candidates = [one for one in _ARCHITECTURES if one.segments == (config.type_vocab_size > 0)]
    placed = parts & frozenset[str]().union(*(one.parts for one in candidates))
    return min((one for one in candidates if one.parts >= placed), key=lambda one: len(one.parts))


def labels_of(shapes: Mapping[str, Sequence[int]], part: Callable[[str], str]) -> int | None:
    """Return the number of labels of the classifier among weights; None where there is none.

    Args:
        shapes: of the weights by name.
        part: from a name to a head of ours: bert.checkpoints.hugging_face.part_of, or part_of_ours.
    """
    weights = (shape for name, shape in shapes.items() if part(name) == CLASSIFIER and len(shape) == 2)
    return next((int(shape[0]) for shape in weights), None)


def part_of_ours(name: str) -> str:
    """Return the head, or "pooler", that a parameter of our models is of; nothing for embeddings and layers."""
    first, _, rest = name.partition(".")
    if first == "encoder":
        return _POOLER if rest.startswith(f"{_POOLER}.") else ""
    return first
