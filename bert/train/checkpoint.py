"""Checkpoints: folders that are created atomically; only the latest few are kept.

    step-0000123/
        config.json model.safetensors   the model (bert.checkpoints.files)
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
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from bert.checkpoints.files import config_of, read_tensors, sync_folder, write_model, write_safetensors
from bert.checkpoints.read import (
    FORMAT,
    OPTIMIZER_FILE,
    SCHEMA_VERSION,
    STATE_FILE,
    checkpoint_path,
    read_state,
    saved_steps,
)
from bert.checkpoints.weights import fit_vocabulary
from bert.data.vocabulary import VOCABULARY_FILE, either_fingerprint
from bert.model.config import ModelConfig
from bert.optim.lamb import Lamb
from bert.parallel.base import Moments, Strategy
from bert.speed.fp8 import scales_of
from bert.tasks.base import DataIdentity, Evaluation
from bert.train.events import Best
from bert.train.settings import TrainSettings
from common.atomic import storage_errors, write_json, write_text
from common.errors import InputError, StorageError

T = TypeVar("T")


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
    def from_json(cls, content: Mapping[str, Any], where: Path) -> "TrainState":
        """Return what `to_json` wrote to `where`. Raises InputError."""
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
        except (KeyError, TypeError, ValueError, InputError) as error:
            raise InputError("file-damaged", f"the checkpoint {where} is damaged: {error!r}") from error


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


def read(path: Path) -> Checkpoint:
    """Read the state of a whole checkpoint; raises as `read_state` does."""
    return Checkpoint(path, TrainState.from_json(read_state(path), path))


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
        scales = scales_of(model.parameters())
        if scales is not None:
            write_safetensors(temporary / scales_file(strategy.rank), collected(scales.state().items(), keep=True))

    def store(action: Callable[[], T]) -> T:
        def attempt() -> T:
            with storage_errors(final):
                return action()

        return strategy.together(attempt)

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


def rng_file(rank: int) -> str:
    """Name of the file of a rank's random number generators."""
    return f"rng-{rank}.safetensors"


def scales_file(rank: int) -> str:
    """Name of the file of a rank's scales, in a run in FP8."""
    return f"fp8-{rank}.safetensors"


def load_scales(path: Path, model: nn.Module) -> bool:
    """Continue with the saved scales of a model in FP8. Return False, with nothing changed, where there are none."""
    scales = scales_of(model.parameters())
    return path.exists() and scales is not None and scales.load_state(read_tensors(path))


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


def load_moments(path: Path, shapes: Mapping[str, torch.Size], config: ModelConfig) -> Moments:
    """Return the optimizer's state of a checkpoint's file by parameter and key, for a model of another padding, too.

    In the file it is named `<parameter>.<key>`; `shapes` and `config` are of this run's model.
    """
    moments: dict[str, dict[str, Tensor]] = {}
    for full_name, value in read_tensors(path).items():
        name, _, key = full_name.rpartition(".")
        states = moments.setdefault(name, {})
        states[key] = fit_vocabulary(name, value, shapes[name], config, padding=0.0) if name in shapes else value
    differ = sorted(moments.keys() ^ shapes.keys())
    if differ:
        raise InputError(
            "weights-mismatch",
            f"{path} and the model of this run differ in {len(differ)} parameters, {differ[0]} first: use the "
            "optimizer and preset it was saved with",
        )
    return moments
