"""Find the checkpoint that a path names, and read its weights under our names, whatever its format.

The checkpoints of a training are folders step-0000123 (bert.train.checkpoint writes them); each has a state.json, which
says how large its other files are.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert.checkpoints.files import is_model_folder, load_model, read_tensors
from bert.checkpoints.hugging_face import from_hugging_face
from bert.checkpoints.tensorflow import hugging_face_name, index_file, is_weight, read_variables
from bert.checkpoints.weights import ENCODER, PADDING, Weights
from common.errors import InputError, SchemaError
from common.reading import read_errors, read_json

TENSORFLOW, HUGGING_FACE, OURS = "tensorflow", "hugging-face", "bertbench"

CHECKPOINTS_FOLDER = "checkpoints"
"""Name of the folder of checkpoints in a run's folder."""
STATE_FILE, OPTIMIZER_FILE = "state.json", "optimizer.safetensors"
FORMAT, SCHEMA_VERSION = "bertbench checkpoint", 3
_NAME = re.compile(r"step-(\d{7,})")

# In the order in which Hugging Face itself looks.
_WEIGHT_FILES = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
)  # fmt: skip
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
    state: Mapping[str, Any] | None = None
    """Content of the state.json of a training's checkpoint, whose files are whole; None for weights alone."""


def checkpoint_path(folder: Path, applied_steps: int) -> Path:
    """Folder of the checkpoint after so many updates."""
    return folder / f"step-{applied_steps:07d}"


def saved_steps(folder: Path) -> list[int]:
    """Updates after which there are checkpoints in `folder`, ascending, whole or not. Raises InputError."""
    with read_errors(folder, "choose another folder"):
        names = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def read_state(path: Path) -> dict[str, Any]:
    """Return the state.json of a training's checkpoint, whose files have their sizes.

    Raises InputError (it is not a checkpoint, or damaged), SchemaError (another version wrote it).
    """
    content = read_json(path / STATE_FILE)
    version = content.get("schema_version")
    if content.get("format") != FORMAT:
        raise InputError("record-foreign", f"{path} is not a bertbench checkpoint: give another folder")
    if version != SCHEMA_VERSION:
        raise SchemaError(
            "record-version",
            f"{path} has schema {version}, but this bertbench reads {SCHEMA_VERSION}: use the version that wrote it",
        )
    for name, size in content["files"].items():
        present = (path / name).stat().st_size if (path / name).is_file() else 0
        if present != size:
            raise InputError("file-damaged", f"the checkpoint {path} is damaged: {name} has {present} of {size} bytes")
    return content


def newest_whole(folder: Path, warn: Callable[[str], None]) -> Path | None:
    """Return the newest undamaged checkpoint in `folder`; damaged newer ones are named to `warn`. None: there is none.

    Raises InputError (all are damaged), SchemaError (another version wrote it).
    """
    steps = saved_steps(folder)
    for step in reversed(steps):
        path = checkpoint_path(folder, step)
        try:
            read_state(path)
            return path
        except SchemaError:
            raise
        except InputError as error:
            warn(f"{error}; the previous checkpoint is used")
    if steps:
        raise InputError("checkpoint-missing", f"all {len(steps)} checkpoints in {folder} are damaged: remove them")
    return None


def find_checkpoint(source: Path, warn: Callable[[str], None] = lambda message: None) -> Found:
    """Detect what `source` is: a folder, a file, or the prefix of a TensorFlow checkpoint.

    A training's folder, or that of its checkpoints, stands for its newest whole one; `warn` hears of damaged ones.
    Raises InputError: there is nothing there, nothing that is a checkpoint, or more than one.
    """
    with read_errors(source, "give a checkpoint that can be read"):
        if source.is_dir():
            return _find_in_folder(_newest(source, warn))
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
        state = read_tensors(found.path)
        return from_hugging_face(((name, name, tensor) for name, tensor in state.items()), (), found.path)
    variables, skipped = read_variables(found.path, is_weight)
    translated = []
    for name, tensor in variables.items():
        theirs, transposed = hugging_face_name(name)
        translated.append((theirs, name, tensor.T if transposed and tensor.dim() == 2 else tensor))
    return from_hugging_face(translated, skipped, found.path)


def _newest(source: Path, warn: Callable[[str], None]) -> Path:
    """The newest whole checkpoint where `source` is a training or its folder of checkpoints, else `source` itself."""
    for folder in (source, source / CHECKPOINTS_FOLDER):
        if steps := saved_steps(folder):
            last = checkpoint_path(folder, steps[-1])
            if is_model_folder(last) and not any((last / name).exists() for name in (STATE_FILE, OPTIMIZER_FILE)):
                return last  # of a training that saves weights alone
            return newest_whole(folder, warn) or source
    return source


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
    state = read_state(folder) if format_ == OURS and (folder / STATE_FILE).is_file() else None
    return Found(format_, path, config, vocab if vocab.is_file() else None, state)
