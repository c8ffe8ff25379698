"""Weights under Hugging Face's names: BertForPreTraining, BertModel, BertForQuestionAnswering,
BertForSequenceClassification and DistilBERT's likes.

Theirs differ from ours in three ways: query, key and value are three matrices, the vocabulary is not padded, and the
tied decoder is listed a second time. A new head gets its names in the tables below.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Set
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bert.checkpoints.weights import (
    CLASSIFIER,
    ENCODER,
    PADDING,
    POOLER,
    LoadReport,
    Weights,
    fit,
    parameters_of,
)
from bert.model.config import ModelConfig
from bert.model.heads import BertForPretraining, BertForQuestionAnswering, BertForSequenceClassification
from common.errors import InputError

_WORD = "embeddings.word_embeddings.weight"
_DECODER_WEIGHT = "cls.predictions.decoder.weight"
_DECODER_BIAS = "cls.predictions.decoder.bias"
_PREDICTION_BIAS = "cls.predictions.bias"
# Second name of a weight -> the name it stands under here.
_TIED = {_DECODER_WEIGHT: _WORD, _DECODER_BIAS: _PREDICTION_BIAS}
_QKV = ("query", "key", "value")

# Ours -> theirs, up to the final .weight or .bias; "bert." of theirs comes in front.
_NAMES = {
    "encoder.embeddings.word": "embeddings.word_embeddings",
    "encoder.embeddings.position": "embeddings.position_embeddings",
    "encoder.embeddings.token_type": "embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "embeddings.LayerNorm",
    "encoder.pooler": "pooler.dense",
    "masked_words": "cls.predictions",
    "masked_words.dense": "cls.predictions.transform.dense",
    "masked_words.norm": "cls.predictions.transform.LayerNorm",
    "next_sentence": "cls.seq_relationship",
    "answer_span.output": "qa_outputs",
    "classifier": "classifier",
}
_LAYER = {
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}
_KINDS = ("weight", "bias")

# DistilBERT's names and BERT's for the same weights. The order matters for the way back: attention before the rest.
_DISTILBERT = (
    ("transformer.layer.", "encoder.layer."),
    (".attention.q_lin.", ".attention.self.query."),
    (".attention.k_lin.", ".attention.self.key."),
    (".attention.v_lin.", ".attention.self.value."),
    (".attention.out_lin.", ".attention.output.dense."),
    (".sa_layer_norm.", ".attention.output.LayerNorm."),
    (".ffn.lin1.", ".intermediate.dense."),
    (".ffn.lin2.", ".output.dense."),
    (".output_layer_norm.", ".output.LayerNorm."),
    ("vocab_transform.", "cls.predictions.transform.dense."),
    ("vocab_layer_norm.", "cls.predictions.transform.LayerNorm."),
    ("vocab_projector.", "cls.predictions.decoder."),
)


def from_hugging_face(
    state: Iterable[tuple[str, str, Tensor]], skipped: tuple[str, ...] = (), where: object = "the checkpoint"
) -> Weights:
    """Bring weights, by Hugging Face's names and those in the file, under our names; `skipped` are no weights.

    Names may have the prefix "bert." or "distilbert." or none, and the old "gamma" and "beta" or NVIDIA's "dense_act".
    Raises InputError.
    """
    given: dict[str, list[str]] = {}  # canonical name -> names in the file
    weights: dict[str, Tensor] = {}
    for name, original, value in state:
        canonical = _canonical_name(name)
        if canonical.endswith(("position_ids", "embeddings.token_type_ids")):
            skipped = (*skipped, original)
            continue
        if canonical in given:
            _refuse(where, f"{given[canonical][0]} and {original} are one weight: give one model")
        given[canonical], weights[canonical] = [original], value
    for second, first in _TIED.items():
        if second in weights:
            value = weights.pop(second)
            if not torch.equal(value, weights.setdefault(first, value)):
                _refuse(where, f"{second} differs from {first}: leave {second} out to use {first}")
            given[first] = [*given.get(first, []), *given[second]]
    layers = [int(match[1]) for name in weights if (match := re.match(r"encoder\.layer\.(\d{1,4})\.", name))]
    table = _names(1 + max(layers, default=-1))
    tensors: dict[str, Tensor] = {}
    sources: dict[str, tuple[str, ...]] = {}
    incomplete: list[str] = []
    for ours, names in table.items():
        present = [name for name in names if name in weights]
        if len(present) < len(names):
            incomplete += present
        elif len({weights[name].shape for name in names}) > 1:
            _refuse(where, f"query, key and value of {ours} have different shapes: give one model")
        else:
            tensors[ours] = torch.cat([weights[name] for name in names]) if names[1:] else weights[names[0]]
            sources[ours] = tuple(source for name in names for source in given[name])
    unexpected = weights.keys() - {name for names in table.values() for name in names}
    for name in sorted(name for name in unexpected if name.startswith(("embeddings.", "encoder."))):
        tensors[ENCODER + name], sources[ENCODER + name] = weights[name], tuple(given[name])
        unexpected.remove(name)
    return Weights(
        tensors,
        sources,
        unexpected=tuple(sorted(source for name in unexpected for source in given[name])),
        incomplete=tuple(sorted(source for name in incomplete for source in given[name])),
        skipped=tuple(sorted(skipped)),
    )


def _names(layers: int) -> dict[str, tuple[str, ...]]:
    """Return the names of our parameters, and those of the parameters of theirs that each is made of."""
    names: dict[str, tuple[str, ...]] = {}
    names |= {f"{ours}.{kind}": (f"{theirs}.{kind}",) for ours, theirs in _NAMES.items() for kind in _KINDS}
    for layer, kind in product(range(layers), _KINDS):
        ours, theirs = f"encoder.layers.{layer}", f"encoder.layer.{layer}"
        qkv = tuple(f"{theirs}.attention.self.{one}.{kind}" for one in _QKV)
        names |= {f"{ours}.{part}.{kind}": (f"{theirs}.{other}.{kind}",) for part, other in _LAYER.items()}
        names[f"{ours}.attention.qkv.{kind}"] = qkv
    return names


def _refuse(where: object, problem: str) -> None:
    raise InputError("weights-mismatch", f"{where}: {problem}")


def load_hugging_face_state(model: nn.Module, state_dict: Mapping[str, Tensor]) -> LoadReport:
    """Copy Hugging Face weights into a BertEncoder, or into a model whose `encoder` is one.

    Raises what `from_hugging_face` and `fit` raise; the model is then as it was.
    """
    values, report = fit(from_hugging_face((name, name, value) for name, value in state_dict.items()), model)
    _, parameters = parameters_of(model)
    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(value)
    return report


def to_hugging_face_state(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of a model's weights under the names of the class that has its head: BertModel for an encoder."""
    config, parameters = parameters_of(model)
    return to_hugging_face(parameters, config)


def to_hugging_face(values: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Return copies of parameters of ours, all or some, under Hugging Face's names, the vocabulary not padded.

    A model without segment embeddings gets DistilBERT's names for what DistilBERT has.
    """
    weights: dict[str, Tensor] = {}
    for name, names in _names(config.num_layers).items():
        if name in values:
            value = values[name][: config.vocab_size] if name in PADDING else values[name]
            weights.update(zip(names, (part.clone() for part in value.detach().chunk(len(names))), strict=True))
    if _PREDICTION_BIAS in weights:
        if _WORD in weights:
            weights[_DECODER_WEIGHT] = weights[_WORD]
        weights[_DECODER_BIAS] = weights[_PREDICTION_BIAS]
    if config.type_vocab_size == 0:
        weights.pop(_PREDICTION_BIAS, None)
    bare = all(name.startswith(ENCODER) for name in values)
    return {_published_name(name, config, bare=bare): value for name, value in weights.items()}


def _canonical_name(name: str) -> str:
    """Any of the accepted spellings -> BertModel's or, for heads, those of the model that has them."""
    # DistributedDataParallel and torch.compile put their own prefix in front.
    name = re.sub(r"^((module|_orig_mod)\.)*((bert|distilbert)\.)?", "", name)
    name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name)).replace(".dense_act.", ".dense.")
    for distilled, original in _DISTILBERT:
        if name.startswith(distilled) or (distilled.startswith(".") and distilled in name):
            name = name.replace(distilled, original, 1)
    return name


def _published_name(name: str, config: ModelConfig, *, bare: bool) -> str:
    if name.startswith(("qa_outputs.", "classifier.")):
        return name
    has_place = not name.startswith(("pooler.", "cls.seq_relationship."))
    if config.type_vocab_size == 0 and has_place:
        for distilled, original in _DISTILBERT:
            if original in name:
                name = name.replace(original, distilled, 1)
        return name if bare or name.startswith("vocab_") else f"distilbert.{name}"
    return name if bare or name.startswith("cls.") else f"bert.{name}"


# Models of transformers' and the heads of ours they have, with the pooler. Of two with as many, the first is taken.
_BERT = {
    "BertModel": {POOLER},
    "BertForMaskedLM": {"masked_words"},
    "BertForPreTraining": {POOLER, "masked_words", "next_sentence"},
    "BertForQuestionAnswering": {"answer_span"},
    "BertForSequenceClassification": {POOLER, CLASSIFIER},
}
_DISTILBERT_MODELS: dict[str, set[str]] = {
    "DistilBertModel": set(),
    "DistilBertForMaskedLM": {"masked_words"},
    "DistilBertForQuestionAnswering": {"answer_span"},
}


class _WithoutInitialization(TorchFunctionMode):
    """Leaves parameters as they are. Without memory there is nothing to draw, and torch would import its compiler."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.normal_ or getattr(func, "__module__", "") == "torch.nn.init":
            return [*args, *(kwargs or {}).values()][0]
        return func(*args, **(kwargs or {}))


def our_model(config: ModelConfig, weights: Weights) -> nn.Module:
    """Return the model of ours for weights, with names and shapes and no memory.

    A classifier without the pooler is another model's head (one of tokens, DistilBERT's). Weights without any known
    head get the pretraining model, which has a place for the pooler too.
    """
    heads = weights.parts
    with torch.device("meta"), _WithoutInitialization():
        if heads & {"masked_words", "next_sentence"}:
            return BertForPretraining(config)
        if "answer_span" in heads:
            return BertForQuestionAnswering(config)
        if {POOLER, CLASSIFIER} <= heads:
            return BertForSequenceClassification(config, weights.labels or 1)
        return BertForPretraining(config)


def architecture_of(config: ModelConfig, parts: Set[str]) -> tuple[str, Set[str]]:
    """Return the name and the heads of the smallest model of transformers' that has these heads of one of our models.

    Heads for which no DistilBERT has a place do not count where the shape is DistilBERT's, which is without segments.
    """
    models = _BERT if config.type_vocab_size else _DISTILBERT_MODELS
    placed = parts & set[str]().union(*models.values())
    return min((one for one in models.items() if one[1] >= placed), key=lambda one: len(one[1]))
