"""Convert any checkpoint to a Hugging Face folder or a bertbench folder."""

import contextlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bert.checkpoints.folder import check_new_folder, new_folder
from bert.checkpoints.hugging_face import (
    CLASSIFIER,
    Architecture,
    LoadReport,
    architecture_of,
    hugging_face_tensors,
    labels_of,
    match_hugging_face_state,
    our_model,
    part_of,
    part_of_ours,
)
from bert.checkpoints.model_config import read_config, to_hugging_face_json
from bert.checkpoints.ours import load_model, write_model
from bert.checkpoints.read import OURS, Found, find_checkpoint, read_weights
from bert.checkpoints.tensor_files import write_safetensors
from bert.data.vocabulary import either_fingerprint, load_vocabulary
from bert.model.config import ModelConfig
from bert.train.checkpoint import STATE_FILE, latest, read, saved_steps
from bert.train.resume import CHECKPOINTS_FOLDER
from common.atomic import atomic_path, write_json
from common.errors import InputError, StorageError, UsageError
from common.reading import read_errors, read_json

Target = Literal["hugging-face", "bertbench"]

_ENCODER = "encoder."
# Copies of other tensors, which transformers leaves out and ties by itself.
_TIED = ("cls.predictions.decoder.weight", "cls.predictions.decoder.bias", "vocab_projector.weight")
_LAYER = re.compile(r"(?:^|\.)layers?\.(\d+)\.")
# What ours have and DistilBERT has not, by anybody's names: its classifier follows a layer with ReLU, ours one with
# tanh.
_NOT_IN_DISTILBERT = re.compile(r"(?:^|[./])(?:pooler|next_sentence|seq_relationship|classifier)[./]")


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was read, and how it was converted."""

    source: Path
    """The file, folder or prefix that was read."""
    source_format: str
    """tensorflow, hugging-face (any file of PyTorch or safetensors) or bertbench."""
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
    """Hugging Face names (without "bert.") of the architecture's weights that the source lacks; not written."""
    unexpected: tuple[str, ...]
    """Names in the source that the architecture lacks; not written."""
    parameters: int
    """Numbers written, without padding in Hugging Face's form."""
    vocab: Path | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return all fields as plain JSON values."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        paths = {
            name: None if fields[name] is None else str(fields[name]) for name in ("source", "destination", "vocab")
        }
        config = {name: getattr(self.config, name) for name in self.config.__slots__}
        lists = {name: list(value) for name, value in fields.items() if isinstance(value, tuple)}
        return {**fields, **paths, **lists, "config": config}


@dataclass(frozen=True, slots=True)
class _Model:
    """All or some of the weights of a bertbench model, by name."""

    config: ModelConfig
    values: Mapping[str, Tensor]
    report: LoadReport
    tensors_read: int
    skipped: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def heads(self) -> tuple[str, ...]:
        return tuple(name for name in self.values if not name.startswith(_ENCODER))

    @property
    def architecture(self) -> Architecture:
        return architecture_of(self.config, {part_of_ours(name) for name in self.values} - {""})


def convert(
    source: Path,
    destination: Path,
    *,
    target: Target = "hugging-face",
    config_file: Path | None = None,
    vocab_file: Path | None = None,
    allow_missing: bool = False,
) -> Conversion:
    """Write the weights of a checkpoint into a new folder, which is created atomically.

    Args:
        source: a folder, a file of weights, the prefix of a TensorFlow checkpoint, or the folder of a training run,
            which stands for its newest whole checkpoint.
        destination: the folder to make.
        target: its form.
        config_file: shape of the model, where it is not in a config.json or bert_config.json beside the source.
        vocab_file: vocabulary to copy, where it is not in a vocab.txt beside the source.
        allow_missing: whether weights of the encoder may be missing. A source that has none at all is always refused.

    Raises:
        InputError: the source or a file beside it is missing, damaged or of another architecture.
        UsageError: the destination has something in it.
        StorageError: it cannot be written or the disk is full; nothing is left behind.
    """
    check_new_folder(destination)
    warnings: list[str] = []
    found = find_checkpoint(_newest_checkpoint(source, warnings))
    vocab = vocab_file or found.vocab
    model = _load(found, config_file, vocab, allow_missing)
    if target == "hugging-face" and model.config.type_vocab_size == 0:
        model = _for_distilbert(model)
    written = _write(destination, model, target, vocab)
    return Conversion(
        source=found.path,
        source_format=found.format,
        destination=destination,
        target=target,
        architecture=model.architecture.name,
        config=model.config,
        tensors_read=model.tensors_read,
        converted=len(model.report.used),
        skipped=model.skipped,
        missing=_expected_but_missing(model),
        unexpected=model.report.unexpected,
        parameters=sum(value.numel() for value in written.values()),
        vocab=vocab,
        notes=(*warnings, *model.notes),
    )


def _newest_checkpoint(source: Path, warnings: list[str]) -> Path:
    """The newest whole checkpoint where `source` is a training run or its folder of them, else `source` itself."""
    for folder in (source, source / CHECKPOINTS_FOLDER):
        with contextlib.suppress(StorageError):  # what cannot be looked into is named by find_checkpoint
            if saved_steps(folder) and (checkpoint := latest(folder, warnings.append)):
                return checkpoint.path
    return source


def _load(found: Found, config_file: Path | None, vocab: Path | None, allow_missing: bool) -> _Model:
    pieces = None if vocab is None else len(load_vocabulary(vocab, lower_case=True).pieces)
    notes: list[str] = []
    if found.format == OURS:
        if config_file is not None:
            raise UsageError("option-not-applicable", f"{found.path} already holds a configuration: leave out --config")
        model = _from_ours(found, allow_missing)
        if vocab is not None and pieces is not None:
            _check_vocabulary(found, vocab, pieces, model.config, notes)
    else:
        config = _fit_vocabulary(read_config(_config_path(found, config_file)), pieces, vocab, notes)
        model = _from_weights(found, config, allow_missing)
    if vocab is None:
        notes.append("no vocab.txt beside the weights: give --vocab FILE, or the new folder cannot tokenize text")
    if model.report.incomplete:
        notes.append(
            f"{len(model.report.incomplete)} weights were skipped because their query, key or value is missing: "
            + ", ".join(model.report.incomplete)
        )
    if not all(bool(value.isfinite().all()) for value in model.values.values()):
        notes.append("some weights are NaN or infinite, as in the source")
    return replace(model, notes=tuple(notes))


def _for_distilbert(model: _Model) -> _Model:
    values = {name: value for name, value in model.values.items() if not _NOT_IN_DISTILBERT.search(name)}
    if len(values) == len(model.values):
        return model
    used = tuple(name for name in model.report.used if not _NOT_IN_DISTILBERT.search(name))
    left_out = set(model.report.used) - set(used)
    unexpected = tuple(sorted({*model.report.unexpected, *left_out}))
    heads = "no pooler and no next-sentence head"
    if any(part_of_ours(name) == CLASSIFIER for name in model.values):
        heads = "no pooler with tanh, and its classifier follows a layer with ReLU"
    note = f"DistilBERT has {heads}: skipped {len(left_out)} weights"
    report = replace(model.report, used=used, unexpected=unexpected)
    return replace(model, values=values, report=report, notes=(*model.notes, note))


def _write(destination: Path, model: _Model, target: Target, vocab: Path | None) -> dict[str, Tensor]:
    with new_folder(destination) as folder:
        if target == "bertbench":
            # Copies, because safetensors refuses one tensor under two names, which a PyTorch file may hold.
            written = {name: value.clone(memory_format=torch.contiguous_format) for name, value in model.values.items()}
            write_model(folder, model.config, written)
        else:
            written = _hugging_face(model)
            write_safetensors(folder / "model.safetensors", written)
            labels = labels_of({name: value.shape for name, value in written.items()}, part_of)
            write_json(folder / "config.json", to_hugging_face_json(model.config, model.architecture.name, labels))
        if vocab is not None:
            _copy_vocabulary(vocab, folder / "vocab.txt")
            if target == "hugging-face":
                tokenizer = {"do_lower_case": _lower_case(vocab), "model_max_length": model.config.max_positions}
                write_json(folder / "tokenizer_config.json", tokenizer)
    return written


def _from_weights(found: Found, config: ModelConfig, allow_missing: bool) -> _Model:
    weights = read_weights(found)
    _check_layers(config, weights.tensors, found, allow_missing)
    labels = labels_of({name: value.shape for name, value in weights.tensors.items()}, part_of)
    model = our_model(config, {part_of(name) for name in weights.tensors} - {""}, labels or 1)
    values, report = _matched(model, weights.tensors, found, allow_missing)
    names = weights.originals
    report = replace(
        report,
        used=tuple(names.get(name, name) for name in report.used),
        unexpected=tuple(names.get(name, name) for name in report.unexpected),
        incomplete=tuple(names.get(name, name) for name in report.incomplete),
    )
    # Position numbers and the like, which every model of this shape has.
    placed = {*report.used, *report.unexpected, *report.incomplete}
    buffers = {names.get(name, name) for name in weights.tensors} - placed
    return _Model(config, values, report, len(weights.tensors), tuple(sorted({*weights.skipped, *buffers})))


def _from_ours(found: Found, allow_missing: bool) -> _Model:
    config, state = load_model(found.path)
    _check_layers(config, state, found, allow_missing)
    bare = not any(name.startswith(_ENCODER) for name in state)
    names = {(_ENCODER if bare else "") + name: name for name in state}
    labels = labels_of({name: state[original].shape for name, original in names.items()}, part_of_ours)
    model = our_model(config, {part_of_ours(name) for name in names} - {""}, labels or 1)
    parameters = dict(model.named_parameters())
    values = {name: state[original] for name, original in names.items() if name in parameters}
    for name, value in values.items():
        if value.shape != parameters[name].shape or not value.is_floating_point():
            raise InputError(
                "weights-mismatch",
                f"{name} in {found.path} is {value.dtype} {list(value.shape)}, not floating-point "
                f"{list(parameters[name].shape)} as its config.json needs: copy the folder again",
            )
    # By Hugging Face's names, as for every other source; a fused matrix counts as the three it is there.
    theirs = hugging_face_tensors(values, config, _ENCODER)
    _, report = _matched(model, theirs, found, allow_missing)
    unexpected = tuple(sorted(original for name, original in names.items() if name not in values))
    report = replace(report, unexpected=unexpected, used=tuple(sorted(names[name] for name in values)))
    floats = {name: value.float() for name, value in values.items()}
    return _Model(config, floats, report, len(state), ())


def _matched(
    model: nn.Module, tensors: Mapping[str, Tensor], found: Found, allow_missing: bool
) -> tuple[dict[str, Tensor], LoadReport]:
    try:
        return match_hugging_face_state(model, tensors, allow_missing=allow_missing)
    except InputError as error:
        raise InputError(error.code, f"{found.path}: {error}") from error


def _config_path(found: Found, given: Path | None) -> Path:
    path = given or found.config
    if path is None:
        read_weights(found)  # what holds no weights is refused for that
        raise InputError("data-missing", f"no config.json or bert_config.json beside {found.path}: give --config FILE")
    return path


def _check_layers(config: ModelConfig, names: Collection[str], found: Found, allow_missing: bool) -> None:
    layers = {int(match[1]) for name in names if (match := _LAYER.search(name)) and len(match[1]) < 6}
    if not layers:
        return
    count = max(layers) + 1
    if count > config.num_layers or (count < config.num_layers and not allow_missing):
        raise InputError(
            "weights-mismatch",
            f"{found.path} holds {count} layers, the configuration {config.num_layers}: give its --config FILE",
        )


def _expected_but_missing(model: _Model) -> tuple[str, ...]:
    """What the architecture has and the source lacks; the heads that it does not have are no lack."""
    expected = model.architecture.parts | {""}
    return tuple(name for name in model.report.missing if part_of(name) in expected)


def _hugging_face(model: _Model) -> dict[str, Tensor]:
    if model.heads:
        named = hugging_face_tensors(model.values, model.config, _ENCODER)
    else:
        bare = {name.removeprefix(_ENCODER): value for name, value in model.values.items()}
        named = hugging_face_tensors(bare, model.config, "")
    return {name: value.contiguous() for name, value in named.items() if name not in _TIED}


def _fit_vocabulary(config: ModelConfig, pieces: int | None, vocab: Path | None, notes: list[str]) -> ModelConfig:
    """Remove vocabulary padding from a configuration that counts it as word pieces (NVIDIA's 30528).

    Args:
        config: the shape as it is written beside the weights.
        pieces: how many pieces the vocabulary has, None without one.
        vocab: where it is.
        notes: takes what a user should know of it.
    """
    if pieces is None or vocab is None or pieces == config.vocab_size:
        return config
    if pieces > config.vocab_size:
        raise _wrong_vocabulary(vocab, pieces, config)
    real = config.replace(vocab_size=pieces)
    if real.padded_vocab_size == config.vocab_size:
        notes.append(
            f"{config.vocab_size - pieces} embedding rows beyond the {pieces} pieces of {vocab} were treated as padding"
        )
        return real
    notes.append(f"{vocab} has {pieces} pieces, the model {config.vocab_size}: the last ids are unused")
    return config


def _check_vocabulary(found: Found, vocab: Path, pieces: int, config: ModelConfig, notes: list[str]) -> None:
    if pieces > config.vocab_size:
        raise _wrong_vocabulary(vocab, pieces, config)
    trained = read(found.path, whole=False).state.data.vocabulary if (found.path / STATE_FILE).is_file() else None
    if trained is not None and trained not in either_fingerprint(vocab):
        raise InputError(
            "vocabulary-mismatch",
            f"{vocab} has {pieces} pieces, {found.path} needs {config.vocab_size}: give its vocab.txt",
        )
    if pieces < config.vocab_size:
        notes.append(f"{vocab} has {pieces} pieces, the model {config.vocab_size}: the last ids are unused")


def _lower_case(vocab: Path) -> bool:
    """Return whether text is lowercased before tokenization; transformers does so by default.

    What a tokenizer_config.json beside them says, else whether they have no capital letters. Raises InputError.
    """
    with contextlib.suppress(InputError):
        told = read_json(vocab.with_name("tokenizer_config.json")).get("do_lower_case")
        if isinstance(told, bool):
            return told
    pieces = load_vocabulary(vocab, lower_case=True).pieces
    return not any(piece != piece.lower() for piece in pieces if not piece.startswith("["))


def _copy_vocabulary(source: Path, destination: Path) -> None:
    with read_errors(source, "give a file that can be read"):
        content = source.read_bytes()
    with atomic_path(destination) as temporary:
        temporary.write_bytes(content)


def _wrong_vocabulary(vocab: Path, pieces: int, config: ModelConfig) -> InputError:
    return InputError(
        "vocabulary-mismatch",
        f"{vocab} has {pieces} pieces, but the model only {config.vocab_size}: give the vocabulary it was trained with "
        "by --vocab FILE",
    )
