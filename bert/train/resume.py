"""What a run may start or resume from, and which settings may change.

To resume in the same folder, `check_resumable`:

- the same: shape of the model, and what `_FIXED` names, training data (by content, its folder may have moved) and
  vocabulary. To change one of them, start a new run or phase in another folder with `init`.
- free, with a warning because the run is no longer the same: `_CHANGES_THE_RUN` (`steps` not below the updates made),
  global batch size, and versions of Python, PyTorch and NumPy. The data position counts samples: the first sample that
  was not trained on comes next. Schedule and intervals count updates of any size; the learning rate is not rescaled.
- free, with a warning: `_CHANGES_THE_SPLIT`. The samples and their order stay the same (in shards binned by length the
  order in which bins take turns does not; synthetic batches are counted, in whole ones); losses agree up to rounding,
  and dropout draws other numbers. A new rank seeds its generators from (seed, rank, updates made).
- free and silent: all else, such as intervals and evaluation. With other evaluation data or another score, the best
  checkpoint is chosen again, with a note.

Beginning a new run or phase from `init`, `find_initial`: weights are taken, and the optimizer's moments with the
number of steps their bias correction has seen where the optimizer is the same; updates, schedule, data position, loss
scaling and random numbers begin again. The shape and the vocabulary must be the same; the rest may differ. Weights
alone may be in any form that `bertbench convert` reads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert.checkpoints.ours import is_model_folder
from bert.checkpoints.read import Found, find_checkpoint
from bert.data.lengths import is_synthetic
from bert.data.vocabulary import either_fingerprint
from bert.tasks.base import DataIdentity
from bert.train.checkpoint import (
    OPTIMIZER_FILE,
    STATE_FILE,
    Checkpoint,
    checkpoint_path,
    latest,
    read,
    saved_steps,
    versions,
)
from bert.train.settings import TrainSettings
from common.errors import InputError, UsageError
from common.flags import flag

CHECKPOINTS_FOLDER = "checkpoints"
"""Name of the folder of checkpoints in a run's folder; `init` finds them there."""

_FIXED = ("task", "task_options", "optimizer", "seed", "seq_len")
_CHANGES_THE_RUN = (
    "learning_rate", "schedule", "warmup", "steps", "weight_decay", "max_grad_norm", "dropout", "precision",
    "max_predictions", "global_batch_size",
)  # fmt: skip
_CHANGES_THE_SPLIT = (
    "micro_batch_size", "grad_accum_steps", "world_size", "strategy", "strategy_options", "padding", "levers",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Initial:
    """Weights that a new run begins from."""

    weights: Path
    """Folder or file of the model's weights."""
    checkpoint: Checkpoint | None
    """The checkpoint they are part of; None if they are weights alone."""
    found: Found | None = None
    """What they are, where they are weights alone."""


def check_resumable(settings: TrainSettings, data: DataIdentity, checkpoint: Checkpoint) -> list[str]:
    """Return warnings about changes since a checkpoint that still allow resuming."""
    state = checkpoint.state
    for name, (before, now) in _changes(state.settings, settings, _FIXED).items():
        raise UsageError(
            "settings-changed",
            f"{checkpoint.path} was saved with {flag(name)} {before}, but this run has {flag(name)} {now}: keep "
            f"{before}, or train in another folder with --init {checkpoint.path}",
        )
    made = state.applied_steps
    if settings.steps < made:
        raise UsageError(
            "option-value", f"--steps {settings.steps}: {checkpoint.path} already has {made} updates; give more"
        )
    _check_data(data, checkpoint)
    now = versions()
    other = {name: (was, now[name]) for name, was in state.versions.items() if was != now.get(name, was)}
    run = _changes(state.settings, settings, _CHANGES_THE_RUN) | other
    split = _changes(state.settings, settings, _CHANGES_THE_SPLIT)
    effects = ((run, "it differs from the original run"), (split, "its losses agree up to rounding and dropout"))
    warnings = [
        f"from update {made} the run continues with "
        + ", ".join(f"{name} {now} instead of {before}" for name, (before, now) in changes.items())
        + f": {effect}"
        for changes, effect in effects
        if changes
    ]
    if "global_batch_size" in run:
        left = (settings.steps - made) * settings.global_batch_size
        warnings.append(
            f"the data continues after the {state.samples_seen} samples seen so far with {left} samples; the learning "
            "rate is not rescaled"
        )
    return warnings


def changed_settings(settings: TrainSettings, checkpoint: Checkpoint) -> dict[str, tuple[Any, Any]]:
    """Return what was (first) and is (second) of each setting that a run trains with and that has changed."""
    return _changes(checkpoint.state.settings, settings, (*_CHANGES_THE_RUN, *_CHANGES_THE_SPLIT))


def _changes(saved: TrainSettings, settings: TrainSettings, names: tuple[str, ...]) -> dict[str, tuple[Any, Any]]:
    pairs = {name: (getattr(saved, name), getattr(settings, name)) for name in names}
    return {name: (before, now) for name, (before, now) in pairs.items() if before != now}


def _check_data(data: DataIdentity, checkpoint: Checkpoint) -> None:
    saved = checkpoint.state.data
    if is_synthetic(saved.source) or is_synthetic(data.source):
        if saved.source == data.source:
            return
    else:
        _check_vocabulary(data, checkpoint)
        if saved.fingerprint == data.fingerprint:
            return
    missing = [name for name in saved.shards if name not in data.shards]
    if missing and len(missing) < len(saved.shards):
        raise InputError(
            "data-missing",
            f"{data.source} lacks {len(missing)} of the {len(saved.shards)} shards that {checkpoint.path} was trained "
            f"on, {missing[0]} first: restore them",
        )
    raise InputError(
        "data-mismatch",
        f"{checkpoint.path} was trained on other data of {saved.source} than {data.source} has: give the same, or "
        f"train in another folder with --init {checkpoint.path}",
    )


def _check_vocabulary(data: DataIdentity, checkpoint: Checkpoint) -> None:
    saved = checkpoint.state.data
    if None in (saved.vocabulary, data.vocabulary) or saved.vocabulary == data.vocabulary:
        return
    raise InputError(
        "vocabulary-mismatch",
        f"{checkpoint.path} has the vocabulary of {saved.source} ({saved.vocab_size}), not of {data.source} "
        f"({data.vocab_size}): prepare the data with the same vocabulary",
    )


def find_initial(settings: TrainSettings, data: DataIdentity, warn: Callable[[str], None]) -> Initial:
    """Find what `settings.init` names, which a run on `data` begins from, as find_weights does."""
    assert settings.init is not None
    needed = f"this run needs a checkpoint of a {settings.preset} model with {settings.vocab_size} word pieces"
    return find_weights(Path(settings.init), data, warn, needed)


def find_weights(path: Path, data: DataIdentity, warn: Callable[[str], None], needed: str) -> Initial:
    """Find the weights that a path names, which are to be used on some data.

    Args:
        path: a checkpoint, a folder (or a run's folder) of them, or weights of any form.
        data: what they are to be used on.
        warn: called for each damaged checkpoint that is skipped.
        needed: what the message says where there is nothing of that kind.
    """
    path = _weights_alone(path) or path
    checkpoint = _own_checkpoint(path, warn)
    if checkpoint is not None:
        _check_vocabulary(data, checkpoint)
        return Initial(checkpoint.path, checkpoint)
    try:
        found = find_checkpoint(path)
    except InputError as error:
        raise InputError(error.code, f"{error}; {needed}: a run, a folder step-..., or weights") from error
    given = data.vocabulary
    if found.vocab is not None and given is not None and given not in either_fingerprint(found.vocab):
        raise InputError(
            "vocabulary-mismatch",
            f"{found.vocab} differs from the vocabulary of {data.source}: prepare the data with the former",
        )
    return Initial(found.path, None, found)


def _weights_alone(path: Path) -> Path | None:
    """Return the newest folder of a run whose weights are all that it saves; None if there is no such."""
    for folder in (path, path / CHECKPOINTS_FOLDER):
        if steps := saved_steps(folder):
            newest = checkpoint_path(folder, steps[-1])
            whole = any((newest / name).exists() for name in (STATE_FILE, OPTIMIZER_FILE))
            return newest if not whole and is_model_folder(newest) else None
    return None


def _own_checkpoint(path: Path, warn: Callable[[str], None]) -> Checkpoint | None:
    if (path / STATE_FILE).is_file():
        return read(path)
    for folder in (path, path / CHECKPOINTS_FOLDER):
        if saved_steps(folder):
            return latest(folder, warn)
    return None
