"""Checkpoints: folders that are created atomically; only the latest few are kept.

    step-0000123/
        config.json model.safetensors   the model (bert.checkpoints.ours)
        vocab.txt                       the vocabulary of the data, where it is beside them
        optimizer.safetensors           moments by parameter name
        rng-<rank>.safetensors          random number generators, written by each rank
        fp8-<rank>.safetensors          scales of a run in FP8, written by each rank
        state.json                      TrainState, and size of every other file

A checkpoint is written into a temporary folder, confirmed by the disk and renamed, and removed after a rename: under
its own name it is whole at every instant. In a run over several nodes all of them must see the folder.
"""

import math
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from bert.checkpoints.folder import sync_folder
from bert.checkpoints.ours import config_of, write_model
from bert.checkpoints.tensor_files import read_tensors, write_safetensors
from bert.data.vocabulary import VOCABULARY_FILE, either_fingerprint
from bert.optim.lamb import Lamb
from bert.parallel.base import Strategy
from bert.speed.fp8 import load_scales_state, scales_state
from bert.tasks.base import DataIdentity, Evaluation
from bert.train.agreement import together
from bert.train.events import Best
from bert.train.settings import TrainSettings
from common.atomic import storage_errors, write_json, write_text
from common.errors import InputError, SchemaError, StorageError
from common.reading import read_errors, read_json

T = TypeVar("T")

STATE_FILE = "state.json"
_NAME = re.compile(r"step-(\d{7,})")
OPTIMIZER_FILE = "optimizer.safetensors"
FORMAT = "bertbench checkpoint"
SCHEMA_VERSION = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainState:
    """State of a run between two steps."""

    settings: TrainSettings
    """What the run was asked to do."""
    data: DataIdentity
    position: dict[str, Any]
    """State of the data stream after the last batch that was trained on."""
    progress: dict[str, int]
    """Updates applied and left out (bert.train.loop.Progress)."""
    samples_seen: int
    """Samples trained on, those of steps that were left out too."""
    scaler: dict[str, Any]
    """State of the loss scaling; empty if nothing is scaled."""
    optimizer_steps: int | None
    """Steps that the optimizer counts for all its parameters together; None where each has its own count."""
    evaluation: Evaluation | None
    best: Best | None = None
    """The best evaluation, whose checkpoint stays."""
    versions: dict[str, str]

    @property
    def applied_steps(self) -> int:
        """Updates made."""
        return self.progress["applied_steps"]

    def to_json(self) -> dict[str, Any]:
        """Return everything by name."""
        return {
            "format": FORMAT,
            "schema_version": SCHEMA_VERSION,
            **{part.name: getattr(self, part.name) for part in fields(self)},
            "settings": self.settings.to_json(),
            "data": asdict(self.data),
            "evaluation": None if self.evaluation is None else _plain(self.evaluation),
            "best": None if self.best is None else asdict(self.best),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "TrainState":
        """Return what `to_json` wrote. Raises InputError for a damaged state, SchemaError for another version's."""
        version = content.get("schema_version")
        if content.get("format") != FORMAT:
            raise InputError("record-foreign", "it is not a bertbench checkpoint")
        if version != SCHEMA_VERSION:
            raise SchemaError(
                "record-version",
                f"it has schema {version}, but this bertbench reads {SCHEMA_VERSION}: use the version that wrote it",
            )
        try:
            values = {part.name: content[part.name] for part in fields(cls)}
            best, evaluation = values["best"], values["evaluation"]
            values |= {
                "settings": TrainSettings.from_json(values["settings"]),
                "data": DataIdentity(**values["data"]),
                "evaluation": evaluation and Evaluation(**{**evaluation, "values": _numbers(evaluation["values"])}),
                "best": best and Best(**best),
            }
            return cls(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("file-damaged", f"its state is damaged ({error!r})") from error


def _plain(evaluation: Evaluation) -> dict[str, Any]:
    """What was found, None if it is not finite, which JSON has no word for."""
    values = {name: value if math.isfinite(value) else None for name, value in evaluation.values.items()}
    return {**asdict(evaluation), "values": values}


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in values.items()}


def versions() -> dict[str, str]:
    """Return the versions of what numbers depend on."""
    return {"python": platform.python_version(), "torch": str(torch.__version__), "numpy": np.__version__}


def vocabulary_text(data: DataIdentity) -> str | None:
    """Return the vocab.txt beside the data; None if there is none, or another one than they were made with."""
    if data.vocabulary is None:
        return None
    source = Path(data.source).joinpath(*data.shards[:1])
    folder = source if source.is_dir() else source.parent
    for path in (folder / VOCABULARY_FILE, *sorted(folder.glob(f"*.{VOCABULARY_FILE}"))):
        if path.is_file() and data.vocabulary in either_fingerprint(path):
            return path.read_text(encoding="utf-8")
    return None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint."""

    path: Path
    state: TrainState
    """State of the run."""


def checkpoint_path(folder: Path, applied_steps: int) -> Path:
    """Folder of the checkpoint after so many updates."""
    return folder / f"step-{applied_steps:07d}"


def saved_steps(folder: Path) -> list[int]:
    """Updates after which there are checkpoints in `folder`, ascending, whole or not. Raises InputError."""
    with read_errors(folder, "choose another folder"):
        names = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))


def save(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: TrainState,
    strategy: Strategy,
    vocabulary: str | None = None,
) -> tuple[Path, int]:
    """Write a checkpoint and remove those beyond the latest `state.settings.keep`; every rank must call it.

    That of the best evaluation stays too.

    Args:
        folder: where the checkpoints of the run lie.
        model: the one that the strategy has wrapped, without what is around it.
        optimizer: over its parameters.
        state: where the run stands, the same on every rank.
        strategy: the ranks.
        vocabulary: content of the vocab.txt to put beside the weights.

    Returns:
        Its folder and the size of its files in bytes (0 on other ranks than the first).

    Raises:
        StorageError: on every rank, where one of them could not write; earlier checkpoints are as they were.
    """
    final = checkpoint_path(folder, state.applied_steps)
    temporary = final.with_name(f".{final.name}.new")
    first = strategy.rank == 0

    def begin() -> None:
        if first:
            remove_left_overs(folder)
            temporary.mkdir(parents=True)

    def write_own() -> None:
        if not temporary.is_dir():
            raise StorageError(
                "nodes-disagree", f"rank {strategy.rank} does not see {temporary}: use a folder shared by all nodes"
            )
        save_rng(temporary / rng_file(strategy.rank), strategy.device)
        scales = scales_state(model)
        if scales:
            write_safetensors(temporary / scales_file(strategy.rank), collected(scales.items(), keep=True))

    def store(action: Callable[[], T]) -> T:
        def attempt() -> T:
            with storage_errors(final):
                return action()

        return together(strategy, attempt)

    try:
        store(begin)
        store(write_own)
        # Ranks that hold parts put them together here, outside of what may fail on one of them alone.
        parts = collected(strategy.weights(model), first)
        store(lambda: write_model(temporary, config_of(model), parts) if first else None)
        moments = strategy.moments(model, optimizer)
        parts = collected(((f"{name}.{key}", value) for name, key, value in moments), first)
        store(lambda: write_safetensors(temporary / OPTIMIZER_FILE, parts) if first else None)
        return final, store(lambda: _finish(temporary, final, state, vocabulary) if first else 0)
    except BaseException:
        if first:
            shutil.rmtree(temporary, ignore_errors=True)
        raise


def _finish(temporary: Path, final: Path, state: TrainState, vocabulary: str | None) -> int:
    """Write state.json, which makes a checkpoint of the files, and give the folder its name; return the bytes."""
    if vocabulary is not None:
        write_text(temporary / VOCABULARY_FILE, vocabulary)
    sizes = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
    write_json(temporary / STATE_FILE, {**state.to_json(), "files": sizes})
    sync_folder(temporary)
    if final.exists():  # damaged, or of an abandoned course
        _remove(final)
    temporary.rename(final)
    sync_folder(final.parent)
    _prune(final.parent, state)
    return sum(path.stat().st_size for path in final.iterdir())


def _prune(folder: Path, state: TrainState) -> None:
    # Newer ones are damaged, or the run would have begun from them: they do not count, and are written again in time.
    earlier = [step for step in saved_steps(folder) if step <= state.applied_steps]
    for step in earlier[: -state.settings.keep]:
        if state.best is None or step != state.best.applied_steps:
            _remove(checkpoint_path(folder, step))


def _remove(path: Path) -> None:
    old = path.with_name(f".{path.name}.old")
    path.rename(old)
    shutil.rmtree(old, ignore_errors=True)


def remove_left_overs(folder: Path) -> None:
    """Remove what an interrupted process left half written or half removed; the folder's lock must be held."""
    for path in folder.glob(".step-*"):
        shutil.rmtree(path, ignore_errors=True)


def latest(folder: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    """Return the newest undamaged checkpoint in `folder`; damaged newer ones are named to `warn`. None: there is none.

    Raises:
        InputError: all are damaged.
        SchemaError: another version wrote it.
    """
    steps = saved_steps(folder)
    for step in reversed(steps):
        try:
            return read(checkpoint_path(folder, step))
        except SchemaError:
            raise
        except InputError as error:
            warn(f"{error}; the previous checkpoint is used")
    if steps:
        raise InputError("checkpoint-missing", f"all {len(steps)} checkpoints in {folder} are damaged: remove them")
    return None


def read(path: Path) -> Checkpoint:
    """Read a checkpoint's state and check the sizes of its files.

    Raises:
        InputError: it is not a checkpoint, or damaged; the message names what is wrong.
        SchemaError: another version wrote it.
    """
    content = read_json(path / STATE_FILE)
    try:
        state = TrainState.from_json(content)
    except InputError as error:
        raise type(error)(error.code, f"the checkpoint {path} cannot be used: {error}") from error
    for name, size in content["files"].items():
        file = path / name
        present = file.stat().st_size if file.is_file() else 0
        if present != size:
            raise InputError("file-damaged", f"the checkpoint {path} is damaged: {name} has {present} of {size} bytes")
    return Checkpoint(path, state)


def rng_file(rank: int) -> str:
    """Name of the file of a rank's random number generators."""
    return f"rng-{rank}.safetensors"


def scales_file(rank: int) -> str:
    """Name of the file of a rank's scales, in a run in FP8."""
    return f"fp8-{rank}.safetensors"


def load_scales(path: Path, model: nn.Module) -> bool:
    """Continue with the saved scales of a model in FP8. Return False, with nothing changed, where there are none."""
    return path.exists() and load_scales_state(model, read_tensors(path))


def collected(tensors: Iterable[tuple[str, Tensor]], keep: bool) -> dict[str, Tensor]:
    """Take all tensors as they come and return them on the CPU by name; with `keep` false they are let go of."""
    found = {}
    for name, value in tensors:
        if keep:
            found[name] = value.detach().to("cpu").contiguous()
    return found


def shared_steps(optimizer: torch.optim.Optimizer) -> int | None:
    """Return the steps that an optimizer counts for all parameters together (LAMB); None where each has its own."""
    return optimizer.steps if isinstance(optimizer, Lamb) else None


def save_rng(path: Path, device: torch.device) -> None:
    """Write the states of PyTorch's generators, of which dropout draws. Raises StorageError."""
    tensors = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        tensors["cuda"] = torch.cuda.get_rng_state(device)
    write_safetensors(path, tensors)


def load_rng(path: Path, device: torch.device) -> bool:
    """Continue with saved generators. Return False, with nothing changed, where there are none of this device."""
    if not path.exists():
        return False
    states = read_tensors(path)
    if device.type == "cuda" and "cuda" not in states:
        return False
    torch.set_rng_state(states["cpu"].clone())
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"].clone(), device)
    return True


def seed_generators(seed: int, rank: int, applied_steps: int) -> None:
    """Seed PyTorch's generators for a rank that begins after so many updates: ranks draw independently."""
    drawn = np.random.SeedSequence([seed, rank, applied_steps]).generate_state(1, np.uint64)
    torch.manual_seed(int(drawn[0]) >> 1)
