"""The tensors of a checkpoint: weights, optimizer state by parameter name, random number generators."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bert.checkpoints.ours import load_model
from bert.checkpoints.tensor_files import read_tensors, write_safetensors
from bert.config import ModelConfig
from common.errors import InputError

OPTIMIZER_FILE = "optimizer.safetensors"

# What a model computes with besides its weights; the shape is the rest.
_NOT_SHAPE = ("hidden_dropout", "attention_dropout", "initializer_range", "vocab_multiple")


def rng_file(rank: int) -> str:
    """Name of the file of a rank's random number generators."""
    return f"rng-{rank}.safetensors"


def check_same_shape(saved: ModelConfig, wanted: ModelConfig, where: Path) -> None:
    """Raise InputError where a saved model is not of the shape of this run's."""
    if saved.vocab_size != wanted.vocab_size:
        raise InputError(
            f"the model in {where} has a vocabulary of {saved.vocab_size} word pieces, this run's has "
            f"{wanted.vocab_size}: use the vocabulary and vocab_size it was trained with"
        )
    names = [name for name in ModelConfig.__dataclass_fields__ if name not in _NOT_SHAPE]
    other = [name for name in names if getattr(saved, name) != getattr(wanted, name)]
    if other:
        theirs = ", ".join(f"{name}={getattr(saved, name)}" for name in other)
        ours = ", ".join(f"{name}={getattr(wanted, name)}" for name in other)
        raise InputError(
            f"the model in {where} has {theirs}, this run's has {ours}: use the preset it was trained with"
        )


def load_weights(folder: Path, model: nn.Module, config: ModelConfig) -> None:
    """Copy saved weights into a model of the same shape; the vocabulary may be padded otherwise.

    Raises:
        InputError: a file is missing or damaged, or it is another model's; both sides are named.
    """
    saved, state = load_model(folder)
    check_same_shape(saved, config, folder)
    expected = model.state_dict()
    differ = sorted(expected.keys() ^ state.keys())
    if differ:
        raise InputError(
            f"the weights in {folder} and the model of this run differ in {len(differ)} tensors, {differ[0]} first: "
            "give a pretraining checkpoint with all its heads"
        )
    fitted = {
        name: fit_vocabulary(value, expected[name], config, f"{name} of {folder}") for name, value in state.items()
    }
    with torch.no_grad():
        model.load_state_dict(fitted)


def fit_vocabulary(saved: Tensor, current: Tensor, config: ModelConfig, what: str) -> Tensor:
    """Return `saved` with the padding rows of `current` where only their number differs. Raises InputError."""
    if saved.shape == current.shape:
        return saved
    rows = config.vocab_size
    of_vocabulary = current.ndim > 0 and current.shape[0] == config.padded_vocab_size and saved.ndim == current.ndim
    if not of_vocabulary or saved.shape[1:] != current.shape[1:] or saved.shape[0] < rows:
        raise InputError(f"{what} has shape {list(saved.shape)}, this run needs {list(current.shape)}")
    return torch.cat([saved[:rows].to(current), current[rows:]])


def save_optimizer(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the tensors of the state as `<parameter>.<key>`, in their own types. Raises StorageError."""
    tensors = {
        f"{name}.{key}": value.detach().to("cpu").contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    write_safetensors(path, tensors)


def load_optimizer(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int | None, config: ModelConfig
) -> None:
    """Give an optimizer the state that `save_optimizer` wrote; options such as the weight decay stay its own.

    Args:
        path: the file.
        model: the model it was saved for, without what a strategy wraps around it.
        optimizer: over the parameters of `model`.
        steps: what it counted for all parameters together, None where each has its own count.
        config: shape of the model.

    Raises:
        InputError: the file is missing or damaged, or another optimizer's or model's.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    saved: dict[str, dict[str, Tensor]] = {}
    for full_name, value in read_tensors(path).items():
        name, _, key = full_name.rpartition(".")
        saved.setdefault(name, {})[key] = value
    differ = sorted(saved.keys() ^ set(names.values()))
    if differ:
        raise InputError(
            f"{path} and the model of this run differ in {len(differ)} parameters, {differ[0]} first: use the "
            "optimizer and preset it was saved with"
        )
    packed = optimizer.state_dict()
    ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        index: dict(_states(saved[names[parameter]], parameter, config, f"{names[parameter]} of {path}"))
        for index, parameter in enumerate(ordered)
    }
    groups = packed["param_groups"]
    if steps is not None:
        groups = [{**group, "step": steps} for group in groups]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _states(
    saved: Mapping[str, Tensor], parameter: Tensor, config: ModelConfig, what: str
) -> Iterator[tuple[str, Tensor]]:
    for key, value in saved.items():
        # A copy: what was read may be a mapping of the file, which the optimizer must not write into.
        if value.ndim == 0:
            yield key, value.clone()
        else:
            yield key, fit_vocabulary(value, torch.zeros_like(parameter), config, what).to(parameter.device, copy=True)


def shared_steps(optimizer: torch.optim.Optimizer) -> int | None:
    """Return the steps that an optimizer counts for all parameters together (LAMB); None where each has its own."""
    steps = optimizer.param_groups[0].get("step")
    return None if steps is None else int(steps)


def save_rng(path: Path, device: torch.device) -> None:
    """Write the states of PyTorch's generators, of which dropout draws. Raises StorageError."""
    tensors = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        tensors["cuda"] = torch.cuda.get_rng_state(device)
    write_safetensors(path, tensors)


def load_rng(path: Path, device: torch.device) -> bool:
    """Go on with saved generators. Return False, with nothing changed, where there are none of this device.

    Raises:
        InputError: the file is damaged.
    """
    if not path.exists():
        return False
    states = read_tensors(path)
    if "cpu" not in states or (device.type == "cuda" and "cuda" not in states):
        return False
    try:
        torch.set_rng_state(states["cpu"].clone())
        if device.type == "cuda":
            torch.cuda.set_rng_state(states["cuda"].clone(), device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"{path} holds no state of a random number generator ({error})") from error
    return True


def seed_generators(seed: int, rank: int, applied_steps: int) -> None:
    """Seed PyTorch's generators for a rank that begins after so many updates: ranks draw independently."""
    drawn = np.random.SeedSequence([seed, rank, applied_steps]).generate_state(1, np.uint64)
    torch.manual_seed(int(drawn[0]) >> 1)
