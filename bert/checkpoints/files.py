"""Weights on disk: files of named tensors, our folder of a model, and folders that are made whole or not at all.

Our folder has `model.safetensors` under our names and `config.json` with the fields of ModelConfig. What a file of
PyTorch holds besides tensors is never run.
"""

import os
import secrets
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bert.checkpoints.model_config import from_our_json, is_ours, to_our_json
from bert.model.config import ModelConfig
from common.atomic import storage_errors, write_bytes, write_json
from common.errors import Code, InputError, UsageError, first_line
from common.reading import read_errors, read_json, read_notes

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
# Where training scripts keep the weights among the rest (NVIDIA: "model").
_NESTED = ("model", "state_dict", "model_state_dict", "module")


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write contiguous tensors on the CPU to `path`, atomically. Raises StorageError."""
    from safetensors.torch import save

    # Not save_file, whose temporary file outlives a killed process and whose errors have no number. Hugging Face's
    # readers require the framework's name.
    write_bytes(path, save(dict(tensors), {"format": "pt"}))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, of a PyTorch file, or of all the files that an index.json names."""
    from safetensors.torch import load_file

    with read_errors(path, "give a file that can be read"), path.open("rb") as file:
        start = file.read(200)
    if start.startswith(b"version https://git-lfs"):
        raise InputError("file-format", f"{path} is a Git LFS pointer: run `git lfs pull`")
    if path.name.endswith(".index.json"):
        return _read_shards(path)
    is_pytorch = start.startswith((b"PK\x03\x04", b"\x80")) and start[8:9] != b"{"  # a header's length may begin so
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of TypedStorage, which nobody here can change
            content = torch.load(path, map_location="cpu", weights_only=True) if is_pytorch else load_file(path)
    except Exception as error:  # a damaged file can fail in every way there is
        code: Code = "file-unsafe" if "GLOBAL" in str(error) else "file-damaged"
        kind = "PyTorch" if is_pytorch else "safetensors"
        raise InputError(
            code,
            f"{path} is no {kind} file of tensors ({first_line(error)}): copy it again, or save state_dict()",
        ) from error
    tensors = _state_dict(content)
    if not tensors:
        raise InputError("file-format", f"{path} holds no named tensors: give a file with a model's state dict")
    return tensors


def _read_shards(index: Path) -> dict[str, Tensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise InputError("file-format", f"{index} has no weight_map: give the index of a sharded checkpoint")
    tensors: dict[str, Tensor] = {}
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name:  # a name with a path in it could read any file of this machine
            raise InputError("file-unsafe", f"{index} lists the file {name!r}: all files must be beside it")
        tensors |= read_tensors(index.with_name(name))
    if absent := sorted(weight_map.keys() - tensors.keys()):
        raise InputError(
            "file-damaged", f"the files beside {index} lack {len(absent)} tensors ({absent[0]}): copy all again"
        )
    return tensors


def _state_dict(content: Any) -> dict[str, Tensor]:
    """Return the named tensors of what a training script saved."""
    if not isinstance(content, dict):
        return {}
    for key in _NESTED:
        if isinstance(content.get(key), dict):
            return _state_dict(content[key])
    return {name: value.detach() for name, value in content.items() if isinstance(value, Tensor)}


def save_model(folder: Path, model: nn.Module) -> None:
    """Write the two files of a model with a ModelConfig as its own or its encoder's `config` into `folder`.

    Each file is written atomically; `new_folder` does the same for a folder.
    """
    state = {name: value.detach().to("cpu").contiguous() for name, value in model.state_dict().items()}
    write_model(folder, config_of(model), state)


def write_model(folder: Path, config: ModelConfig, state: Mapping[str, Tensor]) -> None:
    """Write the two files: contiguous CPU tensors under our names, then the configuration. Raises StorageError."""
    write_safetensors(folder / WEIGHTS_FILE, state)
    write_json(folder / CONFIG_FILE, to_our_json(config))


def load_model(folder: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Read what `save_model` wrote: the configuration, and the tensors by the names of the model's state dict."""
    path = folder / CONFIG_FILE
    content = read_json(path)
    if not is_ours(content):
        raise InputError("record-foreign", f"{path} is not of bertbench: convert the folder to bertbench's format")
    return from_our_json(content, path), read_tensors(folder / WEIGHTS_FILE)


def is_model_folder(folder: Path) -> bool:
    """Return whether `folder` has a `config.json` written by bertbench."""
    return is_ours(read_notes(folder / CONFIG_FILE))


def config_of(model: nn.Module) -> ModelConfig:
    """Return a model's own ModelConfig or its encoder's."""
    configs: list[Any] = [getattr(owner, "config", None) for owner in (model, getattr(model, "encoder", None))]
    return next(config for config in configs if isinstance(config, ModelConfig))


def check_new_folder(path: Path) -> None:
    """Raise UsageError if `path` is a file, a folder with something in it, or the current folder."""
    with storage_errors(path):
        taken = any(path.iterdir()) or path.resolve() == Path.cwd() if path.is_dir() else path.exists()
    if taken:
        raise UsageError("folder-occupied", f"{path} already exists: choose a new folder")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; rename it to `path` on success, remove it on failure.

    Raises UsageError (as `check_new_folder`), StorageError; nothing is left behind.
    """
    check_new_folder(path)
    final = path.resolve()
    with storage_errors(path):
        final.parent.mkdir(parents=True, exist_ok=True)
        temporary = final.with_name(f".{final.name}.{secrets.token_hex(4)}.tmp")
        temporary.mkdir()
    try:
        yield temporary
        with storage_errors(path):
            sync_folder(temporary)
            temporary.replace(final)  # over an empty folder, too
            sync_folder(final.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names in `folder`: they outlive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
