"""The weights of --init that a training begins with, and their shape."""

from pathlib import Path

from bert.checkpoints.model_config import read_config
from bert.model.config import preset, preset_of, shape_in_words
from bert.tasks.base import TaskData
from common.errors import InputError, UsageError
from records.training import TrainRun, is_train_run


def initial_weights(path: Path, best: bool) -> Path:
    """Return the path of the weights for --init: the checkpoints of a run, whose latest is used; otherwise the path.

    Args:
        path: value of --init.
        best: use the best checkpoint of an evaluated run, as fine-tuning does. The next phase of pretraining uses the
            latest, which has the weights and optimizer state of the end of the run.
    """
    path = path.resolve()
    if not path.exists() and not path.with_name(f"{path.name}.index").exists():  # the prefix of TensorFlow's files
        problem = f"--init {path} does not exist"
        raise InputError("path-missing", f"{problem}: give a run directory, a checkpoint or a folder of weights")
    if not is_train_run(path):
        return path
    run = TrainRun(path)
    state = run.read_state()
    if not state.finished:
        steps = f"step {state.applied_steps} of {state.total_steps or 'unknown'}"
        raise UsageError(
            "run-incomplete", f"--init {path} is an unfinished run ({steps}): finish it, or give one of its checkpoints"
        )
    return (run.best_checkpoint() if best else None) or run.checkpoints


def shape_of(init: Path, given: str | None, seq_len: int, vocab_size: int, data: TaskData) -> dict[str, str]:
    """Return `preset` and `shape` of the model in `init`; a `given` preset must match it."""
    path = _config_file(init)
    if path is None and given is None:
        raise UsageError("option-missing", f"--init {init} has no config.json or bert_config.json: give --preset too")
    if path is None:
        return {}
    config = read_config(path)
    if seq_len > config.max_positions:
        raise UsageError(
            "data-mismatch",
            f"--init {init} has {config.max_positions} positions, too few for sequences of {seq_len} tokens: prepare "
            f"shorter data with `{data.prepare_command(config.max_positions)}`",
        )
    if config.vocab_size < vocab_size:
        problem = f"--init {init} has {config.vocab_size:,} word pieces, but the data use {vocab_size:,}"
        raise InputError("vocabulary-mismatch", f"{problem}: prepare the data with the model's vocabulary")
    if given is None:
        name = preset_of(config)
        label = name or preset_of(config.replace(max_positions=512)) or f"{config.num_layers}x{config.hidden_size}"
        return {"preset": label, "shape": "" if name else shape_in_words(config)}
    wanted = preset(given)
    wanted = wanted.replace(max_positions=max(wanted.max_positions, seq_len))
    if shape_in_words(wanted) != shape_in_words(config):
        problem = f"--preset {given} does not match the model in {init} ({shape_in_words(config)})"
        raise UsageError("weights-mismatch", f"{problem}: omit --preset")
    return {}


def _config_file(init: Path) -> Path | None:
    """Return the configuration of the newest checkpoint of a run, or of weights in another format."""
    saved = sorted([*init.glob("step-*/config.json"), *init.glob("checkpoints/step-*/config.json")])
    if saved:
        return saved[-1]
    from bert.checkpoints.read import find_checkpoint

    return find_checkpoint(init).config
