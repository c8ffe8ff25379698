"""Detect the checkpoint format of a path and read its weights under Hugging Face's names."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from bert.checkpoints.ours import is_model_folder
from bert.checkpoints.tensor_files import read_tensors
from bert.checkpoints.tensorflow import hugging_face_name, index_file, is_weight, open_checkpoint
from bert.checkpoints.tensorflow_index import FOOTER_BYTES, MAGIC
from bert.data.features import is_features
from common.errors import InputError
from common.reading import read_errors

TENSORFLOW, HUGGING_FACE, OURS = "tensorflow", "hugging-face", "bertbench"

# In the order in which Hugging Face itself looks.
_WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_OTHER_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt")
_CONFIG_FILES = ("config.json", "bert_config.json")
_NO_WEIGHTS = "and no weights: give a checkpoint, or the weights of a model"
_VOCAB_FILE = "vocab.txt"


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint on disk, not read yet."""

    format: str
    """TENSORFLOW, HUGGING_FACE (any file of tensors) or OURS."""
    path: Path
    """The prefix of a TensorFlow checkpoint, the file of tensors or their index, or our folder."""
    config: Path | None
    vocab: Path | None


@dataclass(frozen=True, slots=True)
class Weights:
    """What a checkpoint holds."""

    tensors: Mapping[str, Tensor]
    """The weights under Hugging Face's names, in whichever of the accepted spellings."""
    originals: Mapping[str, str]
    """Those names -> the names in the file, where they differ."""
    skipped: tuple[str, ...]
    """Names in the file that are not weights: those of optimizers and schedules, and text."""


def find_checkpoint(source: Path) -> Found:
    """Detect what `source` is: a folder, a file, or the prefix of a TensorFlow checkpoint.

    Raises:
        InputError: there is nothing there, nothing that is a checkpoint, or more than one.
    """
    with read_errors(source, "give a checkpoint that can be read"):
        return _find(source)


def _find(source: Path) -> Found:
    if source.is_dir():
        return _find_in_folder(source)
    prefix = _tensorflow_prefix(source)
    if prefix is not None:
        return _found(TENSORFLOW, prefix)
    if source.is_file():
        if source.name == _WEIGHT_FILES[0] and is_model_folder(source.parent):
            return _found(OURS, source.parent, source.parent)
        _refuse_table(source)
        if is_features(source):
            raise InputError("file-format", f"{source} holds features (data for training or prediction) {_NO_WEIGHTS}")
        return _found(HUGGING_FACE, source)
    raise InputError(
        "path-missing",
        f"{source} does not exist: give a folder or file of weights, or the prefix of a TensorFlow checkpoint",
    )


def read_weights(found: Found) -> Weights:
    """Read the weights of a checkpoint that is not OURS. Optimizers' tensors in TensorFlow checkpoints are not read."""
    if found.format != TENSORFLOW:
        return Weights(read_tensors(found.path), {}, ())
    checkpoint = open_checkpoint(found.path)
    tensors: dict[str, Tensor] = {}
    originals: dict[str, str] = {}
    kept = [name for name in checkpoint.entries if is_weight(name) and checkpoint.holds_numbers(name)]
    for name in kept:
        translated, transposed = hugging_face_name(name)
        if translated in tensors:
            raise InputError(
                "weights-mismatch",
                f"{name} and {originals[translated]} of {found.path} map to the same weight: give one model",
            )
        tensor = checkpoint.read(name)
        tensors[translated] = tensor.T if transposed and tensor.dim() == 2 else tensor
        originals[translated] = name
    return Weights(tensors, originals, tuple(sorted(checkpoint.entries.keys() - set(kept))))


def _find_in_folder(folder: Path) -> Found:
    if is_model_folder(folder):
        return _found(OURS, folder, folder)
    for name in _WEIGHT_FILES:
        if (folder / name).is_file():
            return _found(HUGGING_FACE, folder / name)
    indexes = sorted(folder.glob("*.index"))
    others = sorted({path for pattern in _OTHER_FILES for path in folder.glob(pattern) if path.is_file()})
    features = [path for path in others if is_features(path)]
    others = [path for path in others if path not in features]
    candidates = [path.with_suffix("") for path in indexes] or others
    if len(candidates) > 1:
        names = ", ".join(path.name for path in candidates[:6])
        raise InputError("data-ambiguous", f"{folder} holds {len(candidates)} checkpoints ({names}): give one of them")
    if not candidates and features:
        raise InputError(
            "file-format",
            f"{folder} holds features, data for training or prediction ({features[0].name}), {_NO_WEIGHTS}",
        )
    if not candidates:
        raise InputError(
            "checkpoint-missing",
            f"{folder} holds no checkpoint: it needs {', '.join(_WEIGHT_FILES)}, or *.index and *.data-*",
        )
    return _found(TENSORFLOW if indexes else HUGGING_FACE, candidates[0])


def _refuse_table(file: Path) -> None:
    with file.open("rb") as opened:
        opened.seek(-min(FOOTER_BYTES, file.stat().st_size), os.SEEK_END)
        is_table = opened.read().endswith(MAGIC)
    if is_table:
        raise InputError(
            "file-format",
            f"{file} is no TensorFlow index: save it by tf.train.Saver, or name it PREFIX.index beside PREFIX.data-*",
        )


def _tensorflow_prefix(source: Path) -> Path | None:
    if index_file(source).is_file():
        return source
    name = source.name
    if not source.exists() and source.parent.is_dir():  # with its index missing, which is then what the error says
        return source if any(path.name.startswith(f"{name}.data-") for path in source.parent.iterdir()) else None
    stem, separator, _ = name.rpartition(".data-")
    for suffix in (".index", ".meta"):
        if name.endswith(suffix) and len(name) > len(suffix):
            stem, separator = name.removesuffix(suffix), suffix
    return source.with_name(stem) if separator and stem and source.is_file() else None


def _found(format_: str, path: Path, folder: Path | None = None) -> Found:
    folder = folder or path.parent
    names = reversed(_CONFIG_FILES) if format_ == TENSORFLOW else _CONFIG_FILES
    config = next((folder / name for name in names if (folder / name).is_file()), None)
    vocab = folder / _VOCAB_FILE
    return Found(format_, path, config, vocab if vocab.is_file() else None)
