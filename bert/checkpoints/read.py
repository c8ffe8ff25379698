"""Find the checkpoint that a path names, and read its weights under our names, whatever its format."""

import re
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from bert.checkpoints.hugging_face import from_hugging_face
from bert.checkpoints.ours import is_model_folder, load_model
from bert.checkpoints.tensor_files import read_tensors
from bert.checkpoints.tensorflow import hugging_face_name, index_file, is_weight, open_checkpoint
from bert.checkpoints.weights import ENCODER, PADDING, Weights
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
_OTHER_FILES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
_CONFIG_FILES = ("config.json", "bert_config.json")
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


def find_checkpoint(source: Path) -> Found:
    """Detect what `source` is: a folder, a file, or the prefix of a TensorFlow checkpoint.

    Raises:
        InputError: there is nothing there, nothing that is a checkpoint, or more than one.
    """
    with read_errors(source, "give a checkpoint that can be read"):
        if source.is_dir():
            return _find_in_folder(source)
        prefix = source.with_name(re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", source.name))
        if index_file(prefix).is_file():
            return _found(TENSORFLOW, prefix)
        if source.name == _WEIGHT_FILES[0] and is_model_folder(source.parent):
            return _found(OURS, source.parent)
        if source.is_file():
            return _found(HUGGING_FACE, source)
    raise InputError(
        "path-missing",
        f"{source} does not exist: give a folder or file of weights, or the prefix of a TensorFlow checkpoint",
    )


def read_weights(found: Found) -> Weights:
    """Read the weights of a checkpoint; an optimizer's tensors in TensorFlow checkpoints are not read."""
    if found.format == OURS:
        config, state = load_model(found.path)
        prefix = "" if any(name.startswith(ENCODER) for name in state) else ENCODER  # a bare encoder
        tensors = {prefix + name: value for name, value in state.items()}
        tensors |= {name: tensors[name][: config.vocab_size] for name in PADDING if name in tensors}
        return Weights(tensors, {prefix + name: (name,) for name in state})
    if found.format == HUGGING_FACE:
        return from_hugging_face(read_tensors(found.path), where=found.path)
    checkpoint = open_checkpoint(found.path)
    translated: dict[str, Tensor] = {}
    originals: dict[str, str] = {}
    kept = [name for name in checkpoint.entries if is_weight(name) and checkpoint.holds_numbers(name)]
    for name in kept:
        theirs, transposed = hugging_face_name(name)
        if theirs in translated:
            both = f"{name} and {originals[theirs]} of {found.path}"
            raise InputError("weights-mismatch", f"{both} are one weight: give one model")
        tensor = checkpoint.read(name)
        translated[theirs] = tensor.T if transposed and tensor.dim() == 2 else tensor
        originals[theirs] = name
    return from_hugging_face(translated, originals, tuple(checkpoint.entries.keys() - set(kept)), found.path)


def _find_in_folder(folder: Path) -> Found:
    if is_model_folder(folder):
        return _found(OURS, folder)
    for name in _WEIGHT_FILES:
        if (folder / name).is_file():
            return _found(HUGGING_FACE, folder / name)
    indexes = [path.with_suffix("") for path in sorted(folder.glob("*.index"))]
    files = indexes or sorted(path for path in folder.iterdir() if path.suffix in _OTHER_FILES)
    if len(files) > 1:
        names = ", ".join(path.name for path in files[:6])
        raise InputError("data-ambiguous", f"{folder} holds {len(files)} checkpoints ({names}): give one of them")
    if not files:
        raise InputError(
            "checkpoint-missing",
            f"{folder} holds no checkpoint: it needs {', '.join(_WEIGHT_FILES)}, or *.index and *.data-*",
        )
    return _found(TENSORFLOW if indexes else HUGGING_FACE, files[0])


def _found(format_: str, path: Path) -> Found:
    folder = path if format_ == OURS else path.parent
    names = reversed(_CONFIG_FILES) if format_ == TENSORFLOW else _CONFIG_FILES
    config = next((folder / name for name in names if (folder / name).is_file()), None)
    vocab = folder / _VOCAB_FILE
    return Found(format_, path, config, vocab if vocab.is_file() else None)
