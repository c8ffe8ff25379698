"""Files of named tensors: safetensors, read and written; PyTorch's own, read without running what they hold."""

import os
import pickle  # nosec B403 # for the name of its error
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from common.atomic import atomic_path
from common.errors import InputError, first_line
from common.reading import read_errors, read_json

# Where training scripts keep the weights among the rest (NVIDIA: "model").
_NESTED = ("model", "state_dict", "model_state_dict", "module")
_REMEDY = "copy it again from its source"


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write contiguous tensors on the CPU to `path`, atomically. Raises StorageError."""
    from safetensors.torch import save_file

    with atomic_path(path) as temporary, safetensors_errors():
        # Hugging Face's readers require the framework's name.
        save_file(dict(tensors), temporary, metadata={"format": "pt"})


@contextmanager
def safetensors_errors() -> Iterator[None]:
    """Turn an error of the system that the library met into OSError."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        code = int(number[1])
        raise OSError(code, os.strerror(code)) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, of a PyTorch file, or of all the files that an index.json names."""
    from safetensors.torch import load_file

    with read_errors(path, "give a file that can be read"), path.open("rb") as file:
        start = file.read(200)
    if not start:
        raise InputError("file-empty", f"{path} is empty: {_REMEDY}")
    if start.startswith(b"version https://git-lfs"):
        raise InputError("file-format", f"{path} is a Git LFS pointer: run `git lfs pull`")
    if path.name.endswith(".index.json"):
        return _read_shards(path)
    is_pytorch = start.startswith((b"PK\x03\x04", b"\x80")) and start[8:9] != b"{"  # a header's length may begin so
    try:
        tensors = _state_dict(_read_pytorch(path)) if is_pytorch else load_file(path)
    except InputError:
        raise
    except Exception as error:  # a damaged file can fail in every way there is
        kind = "PyTorch" if is_pytorch else "safetensors"
        raise InputError(
            "file-damaged", f"{path} is damaged or not a {kind} file ({first_line(error)}): {_REMEDY}"
        ) from error
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
    absent = sorted(weight_map.keys() - tensors.keys())
    if absent:
        raise InputError(
            "file-damaged", f"the files beside {index} lack {len(absent)} tensors ({absent[0]}): copy all again"
        )
    return tensors


def _read_pytorch(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of TypedStorage, which nobody here can change
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "GLOBAL" not in str(error):
            raise
        raise InputError(
            "file-unsafe", f"{path} holds Python objects that could run code: save the state_dict() alone"
        ) from error


def _state_dict(content: Any) -> dict[str, Tensor]:
    """Return the named tensors of what a training script saved."""
    while inner := [
        content[key] for key in _NESTED if isinstance(content, dict) and isinstance(content.get(key), dict)
    ]:
        content = inner[0]
    pairs = content.items() if isinstance(content, dict) else ()
    return {name: value.detach() for name, value in pairs if isinstance(value, Tensor)}
