"""Convert any checkpoint to a Hugging Face folder or a bertbench folder."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor

from bert.checkpoints.files import check_new_folder, new_folder, write_model, write_safetensors
from bert.checkpoints.hugging_face import architecture_of, our_model, to_hugging_face
from bert.checkpoints.model_config import read_config, to_hugging_face_json
from bert.checkpoints.read import OURS, Found, find_checkpoint, read_weights
from bert.checkpoints.weights import CLASSIFIER, POOLER, fit, part_of
from bert.data.vocabulary import either_fingerprint, load_vocabulary
from bert.model.config import ModelConfig
from common.atomic import storage_errors, write_json
from common.errors import InputError, UsageError
from common.reading import read_notes

Target = Literal["hugging-face", "bertbench"]

# Copies of other tensors, which transformers leaves out and ties by itself.
_TIED = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "vocab_projector.weight")
# DistilBERT's classifier follows a layer with ReLU, ours one with tanh.
_NOT_IN_DISTILBERT = (POOLER, "next_sentence", CLASSIFIER)


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was read, and how it was converted."""

    source: Path
    source_format: str
    destination: Path
    target: Target
    architecture: str
    """Hugging Face model class that has these weights."""
    config: ModelConfig
    tensors_read: int
    converted: int
    """How many of them are in the destination."""
    skipped: tuple[str, ...]
    """Names in the source that are not weights (an optimizer's, a schedule's, text); they were not read."""
    missing: tuple[str, ...]
    """Our names of the architecture's weights that the source lacks; not written."""
    unexpected: tuple[str, ...]
    """Names in the source that the architecture lacks; not written."""
    parameters: int
    """Numbers written, without padding in Hugging Face's form."""
    vocab: Path | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return all fields as plain JSON values."""
        content: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str)
        return content


def convert(
    source: Path,
    destination: Path,
    *,
    target: Target = "hugging-face",
    config_file: Path | None = None,
    vocab_file: Path | None = None,
) -> Conversion:
    """Write the weights of a checkpoint, all that `find_checkpoint` finds, into a new folder, whole or not at all.

    `config_file` is the shape of the model, where it is not in a config.json or bert_config.json beside the source, and
    `vocab_file` the vocabulary to copy, where it is not in a vocab.txt there.
    """
    check_new_folder(destination)
    notes: list[str] = []
    found = find_checkpoint(source, notes.append)
    if found.format == OURS and config_file is not None:
        raise UsageError("option-not-applicable", f"{found.path} already holds a configuration: leave out --config")
    weights = read_weights(found)
    path, vocab = config_file or found.config, vocab_file or found.vocab
    if path is None:
        raise InputError("data-missing", f"no config.json or bert_config.json beside {found.path}: give --config FILE")
    config = read_config(path)
    if vocab is None:
        notes.append("no vocab.txt beside the weights: give --vocab FILE, or the new folder cannot tokenize text")
    else:
        config = _fit_vocabulary(config, found, vocab, notes)
    if target == "hugging-face" and config.type_vocab_size == 0 and weights.parts & {*_NOT_IN_DISTILBERT}:
        before = len(weights.tensors)
        weights = weights.without(_NOT_IN_DISTILBERT)
        notes.append(
            f"skipped {before - len(weights.tensors)} weights: DistilBERT has no pooler and no next-sentence head, and "
            "its classifier follows a layer with ReLU"
        )
    values, report = fit(weights, our_model(config, weights), found.path)
    architecture, parts = architecture_of(config, {part_of(name) for name in values} - {""})
    if weights.incomplete:
        names = ", ".join(weights.incomplete)
        notes.append(f"{len(weights.incomplete)} weights skipped, their query, key or value is missing: {names}")
    written = _write(destination, values, config, architecture, target, vocab)
    return Conversion(
        source=found.path,
        source_format=found.format,
        destination=destination,
        target=target,
        architecture=architecture,
        config=config,
        tensors_read=weights.read,
        converted=len(report.used),
        skipped=weights.skipped,
        missing=tuple(name for name in report.missing if part_of(name) in parts | {""}),
        unexpected=report.unexpected,
        parameters=sum(value.numel() for value in written.values()),
        vocab=vocab,
        notes=tuple(notes),
    )


def _write(
    destination: Path, values: dict[str, Tensor], config: ModelConfig, architecture: str, target: Target,
    vocab: Path | None,
) -> dict[str, Tensor]:  # fmt: skip
    with new_folder(destination) as folder:
        if target == "bertbench":
            # Copies, because safetensors refuses one tensor under two names, which a PyTorch file may hold.
            written = {name: value.clone(memory_format=torch.contiguous_format) for name, value in values.items()}
            write_model(folder, config, written)
        else:
            named = to_hugging_face(values, config)
            written = {name: value.contiguous() for name, value in named.items() if name not in _TIED}
            write_safetensors(folder / "model.safetensors", written)
            classifier = values.get(f"{CLASSIFIER}.weight")
            labels = None if classifier is None else len(classifier)
            write_json(folder / "config.json", to_hugging_face_json(config, architecture, labels))
        if vocab is not None:
            with storage_errors(folder):
                shutil.copyfile(vocab, folder / "vocab.txt")
            if target == "hugging-face":
                tokenizer = {"do_lower_case": _lower_case(vocab), "model_max_length": config.max_positions}
                write_json(folder / "tokenizer_config.json", tokenizer)
    return written


def _fit_vocabulary(config: ModelConfig, found: Found, vocab: Path, notes: list[str]) -> ModelConfig:
    """Return the shape without padding that it counts as word pieces (NVIDIA's 30528); tell `notes` of it."""
    pieces = len(load_vocabulary(vocab, lower_case=True).pieces)
    trained = found.state and found.state["data"]["vocabulary"]
    if pieces > config.vocab_size or (trained is not None and trained not in either_fingerprint(vocab)):
        raise InputError(
            "vocabulary-mismatch",
            f"{vocab} has {pieces} pieces, {found.path} needs {config.vocab_size}: give the vocabulary it was trained "
            "with by --vocab FILE",
        )
    real = config.replace(vocab_size=pieces)
    if found.format != OURS and pieces < config.vocab_size == real.padded_vocab_size:
        notes.append(f"{config.vocab_size - pieces} embedding rows beyond the {pieces} pieces of {vocab} are padding")
        return real
    if pieces < config.vocab_size:
        notes.append(f"{vocab} has {pieces} pieces, the model {config.vocab_size}: the last ids are unused")
    return config


def _lower_case(vocab: Path) -> bool:
    """Return what a tokenizer_config.json beside the vocabulary says, else whether it has no capital letters."""
    stated = read_notes(vocab.with_name("tokenizer_config.json")).get("do_lower_case")
    if isinstance(stated, bool):
        return stated
    pieces = load_vocabulary(vocab, lower_case=True).pieces
    return not any(piece != piece.lower() for piece in pieces if not piece.startswith("["))
