"""The shape of a model in JSON: Google's bert_config.json, Hugging Face's config.json, and our own."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert.model.config import ModelConfig
from common.errors import InputError, SchemaError, UsageError
from common.reading import read_json

OUR_FORMAT = "bertbench model"
SCHEMA_VERSION = 1

_LARGEST_SIZE = 1 << 24
_MOST_LAYERS = 1000

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
_INTEGERS = (
    "num_layers", "hidden_size", "num_heads", "intermediate_size", "vocab_size", "vocab_multiple", "max_positions",
    "type_vocab_size",
)  # fmt: skip
_REQUIRED = ("num_layers", "hidden_size", "num_heads", "intermediate_size", "vocab_size")
_EXACT_GELU = ("gelu", "gelu_python")


def read_config(path: Path) -> ModelConfig:
    """Read any of the three forms.

    Raises:
        InputError: the file cannot be read, is no such JSON, or describes a model that ours cannot compute.
    """
    content = read_json(path)
    if is_ours(content):
        return from_our_json(content, path)
    distilled = content.get("model_type") == "distilbert" or ("dim" in content and "hidden_size" not in content)
    _refuse_other_models(content, path, distilled)
    names = _DISTILBERT if distilled else _BERT
    values = {field: content[theirs] for field, theirs in names.items() if theirs in content}
    if distilled:
        values["type_vocab_size"] = 0
    for field in _REQUIRED:
        if field not in values:
            raise InputError("file-format", f"{path} lacks {names[field]!r}: give the configuration of the weights")
    return _checked(values, path, names)


def from_our_json(content: Mapping[str, Any], path: Path) -> ModelConfig:
    """Return the configuration of a `config.json` that `to_our_json` made. Raises InputError, SchemaError."""
    version = content.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise InputError(
            "file-damaged", f"{path} has the invalid schema_version {version!r}: convert or save the model again"
        )
    if version > SCHEMA_VERSION:
        raise SchemaError(
            "record-version",
            f"{path} has schema {version}, this version reads up to {SCHEMA_VERSION}: update bertbench",
        )
    fields = {field.name: field.name for field in dataclasses.fields(ModelConfig)}
    for field in fields:
        if field not in content:
            raise InputError("file-damaged", f"{path} lacks {field!r}: convert or save the model again")
    return _checked({field: content[field] for field in fields}, path, fields)


def to_our_json(config: ModelConfig) -> dict[str, Any]:
    """Return the fields of a configuration, marked as ours."""
    return {"format": OUR_FORMAT, "schema_version": SCHEMA_VERSION, **dataclasses.asdict(config)}


def to_hugging_face_json(config: ModelConfig, architecture: str, labels: int | None = None) -> dict[str, Any]:
    """Return Hugging Face's configuration of a model without padded vocabulary; no segments make a DistilBERT.

    Args:
        config: shape of the model.
        architecture: its class in transformers.
        labels: of a classifier; one is a regression there, as here.
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


def _refuse_other_models(content: Mapping[str, Any], path: Path, distilled: bool) -> None:
    kind = content.get("model_type", "bert")
    if kind not in ("bert", "distilbert"):
        raise InputError("model-unsupported", f"{path} is of type {kind!r}: give BERT or DistilBERT")
    activation = content.get("activation" if distilled else "hidden_act", "gelu")
    if activation not in _EXACT_GELU:
        raise InputError(
            "model-unsupported", f"{path} uses the activation {activation!r}: give a model trained with 'gelu'"
        )
    positions = content.get("position_embedding_type", "absolute")
    if positions != "absolute":
        raise InputError("model-unsupported", f"{path} uses {positions!r} position embeddings: give absolute ones")
    if content.get("is_decoder"):
        raise InputError("model-unsupported", f"{path} describes a decoder (is_decoder): give an encoder")


def _checked(values: Mapping[str, Any], path: Path, names: Mapping[str, str]) -> ModelConfig:
    for field, value in values.items():
        theirs = names.get(field, field)
        if field in _INTEGERS:
            smallest = 0 if field == "type_vocab_size" else 1
            largest = _MOST_LAYERS if field == "num_layers" else _LARGEST_SIZE
            if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
                raise InputError("file-damaged", f"{path} has {theirs}={value!r}: it must be {smallest} to {largest}")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise InputError(
                "file-damaged", f"{path} has {theirs}={value!r}: it must be a number of at least 0 and below 1"
            )
    try:
        return ModelConfig(**values)
    except UsageError as error:
        raise InputError("file-damaged", f"{path}: {error}") from error
