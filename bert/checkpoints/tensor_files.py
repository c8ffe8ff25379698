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
    with read_errors(path, "give a file that can be read"), path.open("rb") as file:
        start = file.read(200)
    if not start:
        raise InputError("file-empty", f"{path} is empty: {_REMEDY}")
    if start.startswith(b"version https://git-lfs"):
        raise InputError("file-format", f"{path} is a Git LFS pointer: run `git lfs pull`")
    if path.name.endswith(".index.json"):
        return _read_shards(path)
    if start[8:9] == b"{" and not start.startswith(b"PK"):  # the length before it may begin with 80 too
        return _read_safetensors(path)
    if start.startswith((b"PK\x03\x04", b"\x80")):
        return _read_pytorch(path)
    raise InputError(
        "file-format",
        f"{path} is neither a safetensors nor a PyTorch file: give model.safetensors or pytorch_model.bin",
    )


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return _checked(load_file(path), path)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise InputError(
            "file-damaged", f"{path} is damaged or not a safetensors file ({first_line(error)}): {_REMEDY}"
        ) from error


def _read_shards(index: Path) -> dict[str, Tensor]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError("file-format", f"{index} has no weight_map: give the index of a sharded checkpoint")
    tensors: dict[str, Tensor] = {}
    for name in sorted({str(file) for file in weight_map.values()}):
        # A name with a path in it could read any file of this machine.
        if name in ("", ".", "..") or "/" in name or "\\" in name or name.endswith(".index.json"):
            raise InputError("file-unsafe", f"{index} lists the file {name[:200]!r}: all files must be beside it")
        for key, tensor in read_tensors(index.with_name(name)).items():
            if weight_map.get(key) == name:
                tensors[key] = tensor
    absent = sorted(weight_map.keys() - tensors.keys())
    if absent:
        raise InputError(
            "file-damaged", f"the files beside {index} lack {len(absent)} tensors ({absent[0]}): copy all again"
        )
    return tensors


def _read_pytorch(path: Path) -> dict[str, Tensor]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of TypedStorage, which nobody here can change
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        named = re.search(r"(?:GLOBAL|unsupported class|unrecognized function) (\S+)", str(error), re.IGNORECASE)
        if named is None:
            raise InputError(
                "file-damaged", f"{path} is damaged or not a file of PyTorch weights: {_REMEDY}"
            ) from error
        raise InputError(
            "file-unsafe", f"{path} holds Python objects ({named[1]}) that could run code: save the state_dict() alone"
        ) from error
    except Exception as error:  # a damaged pickle can fail in every way there is
        raise InputError(
            "file-damaged", f"{path} is damaged or not a PyTorch file ({first_line(error)}): {_REMEDY}"
        ) from error
    return _checked(_state_dict(content, path), path)


def _state_dict(content: Any, path: Path) -> Mapping[str, Tensor]:
    found = content
    for _ in range(3):
        if not isinstance(found, Mapping):
            break
        inner = next((found[key] for key in _NESTED if isinstance(found.get(key), Mapping)), None)
        if inner is None:
            break
        found = inner
    if not isinstance(found, Mapping):
        raise InputError("file-format", f"{path} holds a {type(found).__name__}: give a file with a model's state dict")
    tensors = {name: value for name, value in found.items() if isinstance(name, str) and isinstance(value, Tensor)}
    if not tensors:
        keys = ", ".join(str(key)[:80] for key in list(found)[:5]) or "nothing"
        raise InputError("file-format", f"{path} holds no named tensors (it holds {keys}): give a state dict")
    return tensors


def _checked(tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    if not tensors:
        raise InputError("file-empty", f"{path} holds no tensors: give the weights of a model")
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise InputError("model-unsupported", f"{name} of {path} is not a dense tensor of numbers: save it as one")
        found[name] = tensor.detach()
    return found
