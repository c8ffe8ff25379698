"""The shape of a model in JSON: Google's bert_config.json, Hugging Face's config.json, and our own."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bert.model.config import ModelConfig
from common.errors import InputError, SchemaError, UsageError
from common.reading import read_json

OUR_FORMAT = "bertbench model"
SCHEMA_VERSION = 1

# Our field -> theirs.
_BERT = {
    "num_layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_positions": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_eps": "layer_norm_eps",
    "initializer_range": "initializer_range",
}
_DISTILBERT = {
    "num_layers": "n_layers",
    "hidden_size": "dim",
    "num_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "vocab_size": "vocab_size",
    "max_positions": "max_position_embeddings",
    "hidden_dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "initializer_range": "initializer_range",
}
# What ours computes, by key; the first value is what a file means that has none.
_NEEDED: dict[str, tuple[Any, ...]] = {
    "model_type": ("bert", "distilbert"),
    "activation": ("gelu", "gelu_python"),
    "hidden_act": ("gelu", "gelu_python"),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False, None),
}


def read_config(path: Path) -> ModelConfig:
    """Read any of the three forms. Raises InputError: it is none of them, or of a model that ours cannot compute."""
    content = read_json(path)
    if is_ours(content):
        return from_our_json(content, path)
    distilled = content.get("model_type") == "distilbert" or ("dim" in content and "hidden_size" not in content)
    for key, good in _NEEDED.items():
        if content.get(key, good[0]) not in good:
            raise InputError("model-unsupported", f"{path} has {key}={content[key]!r}: give a model with {good[0]!r}")
    names = _DISTILBERT if distilled else _BERT
    values = {field: content[theirs] for field, theirs in names.items() if theirs in content}
    if distilled:
        values["type_vocab_size"] = 0
    return _checked(values, path)


def from_our_json(content: Mapping[str, Any], path: Path) -> ModelConfig:
    """Return the configuration of a `config.json` that `to_our_json` made. Raises InputError, SchemaError."""
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        raise SchemaError(
            "record-version", f"{path} has schema {version}, this version reads {SCHEMA_VERSION}: save the model again"
        )
    return _checked(content, path)


def to_our_json(config: ModelConfig) -> dict[str, Any]:
    """Return the fields of a configuration, marked as ours."""
    return {"format": OUR_FORMAT, "schema_version": SCHEMA_VERSION, **dataclasses.asdict(config)}


def to_hugging_face_json(config: ModelConfig, architecture: str, labels: int | None = None) -> dict[str, Any]:
    """Return Hugging Face's configuration of a model without padded vocabulary; no segments make a DistilBERT.

    `architecture` is its class in transformers; a classifier with one of `labels` is a regression there, as here.
    """
    distilled = config.type_vocab_size == 0
    numbers = range(labels or 0)
    classes = {
        "id2label": {str(number): f"LABEL_{number}" for number in numbers},
        "label2id": {f"LABEL_{number}": number for number in numbers},
        "problem_type": "regression" if labels == 1 else "single_label_classification",
    }
    return {
        **({} if labels is None else classes),
        "architectures": [architecture],
        "model_type": "distilbert" if distilled else "bert",
        "activation" if distilled else "hidden_act": "gelu",
        "pad_token_id": 0,
        "dtype": "float32",
        **hugging_face_fields(config),
    }


def hugging_face_fields(config: ModelConfig) -> dict[str, Any]:
    """Return the shape of a model by Hugging Face's names, those of DistilBERT for a model without segments."""
    names = _DISTILBERT if config.type_vocab_size == 0 else _BERT
    return {theirs: getattr(config, field) for field, theirs in names.items()}


def is_ours(content: Mapping[str, Any]) -> bool:
    """Return whether a configuration is one that `to_our_json` made."""
    return content.get("format") == OUR_FORMAT


def _checked(values: Mapping[str, Any], path: Path) -> ModelConfig:
    try:
        return msgspec.convert(values, ModelConfig)
    except (msgspec.ValidationError, UsageError) as error:
        raise InputError("file-damaged", f"{path}: {error}: give the configuration of the weights") from error
