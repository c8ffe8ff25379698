"""The tensors of a checkpoint: weights, optimizer state by parameter name, random number generators."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from bert.checkpoints.ours import load_model
from bert.checkpoints.tensor_files import read_tensors, write_safetensors
from bert.model.config import ModelConfig
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
            "vocabulary-mismatch",
            f"the model in {where} has a vocabulary of {saved.vocab_size} word pieces, this run's has "
            f"{wanted.vocab_size}: use the vocabulary and vocab_size it was trained with",
        )
    names = [name for name in ModelConfig.__dataclass_fields__ if name not in _NOT_SHAPE]
    other = [name for name in names if getattr(saved, name) != getattr(wanted, name)]
    if other:
        theirs = ", ".join(f"{name}={getattr(saved, name)}" for name in other)
        ours = ", ".join(f"{name}={getattr(wanted, name)}" for name in other)
        raise InputError(
            "weights-mismatch",
            f"the model in {where} has {theirs}, this run's has {ours}: use the preset it was trained with",
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
            "weights-mismatch",
            f"the weights in {folder} and the model of this run differ in {len(differ)} tensors, {differ[0]} first: "
            "give a pretraining checkpoint with all its heads",
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
        raise InputError(
            "weights-mismatch", f"{what} has shape {list(saved.shape)}, this run needs {list(current.shape)}"
        )
    return torch.cat([saved[:rows].to(current), current[rows:]])


def collected(tensors: Iterable[tuple[str, Tensor]], keep: bool) -> dict[str, Tensor]:
    """Take all tensors as they come and return them on the CPU by name; with `keep` false they are let go of."""
    found = {}
    for name, value in tensors:
        if keep:
            found[name] = value.detach().to("cpu").contiguous()
    return found


def load_moments(path: Path, shapes: Mapping[str, torch.Size], config: ModelConfig) -> dict[str, dict[str, Tensor]]:
    """Return the optimizer's state of a file, in which it is named `<parameter>.<key>`, by parameter and key, for a
    model whose vocabulary may be padded otherwise.

    Args:
        path: the file.
        shapes: of the parameters of this run's model.
        config: shape of the model.

    Raises:
        InputError: the file is missing or damaged, or another optimizer's or model's.
    """
    saved: dict[str, dict[str, Tensor]] = {}
    for full_name, value in read_tensors(path).items():
        name, _, key = full_name.rpartition(".")
        saved.setdefault(name, {})[key] = value
    differ = sorted(saved.keys() ^ shapes.keys())
    if differ:
        raise InputError(
            "weights-mismatch",
            f"{path} and the model of this run differ in {len(differ)} parameters, {differ[0]} first: use the "
            "optimizer and preset it was saved with",
        )

    def fitted(name: str, value: Tensor) -> Tensor:
        return value if value.ndim == 0 else fit_vocabulary(value, zeros[name], config, f"{name} of {path}")

    zeros = {name: torch.zeros((), dtype=torch.float32).expand(shape) for name, shape in shapes.items()}
    return {name: {key: fitted(name, value) for key, value in states.items()} for name, states in saved.items()}


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
        raise InputError("file-damaged", f"{path} holds no state of a random number generator ({error})") from error
    return True


def seed_generators(seed: int, rank: int, applied_steps: int) -> None:
    """Seed PyTorch's generators for a rank that begins after so many updates: ranks draw independently."""
    drawn = np.random.SeedSequence([seed, rank, applied_steps]).generate_state(1, np.uint64)
    torch.manual_seed(int(drawn[0]) >> 1)
