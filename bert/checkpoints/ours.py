"""Our own folder of a model: `model.safetensors` under our names and `config.json` with the fields of ModelConfig."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bert.checkpoints.model_config import from_our_json, is_ours, to_our_json
from bert.checkpoints.tensor_files import read_tensors, write_safetensors
from bert.model.config import ModelConfig
from common.atomic import write_json
from common.errors import InputError
from common.reading import read_json, read_notes

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


def save_model(folder: Path, model: nn.Module) -> None:
    """Write the two files of a model with a ModelConfig as its own or its encoder's `config` into `folder`.

    Each file is written atomically; bert.checkpoints.folder.new_folder does the same for a folder.
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
