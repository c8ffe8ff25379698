"""The weights of --init that a training begins with, and their shape."""

from pathlib import Path

from bert.checkpoints.model_config import read_config
from bert.model.config import preset_of, shape_in_words
from common.errors import UsageError
from records.training import TrainRun, is_train_run


def initial_weights(path: Path, best: bool) -> Path:
    """Return the path of the weights for --init: of a run its checkpoints, whose latest is used, or its `best` one.

    The next phase of pretraining uses the latest, which has the optimizer state too.
    """
    path = path.resolve()
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


def shape_of(init: Path, given: str | None) -> dict[str, str]:
    """Return `preset` and `shape` of the model in `init`; a `given` preset must match it."""
    from bert.checkpoints.read import find_checkpoint

    saved = sorted([*init.glob("step-*/config.json"), *init.glob("checkpoints/step-*/config.json")])
    path = saved[-1] if saved else find_checkpoint(init).config  # of another format
    if path is None and given is None:
        raise UsageError("option-missing", f"--init {init} has no config.json or bert_config.json: give --preset too")
    if path is None:
        return {}
    config = read_config(path)
    name = preset_of(config)
    label = name or preset_of(config.replace(max_positions=512)) or f"{config.num_layers}x{config.hidden_size}"
    if given not in (None, label):
        problem = f"--preset {given} does not match the model in {init} ({shape_in_words(config)})"
        raise UsageError("weights-mismatch", f"{problem}: omit --preset")
    return {"preset": label, "shape": "" if name else shape_in_words(config)}
