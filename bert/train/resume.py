"""What a run may start or resume from, and which settings may change.

To resume in the same folder, `check_resumable`:

- the same: shape of the model, options of the task, vocabulary, training data (by content, its folder may have moved),
  sequence length, optimizer and seed. To change one of them, start a new run or phase in another folder with `init`.
- free, with a warning because the run is no longer the same: learning rate, schedule, warm-up,
  number of updates (not below those made), weight decay, clipping, dropout, precision, what synthetic data predicts.
- free, with a warning: global batch size. The data position counts samples: the first sample that was not
  trained on comes next; no sample is skipped or repeated. Schedule, number of updates and the intervals of saving and
  evaluating count updates of any size; the learning rate is not rescaled.
- free, with a warning: micro-batch, accumulation, devices, strategy and its options, padding, optimizations. The
  samples and their order stay the same (in shards binned by length the order in which bins take turns does not;
  synthetic batches are counted, in whole ones); losses then agree up to rounding, where they are means over samples,
  and dropout draws other numbers. The loss of masked words is a mean over those of a micro batch, which the number of
  ranks changes with the optimization `balance`. A new rank seeds its generators from (seed, rank, updates made).
- free, with a warning: versions of Python, PyTorch and NumPy; losses then agree up to rounding.
- free and silent: activation checkpointing, intervals of logging, evaluating and saving, evaluation data, how many
  checkpoints stay, `init`. With other evaluation data or another score, the best checkpoint is chosen again, with a
  note.

Beginning a new run or phase from `init`, `find_initial`: weights are taken, and the optimizer's moments with the
number of steps their bias correction has seen where the optimizer is the same; updates, schedule, data position, loss
scaling and random numbers begin again. The shape and the vocabulary must be the same; the rest may differ. Weights
alone may be in any form that `bertbench convert` reads.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert.checkpoints.ours import is_model_folder
from bert.checkpoints.read import Found, find_checkpoint
from bert.data.lengths import is_synthetic
from bert.data.vocabulary import either_fingerprint
from bert.parallel.base import Strategy
from bert.tasks.base import DataIdentity
from bert.train.agreement import text_of_first, together
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
    "max_predictions",
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
    saved = checkpoint.state.settings
    for name in _FIXED:
        before, now = getattr(saved, name), getattr(settings, name)
        if before != now:
            raise UsageError(
                "settings-changed",
                f"{checkpoint.path} was saved with {_said(name)} {before}, but this run has {_said(name)} {now}: keep "
                f"{before}, or start a new run or phase in another folder with --init {checkpoint.path}",
            )
    made = checkpoint.state.applied_steps
    if settings.steps < made:
        raise UsageError(
            "option-value", f"--steps {settings.steps}: {checkpoint.path} already has {made} updates; give more"
        )
    _check_data(data, checkpoint)
    warnings = []
    changed = _in_words(_changes(saved, settings, _CHANGES_THE_RUN))
    if changed:
        warnings.append(f"from update {made} the run continues with {changed}: it differs from the original run")
    split = _in_words(_changes(saved, settings, _CHANGES_THE_SPLIT))
    if saved.global_batch_size != settings.global_batch_size:
        warnings.append(_other_batch(settings, checkpoint, split))
    elif split:
        warnings.append(
            f"from update {made} the run continues with {split}: the samples stay the same, and the losses agree with "
            "those of the former split up to rounding and dropout"
        )
    now = versions()
    before = {name: version for name, version in checkpoint.state.versions.items() if name in now}
    other = _in_words({name: (before[name], now[name]) for name in before if before[name] != now[name]})
    if other:
        warnings.append(
            f"from update {made} the run continues with {other}: its losses agree with those of an uninterrupted run "
            "up to rounding"
        )
    return warnings


def _said(name: str) -> str:
    """Option of a field; tasks have options of their own."""
    return {"task": "the task", "task_options": "the options of the task"}.get(name) or flag(name)


def changed_settings(settings: TrainSettings, checkpoint: Checkpoint) -> dict[str, tuple[Any, Any]]:
    """Return what was (first) and is (second) of each setting that a run trains with and that has changed."""
    names = (*_CHANGES_THE_RUN, "global_batch_size", *_CHANGES_THE_SPLIT)
    return _changes(checkpoint.state.settings, settings, names)


def _other_batch(settings: TrainSettings, checkpoint: Checkpoint, split: str) -> str:
    state, size = checkpoint.state, settings.global_batch_size
    left = settings.steps - state.applied_steps
    return (
        f"from update {state.applied_steps} the run continues with global_batch_size {size} instead of "
        f"{state.settings.global_batch_size}{f', {split}' if split else ''}: the data continues after the "
        f"{state.samples_seen} samples seen so far; schedule and steps count updates, and {left} more updates are "
        f"{left * size} samples; the learning rate is not rescaled"
    )


def _changes(saved: TrainSettings, settings: TrainSettings, names: tuple[str, ...]) -> dict[str, tuple[Any, Any]]:
    pairs = {name: (getattr(saved, name), getattr(settings, name)) for name in names}
    return {name: (before, now) for name, (before, now) in pairs.items() if before != now}


def _in_words(changes: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name} {now} instead of {before}" for name, (before, now) in changes.items())


def _check_data(data: DataIdentity, checkpoint: Checkpoint) -> None:
    saved = checkpoint.state.data
    if is_synthetic(saved.source) or is_synthetic(data.source):
        if saved.source != data.source:
            raise UsageError(
                "data-mismatch",
                f"{checkpoint.path} was trained on {saved.source}, but this run uses {data.source}: keep "
                f"{saved.source}, or start a new run in another folder with --init {checkpoint.path}",
            )
        return
    _check_vocabulary(data, checkpoint)
    if saved.fingerprint == data.fingerprint:
        return
    if not saved.shards:
        raise InputError(
            "data-mismatch",
            f"{checkpoint.path} was trained on {saved.source}, but {data.source} holds different data: give the same "
            f"data, or start a new run in another folder with --init {checkpoint.path}",
        )
    missing = [name for name in saved.shards if name not in set(data.shards)]
    if missing and len(missing) < len(saved.shards):
        raise InputError(
            "data-missing",
            f"{data.source} lacks {len(missing)} of the {len(saved.shards)} shards that {checkpoint.path} was trained "
            f"on, {missing[0]} first: restore them",
        )
    raise InputError(
        "data-mismatch",
        f"the shards in {saved.source} of {checkpoint.path} differ from {data.source}: give the same, or "
        f"--init {checkpoint.path} in another folder",
    )


def _check_vocabulary(data: DataIdentity, checkpoint: Checkpoint) -> None:
    saved = checkpoint.state.data
    if saved.vocabulary is None or data.vocabulary is None or saved.vocabulary == data.vocabulary:
        return
    raise InputError(
        "vocabulary-mismatch",
        f"{checkpoint.path} has the vocabulary of {saved.source} ({saved.vocab_size}), not of {data.source} "
        f"({data.vocab_size}): prepare the data with the same vocabulary",
    )


def find_initial(settings: TrainSettings, data: DataIdentity, warn: Callable[[str], None], whole: bool) -> Initial:
    """Find what `settings.init` names: a checkpoint, a folder (or a run's folder) of them, or weights of any form.

    Args:
        settings: of the run that begins.
        data: what it trains on.
        warn: called for each damaged checkpoint that is skipped.
        whole: check all bytes of a checkpoint, not only the sizes of its files.
    """
    assert settings.init is not None
    needed = f"this run needs a checkpoint of a {settings.preset} model with {settings.vocab_size} word pieces"
    return find_weights(Path(settings.init), data, warn, needed, whole)


def initial_on_all(
    settings: TrainSettings, data: DataIdentity, strategy: Strategy, warn: Callable[[str], None]
) -> Initial:
    """Return what `find_initial` gives on the first rank, on every rank; raises as it does, on every rank.

    The first rank alone reads all bytes of a checkpoint. The others receive its choice: they would not
    notice that a newer one is damaged.
    """
    found = together(strategy, lambda: find_initial(settings, data, warn, True) if strategy.rank == 0 else None)
    taken = text_of_first(strategy, "" if found is None or found.checkpoint is None else str(found.checkpoint.path))
    same = dataclasses.replace(settings, init=taken or settings.init)
    return together(strategy, lambda: found or find_initial(same, data, warn, False))


def find_weights(
    path: Path, data: DataIdentity, warn: Callable[[str], None], needed: str, whole: bool = True
) -> Initial:
    """Find the weights that a path names, which are to be used on some data; otherwise as find_initial.

    Args:
        path: a checkpoint, a folder (or a run's folder) of them, or weights of any form.
        data: what they are to be used on.
        warn: called for each damaged checkpoint that is skipped.
        needed: what the message says where there is nothing of that kind.
        whole: check all bytes of a checkpoint, not only the sizes of its files.
    """
    path = _weights_alone(path) or path
    checkpoint = _own_checkpoint(path, warn, whole)
    if checkpoint is not None:
        _check_vocabulary(data, checkpoint)
        return Initial(checkpoint.path, checkpoint)
    try:
        found = find_checkpoint(path)
    except InputError as error:
        # A missing file is reported once.
        why = "" if str(error).startswith(f"{path} does not exist: ") else f"; {error}"
        raise InputError(
            error.code,
            f"{_what_is(path)}, but {needed}: a folder step-..., a run folder, or anything that `bertbench convert` "
            f"reads{why}",
        ) from error
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


def _own_checkpoint(path: Path, warn: Callable[[str], None], whole: bool) -> Checkpoint | None:
    if (path / STATE_FILE).is_file():
        return read(path, whole)
    for folder in (path, path / CHECKPOINTS_FOLDER):
        if saved_steps(folder):
            return latest(folder, warn, whole)
    return None


def _what_is(path: Path) -> str:
    if not path.exists():
        return f"{path} does not exist"
    if not path.is_dir():
        return f"{path} is a file"
    names = sorted(entry.name for entry in path.iterdir())
    return f"{path} holds {', '.join(names[:3])}{' ...' if len(names) > 3 else ''}" if names else f"{path} is empty"
