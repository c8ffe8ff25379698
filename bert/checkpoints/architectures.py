"""Models of transformers' that checkpoints are converted from and to, and the models of ours that take their weights.

A new head gets its names in bert.convert and a row here.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass

import torch
from torch import nn

from bert.config import ModelConfig
from bert.model import BertForPretraining, BertForQuestionAnswering

_POOLER = "pooler"


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model of transformers', known by what it has beside embeddings and layers."""

    name: str
    """Its class."""
    parts: frozenset[str]
    """Names of our heads, and "pooler"."""
    model: Callable[[ModelConfig], nn.Module]
    """Our model that has a place for all of them."""
    segments: bool = True
    """Whether it has segment embeddings, which DistilBERT has not."""


# Of two that have a head in common, or as many parts, the first is taken.
_ARCHITECTURES = (
    Architecture("BertModel", frozenset({_POOLER}), BertForPretraining),
    Architecture("BertForMaskedLM", frozenset({"masked_words"}), BertForPretraining),
    Architecture("BertForPreTraining", frozenset({_POOLER, "masked_words", "next_sentence"}), BertForPretraining),
    Architecture("BertForQuestionAnswering", frozenset({"answer_span"}), BertForQuestionAnswering),
    Architecture("DistilBertModel", frozenset(), BertForPretraining, segments=False),
    Architecture("DistilBertForMaskedLM", frozenset({"masked_words"}), BertForPretraining, segments=False),
    Architecture(
        "DistilBertForQuestionAnswering", frozenset({"answer_span"}), BertForQuestionAnswering, segments=False
    ),
)


def our_model(config: ModelConfig, parts: Set[str]) -> nn.Module:
    """Return the model of ours for weights with these parts, with names and shapes and no memory.

    Weights without any known head get the pretraining model, which has a place for the pooler too.
    """
    heads = parts - {_POOLER}
    fitting = (one for one in _ARCHITECTURES if one.parts & heads)
    with torch.device("meta"):
        return next(fitting, _ARCHITECTURES[0]).model(config)


def architecture_of(config: ModelConfig, parts: Set[str]) -> Architecture:
    """Return the smallest model of transformers' that has these parts of one of our models.

    Parts for which no DistilBERT has a place do not count where the shape is DistilBERT's, which is without segments.
    """
    candidates = [one for one in _ARCHITECTURES if one.segments == (config.type_vocab_size > 0)]
    placed = parts & frozenset[str]().union(*(one.parts for one in candidates))
    return min((one for one in candidates if one.parts >= placed), key=lambda one: len(one.parts))


def part_of_ours(name: str) -> str:
    """Return the head, or "pooler", that a parameter of our models is of; nothing for embeddings and layers."""
    first, _, rest = name.partition(".")
    if first == "encoder":
        return _POOLER if rest.startswith(f"{_POOLER}.") else ""
    return first
