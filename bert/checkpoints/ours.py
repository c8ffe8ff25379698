"""Our own folder of a model: `model.safetensors` under our names and `config.json` with the fields of ModelConfig."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bert.checkpoints.model_config import from_our_json, is_ours, to_our_json
from bert.checkpoints.tensor_files import read_tensors, write_safetensors
from bert.model.config import ModelConfig
from common.atomic import write_json
from common.errors import InputError, UsageError
from common.reading import read_json

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"


def save_model(folder: Path, model: nn.Module) -> None:
    """Write the two files of a model with a ModelConfig as its own or its encoder's `config` into `folder`.

    Each file is written atomically; bert.checkpoints.folder.new_folder does the same for a folder.

    Raises:
        UsageError: the model has no ModelConfig.
        StorageError: a file cannot be written or the disk is full.
    """
    config = config_of(model)
    state = {name: value.detach().to("cpu").contiguous() for name, value in model.state_dict().items()}
    write_model(folder, config, state)


def write_model(folder: Path, config: ModelConfig, state: Mapping[str, Tensor]) -> None:
    """Write the two files: contiguous CPU tensors under our names, then the configuration. Raises StorageError."""
    write_safetensors(folder / WEIGHTS_FILE, state)
    write_json(folder / CONFIG_FILE, to_our_json(config))


def load_model(folder: Path) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Read what `save_model` wrote.

    Returns:
        The configuration, and the tensors on the CPU by the names of the model's state dict.
    """
    path = folder / CONFIG_FILE
    content = read_json(path)
    if not is_ours(content):
        raise InputError(
            "record-foreign", f"{path} is not of bertbench: run `bertbench convert {folder} NEW --to bertbench`"
        )
    return from_our_json(content, path), read_tensors(folder / WEIGHTS_FILE)


def is_model_folder(folder: Path) -> bool:
    """Return whether `folder` has a `config.json` written by bertbench."""
    try:
        return is_ours(read_json(folder / CONFIG_FILE))
    except InputError:
        return False


def config_of(model: nn.Module) -> ModelConfig:
    """Return a model's own ModelConfig or its encoder's. Raises UsageError if it has none."""
    for owner in (model, getattr(model, "encoder", None)):
        config: Any = getattr(owner, "config", None)
        if isinstance(config, ModelConfig):
            return config
    raise UsageError("model-unsupported", f"{type(model).__name__} has no ModelConfig: save a BERT model")
