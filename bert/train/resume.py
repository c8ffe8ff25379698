"""What a run may resume or begin from, and its weights on their way into the run's model.

To resume in the same folder, `check_resumable`: shape of the model, training data (by content, their folder may have
moved), vocabulary and the settings that are `_FIXED` must be the same; to change them, begin a new run or phase in
another folder with `init`. A global batch size that changes is no reason to lose data: the position counts samples, and
the first one that was not trained on comes next. Schedule and intervals count updates of any size; the learning rate is
not rescaled. Another division of the batch keeps the samples and their order; on a GPU, whose fast step draws pools of
micro-batches, it deals the samples of a pool anew, so that of the one in progress some come twice and some do not come.
A new rank seeds its generators from (seed, rank, updates made). With other evaluation data or another score the best
checkpoint is chosen again.

A new run or phase begins from `init`: weights are taken, and the optimizer's moments with the number of steps their
bias correction has seen where the optimizer is the same; all else begins again. The encoder must be complete and of the
run's shape. Missing heads keep their initial values, and so does a classifier if that of the checkpoint has another
number of labels or no pooler.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from bert.checkpoints.model_config import read_config
from bert.checkpoints.read import OURS, Found, find_checkpoint, read_weights
from bert.checkpoints.weights import CLASSIFIER, POOLER, LoadReport, fit
from bert.data.synthetic import is_synthetic
from bert.data.vocabulary import either_fingerprint
from bert.model.config import ModelConfig
from bert.tasks.base import DataIdentity
from bert.train.checkpoint import Checkpoint, versions
from bert.train.settings import TrainSettings
from common.errors import Code, InputError, UsageError
from common.flags import flag

_FIXED = "fixed"
_OTHER_RUN = "it differs from the original run"
_OTHER_SPLIT = "its losses agree up to rounding and dropout, and on a GPU up to the order of samples"
# Settings -> what a change does to a run that resumes; all others may change silently.
_CHANGES = {
    **dict.fromkeys(("task", "task_options", "optimizer", "seed", "seq_len"), _FIXED),
    **dict.fromkeys(("learning_rate", "schedule", "warmup", "steps", "weight_decay", "max_grad_norm"), _OTHER_RUN),
    **dict.fromkeys(("dropout", "precision", "fp8_fast_gradients", "max_predictions", "global_batch_size"), _OTHER_RUN),
    **dict.fromkeys(("micro_batch_size", "grad_accum_steps", "world_size", "strategy"), _OTHER_SPLIT),
    **dict.fromkeys(("strategy_options", "padding", "step"), _OTHER_SPLIT),
}
# What a model computes with besides its weights; the shape is the rest.
_NOT_SHAPE = ("hidden_dropout", "attention_dropout", "initializer_range", "vocab_multiple")


def changed_settings(settings: TrainSettings, checkpoint: Checkpoint) -> dict[str, tuple[Any, Any]]:
    """Return what was (first) and is (second) of each setting that a run trains with and that has changed."""
    pairs = {name: (getattr(checkpoint.state.settings, name), getattr(settings, name)) for name in _CHANGES}
    return {name: (before, now) for name, (before, now) in pairs.items() if before != now}


def check_resumable(settings: TrainSettings, data: DataIdentity, checkpoint: Checkpoint) -> list[str]:
    """Return warnings about changes since a checkpoint that still allow resuming. Raises UsageError, InputError."""
    changed, state = changed_settings(settings, checkpoint), checkpoint.state
    for name, (before, now) in changed.items():
        if _CHANGES[name] == _FIXED:
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
    changed |= {name: (was, now[name]) for name, was in state.versions.items() if was != now.get(name, was)}
    warnings = []
    for effect in (_OTHER_RUN, _OTHER_SPLIT):
        names = [name for name in changed if _CHANGES.get(name, _OTHER_RUN) == effect]
        texts = ", ".join(f"{name} {changed[name][1]} instead of {changed[name][0]}" for name in names)
        if names:
            warnings.append(f"from update {made} the run continues with {texts}: {effect}")
    return warnings


def _check_data(data: DataIdentity, checkpoint: Checkpoint) -> None:
    saved = checkpoint.state.data
    _check_vocabulary(data, {saved.vocabulary}, checkpoint.path)
    if is_synthetic(saved.source) or is_synthetic(data.source):
        same = saved.source == data.source
    else:
        same = saved.fingerprint == data.fingerprint
    if not same:
        raise InputError(
            "data-mismatch",
            f"{checkpoint.path} was trained on other data of {saved.source} than {data.source} has: give the same, or "
            f"train in another folder with --init {checkpoint.path}",
        )


def _check_vocabulary(data: DataIdentity, fingerprints: set[str | None], where: Path) -> None:
    if data.vocabulary is not None and None not in fingerprints and data.vocabulary not in fingerprints:
        raise InputError(
            "vocabulary-mismatch",
            f"{where} has another vocabulary than {data.source}: prepare the data with the same vocabulary",
        )


def find_weights(path: Path, data: DataIdentity, warn: Callable[[str], None], needed: str) -> Found:
    """Find the weights that a path names, which are to be used on some data.

    Args:
        path: a checkpoint, a folder (or a run's folder) of them, or weights of any form.
        data: what they are to be used on.
        warn: called for each damaged checkpoint that is skipped.
        needed: what the message says where there is nothing of that kind.
    """
    try:
        found = find_checkpoint(path, warn)
    except InputError as error:
        raise type(error)(error.code, f"{error}; {needed}: a run, a folder step-..., or weights") from error
    if found.state is not None:
        _check_vocabulary(data, {found.state["data"]["vocabulary"]}, found.path)
    elif found.vocab is not None:
        _check_vocabulary(data, {*either_fingerprint(found.vocab)}, found.vocab)
    return found


def load_weights(found: Found, model: nn.Module, config: ModelConfig, whole: bool) -> LoadReport:
    """Copy the weights of a checkpoint into a fresh model, which stays as it was where that fails.

    Args:
        found: where they are.
        model: a model with an `encoder`, without what a strategy wraps around it.
        config: its shape; the vocabulary may be padded otherwise.
        whole: whether a checkpoint of ours has to hold all weights of the model and no others.

    Returns:
        What was not taken, on either side.

    Raises:
        InputError: a file is missing, damaged or holds no BERT, the encoder is not complete, or it has another shape or
            vocabulary; both sides are named.
    """
    if found.config is not None:
        saved = read_config(found.config)
        check_same_shape(saved if found.format == OURS else unpadded(saved, config), config, found.path)
    weights = read_weights(found)
    classifier = getattr(model, CLASSIFIER, None)
    if classifier is not None and (weights.labels != len(classifier.weight) or POOLER not in weights.parts):
        weights = weights.without({CLASSIFIER})
    values, report = fit(weights, model, found.path)
    report = replace(report, unexpected=tuple(sorted([*report.unexpected, *weights.incomplete])))
    names = [*report.missing, *report.unexpected]
    if whole and found.format == OURS and names:
        raise InputError(
            "weights-mismatch",
            f"{found.path} and the model of this run differ in {len(names)} tensors, {names[0]} first: give a "
            "pretraining checkpoint with all heads",
        )
    model.load_state_dict(values, strict=False)
    return report


def unpadded(saved: ModelConfig, wanted: ModelConfig) -> ModelConfig:
    """Take the padding out of a shape that counts it as words (NVIDIA's 30528), where it is the `wanted` one's."""
    if saved.vocab_size == wanted.replace(vocab_multiple=8).padded_vocab_size:
        return saved.replace(vocab_size=wanted.vocab_size)
    return saved


def check_same_shape(saved: ModelConfig, wanted: ModelConfig, where: Path) -> None:
    """Raise InputError if a saved model is not of the shape of this run's."""
    names = [name for name in ModelConfig.__dataclass_fields__ if name not in _NOT_SHAPE]
    differing = [name for name in names if getattr(saved, name) != getattr(wanted, name)]
    if differing:
        theirs, ours = (", ".join(f"{name}={getattr(one, name)}" for name in differing) for one in (saved, wanted))
        code: Code = "vocabulary-mismatch" if "vocab_size" in differing else "weights-mismatch"
        raise InputError(code, f"{where} has {theirs}, this run {ours}: use the preset and vocabulary of the former")
