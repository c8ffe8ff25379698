"""Weights under Hugging Face's names: BertForPreTraining, BertModel, BertForQuestionAnswering,
BertForSequenceClassification and DistilBERT's likes.

Theirs differ from ours in three ways: query, key and value are three matrices, the vocabulary is not padded, and the
tied decoder is listed a second time. A new head gets its names in the tables below and a row in _ARCHITECTURES.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bert.model.config import ModelConfig
from bert.model.encoder import BertEncoder
from bert.model.heads import (
    PADDING_BIAS,
    BertForPretraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    MaskedWordHead,
)
from common.errors import InputError, UsageError

_WORD = "embeddings.word_embeddings.weight"
_DECODER_WEIGHT = "cls.predictions.decoder.weight"
_DECODER_BIAS = "cls.predictions.decoder.bias"
_PREDICTION_BIAS = "cls.predictions.bias"
# Second name of a weight -> the name it stands under here.
_TIED = {_DECODER_WEIGHT: _WORD, _DECODER_BIAS: _PREDICTION_BIAS}
_QKV = ("query", "key", "value")

# Ours -> theirs, up to the final .weight or .bias; "encoder." of ours and "bert." of theirs come in front.
_EMBEDDINGS = {
    "embeddings.word": "embeddings.word_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.token_type": "embeddings.token_type_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
}
_LAYER = {
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}
_HEADS = {
    "masked_words.dense": "cls.predictions.transform.dense",
    "masked_words.norm": "cls.predictions.transform.LayerNorm",
    "next_sentence": "cls.seq_relationship",
    "answer_span.output": "qa_outputs",
    "classifier": "classifier",
}

# What stands before the final .weight or .bias of theirs -> our head, or "pooler".
_PARTS = {
    "pooler.dense": "pooler",
    "cls.predictions": "masked_words",
    "cls.predictions.decoder": "masked_words",
    **{theirs: ours.partition(".")[0] for ours, theirs in _HEADS.items()},
}

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


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Names that were used, missing or left over."""

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    """Hugging Face names (without "bert.") of the model's parameters that the weights lack, and our names of those that
    it has none for; those keep their values."""
    unexpected: tuple[str, ...]
    """Names of the weights, as given, that the model lacks."""
    used: tuple[str, ...] = ()
    """Names of the weights, as given, that were used."""
    incomplete: tuple[str, ...] = ()
    """Names of the weights, as given, that were left out because another part of the same parameter of ours is missing:
    query, key and value are one."""


def load_hugging_face_state(
    model: nn.Module, state_dict: Mapping[str, Tensor], *, allow_missing: bool = False
) -> LoadReport:
    """Copy Hugging Face weights into a BertEncoder, or into a model whose `encoder` is one.

    Takes the names and shapes that `match_hugging_face_state` takes, and raises what it raises; the model is then as it
    was. Heads and pooler that the weights lack keep their values and are listed in the report.
    """
    values, report = match_hugging_face_state(model, state_dict, allow_missing=allow_missing)
    ours = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in values.items():
            ours[name].copy_(value)
        for part in model.modules():
            if isinstance(part, MaskedWordHead):
                part.reset_padding()
    return report


def match_hugging_face_state(
    model: nn.Module, state_dict: Mapping[str, Tensor], *, allow_missing: bool = False
) -> tuple[dict[str, Tensor], LoadReport]:
    """Bring Hugging Face weights into the form of a model's parameters, without touching the model.

    Names may have the prefix "bert." or "distilbert." or none, and the old "gamma" and "beta" or NVIDIA's "dense_act".
    The vocabulary may be padded as ours is or not at all.

    Args:
        model: a BertEncoder or a model whose `encoder` is one; only its names and shapes count, so it may be on the
            device "meta".
        state_dict: the weights.
        allow_missing: whether encoder weights may be missing.

    Returns:
        The values by the names of our parameters, in the model's types, and a report by name.
    """
    encoder, prefix = _encoder_of(model)
    ours = dict(model.named_parameters())
    given = _given_names(state_dict)
    weights = {name: state_dict[original] for name, original in given.items()}
    _settle_decoder(weights)
    values: dict[str, Tensor] = {}
    missing: list[str] = []
    incomplete: set[str] = set()
    placed: set[str] = set()
    names = _names(ours, prefix)
    for name, theirs in names.items():
        absent = [part for part in theirs if part not in weights]
        missing.extend(absent)
        (incomplete if absent else placed).update(theirs)
        if not absent:
            values[name] = _assemble(name, [weights[part] for part in theirs], ours[name], encoder.config)
    missing.extend(sorted(ours.keys() - names.keys()))  # heads that Hugging Face has no names for
    has_decoder = "masked_words.bias" in ours
    placed |= {second for second, first in _TIED.items() if first in placed and (has_decoder or first not in given)}
    lacking = [name for name in missing if name.startswith(("embeddings.", "encoder."))]
    if not values or (lacking and not allow_missing):
        raise InputError(
            "weights-mismatch",
            f"the weights lack {len(lacking)} encoder parameters ({_some(lacking)}) and hold "
            f"{_some(sorted(state_dict)) or 'nothing'}: give the weights of a model of this shape"
            + (", or allow missing ones (--allow-missing)" if values else ""),
        )
    report = LoadReport(
        loaded=tuple(values),
        missing=tuple(missing),
        unexpected=tuple(sorted(given[name] for name in given.keys() - placed - incomplete)),
        used=tuple(sorted(given[name] for name in given.keys() & placed)),
        incomplete=tuple(sorted(given[name] for name in given.keys() & incomplete)),
    )
    return values, report


def to_hugging_face_state(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the weights under the names of BertForPreTraining or, by its head, BertForQuestionAnswering or
    BertForSequenceClassification; for a bare BertEncoder under those of BertModel.

    A model without segment embeddings gets DistilBERT's names for what DistilBERT has. The vocabulary is not padded.

    Raises:
        UsageError: the model has no BertEncoder.
    """
    encoder, prefix = _encoder_of(model)
    return hugging_face_tensors(dict(model.named_parameters()), encoder.config, prefix)


def hugging_face_tensors(values: Mapping[str, Tensor], config: ModelConfig, prefix: str) -> dict[str, Tensor]:
    """Return copies of parameters of ours, all or some, under Hugging Face's names, the vocabulary not padded.

    Args:
        values: the parameters by our names.
        config: the model's shape; without segments it gets DistilBERT's names for what DistilBERT has.
        prefix: what the encoder's names begin with, "encoder." or nothing; nothing stands for a bare BertModel.
    """
    weights: dict[str, Tensor] = {}
    for name, theirs in _names(values, prefix).items():
        value = values[name].detach()
        if theirs[0] in (_WORD, _PREDICTION_BIAS):
            value = value[: config.vocab_size]
        weights.update(zip(theirs, (part.clone() for part in value.chunk(len(theirs))), strict=True))
    if _PREDICTION_BIAS in weights:
        if _WORD in weights:
            weights[_DECODER_WEIGHT] = weights[_WORD]
        weights[_DECODER_BIAS] = weights[_PREDICTION_BIAS]
    if config.type_vocab_size == 0:
        weights.pop(_PREDICTION_BIAS, None)
    return {_published_name(name, config, bare=not prefix): value for name, value in weights.items()}


def part_of(name: str) -> str:
    """Return the head of ours, or "pooler", that a Hugging Face name in any accepted spelling is of; else nothing."""
    return _PARTS.get(_canonical_name(name).rpartition(".")[0], "")


def _encoder_of(model: nn.Module) -> tuple[BertEncoder, str]:
    if isinstance(model, BertEncoder):
        return model, ""
    encoder = getattr(model, "encoder", None)
    if isinstance(encoder, BertEncoder):
        return encoder, "encoder."
    raise UsageError("model-unsupported", f"{type(model).__name__} is not a BertEncoder and has none as its `encoder`")


def _names(ours: Collection[str], prefix: str) -> dict[str, tuple[str, ...]]:
    """Our parameters -> the Hugging Face parameters they are made of; heads without a counterpart are left out."""
    pairs = ((name, _their_names(name, prefix)) for name in ours)
    return {name: theirs for name, theirs in pairs if theirs}


def _their_names(name: str, prefix: str) -> tuple[str, ...]:
    if name == "masked_words.bias":
        return (_PREDICTION_BIAS,)
    stem, _, kind = name.rpartition(".")
    if stem in _HEADS:
        return (f"{_HEADS[stem]}.{kind}",)
    if not stem.startswith(prefix):
        return ()
    stem = stem.removeprefix(prefix)
    if stem in _EMBEDDINGS:
        return (f"{_EMBEDDINGS[stem]}.{kind}",)
    if stem == "pooler":
        return (f"pooler.dense.{kind}",)
    match = re.fullmatch(r"layers\.(\d+)\.(.+)", stem)
    if match is None:
        return ()
    index, part = match.groups()
    if part == "attention.qkv":
        return tuple(f"encoder.layer.{index}.attention.self.{one}.{kind}" for one in _QKV)
    return (f"encoder.layer.{index}.{_LAYER[part]}.{kind}",)


def _given_names(state_dict: Mapping[str, Tensor]) -> dict[str, str]:
    """Canonical name -> the name as given, of all that are no buffers."""
    given: dict[str, str] = {}
    for original in state_dict:
        name = _canonical_name(original)
        if _is_buffer(name):
            continue
        if name in given:
            raise InputError("weights-mismatch", f"{given[name]} and {original} map to the same weight: give one model")
        given[name] = original
    return given


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


def _is_buffer(name: str) -> bool:
    return name.endswith(("position_ids", "embeddings.token_type_ids"))


def _settle_decoder(weights: dict[str, Tensor]) -> None:
    """Fill in word embedding and prediction bias from their second names; refuse a decoder with values of its own."""
    for second, first in _TIED.items():
        if second in weights and not _equal(weights[second], weights.setdefault(first, weights[second])):
            raise InputError(
                "weights-mismatch",
                f"{second} differs from {first}, which this model shares: leave {second} out to use {first}",
            )


def _equal(one: Tensor, other: Tensor) -> bool:
    """Equality that takes two number types; NaN in the same places is equal, too."""
    return one.shape == other.shape and bool(torch.isclose(one.float(), other.float(), 0.0, 0.0, equal_nan=True).all())


def _assemble(name: str, parts: list[Tensor], parameter: Tensor, config: ModelConfig) -> Tensor:
    of_vocabulary = name.endswith(("embeddings.word.weight", "masked_words.bias"))
    needed = [parameter.shape[0] // len(parts), *parameter.shape[1:]]
    for part in parts:
        if not part.is_floating_point():
            raise InputError(
                "model-unsupported", f"the weights for {name} are {part.dtype}: convert floating-point ones"
            )
        unpadded = of_vocabulary and list(part.shape) == [config.vocab_size, *needed[1:]]
        if list(part.shape) != needed and not unpadded:
            raise InputError(
                "weights-mismatch",
                f"the weights for {name} have shape {list(part.shape)}, but the model needs {needed}"
                + (f" or {config.vocab_size} rows without padding" if of_vocabulary else "")
                + ": use the preset or configuration these weights were made with",
            )
    value = (torch.cat(parts) if len(parts) > 1 else parts[0]).to(parameter.dtype)
    if of_vocabulary:
        filler = PADDING_BIAS if name.endswith("masked_words.bias") else 0.0
        rows = config.padded_vocab_size - config.vocab_size
        value = torch.cat([value[: config.vocab_size], value.new_full((rows, *value.shape[1:]), filler)])
    return value


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


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


class _WithoutInitialization(TorchFunctionMode):
    """Leaves parameters as they are. Without memory there is nothing to draw, and torch would import its compiler."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func is Tensor.normal_ or getattr(func, "__module__", "") == "torch.nn.init":
            return given["tensor"] if "tensor" in given else args[0]
        return func(*args, **given)


def our_model(config: ModelConfig, parts: Set[str], labels: int = 1) -> nn.Module:
    """Return the model of ours for weights with these parts, with names and shapes and no memory.

    A classifier has so many `labels`; without the pooler it is another model's head (one of tokens, DistilBERT's).
    Weights without any known head get the pretraining model, which has a place for the pooler too.
    """
    heads = parts - {_POOLER} if _POOLER in parts else parts - {CLASSIFIER}
    fitting = (one for one in _ARCHITECTURES if one.parts & heads)
    with torch.device("meta"), _WithoutInitialization():
        return next(fitting, _ARCHITECTURES[0]).model(config, labels)


def architecture_of(config: ModelConfig, parts: Set[str]) -> Architecture:
    """Return the smallest model of transformers' that has these parts of one of our models.

    Parts for which no DistilBERT has a place do not count where the shape is DistilBERT's, which is without segments.
    """
    candidates = [one for one in _ARCHITECTURES if one.segments == (config.type_vocab_size > 0)]
    placed = parts & frozenset[str]().union(*(one.parts for one in candidates))
    return min((one for one in candidates if one.parts >= placed), key=lambda one: len(one.parts))


def labels_of(shapes: Mapping[str, Sequence[int]], part: Callable[[str], str]) -> int | None:
    """Return the number of labels of the classifier among weights; None if there is none.

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
