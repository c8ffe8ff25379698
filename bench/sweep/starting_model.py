"""The model that a training begins with: the weights of --init in their shape, or the model that --model names."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.implementations.model_folder import check_data, check_options, find_model
from bert.checkpoints.model_config import read_config
from bert.data.lengths import is_synthetic
from bert.model.config import preset, preset_of, shape_in_words
from bert.tasks.base import DataSource, TaskData
from common.errors import InputError, UsageError
from records.training import TrainRun, is_train_run

if TYPE_CHECKING:
    from bench.sweep.training import TrainOptions

TRAINS_GIVEN = "hf-trainer"
"""The implementation that trains a given model."""


def check_model(options: "TrainOptions") -> None:
    """Refuse options that do not go together with --model. Raises UsageError."""
    given = [name for name in ("init", "preset", "dropout", "levers") if getattr(options, name) is not None]
    check_options(options.model, options.task, given)
    if options.model and options.implementation not in (None, TRAINS_GIVEN):
        raise UsageError(
            "unsupported-combination",
            f"--model does not apply to implementation {options.implementation}: use --implementation {TRAINS_GIVEN}",
        )


def given_settings(options: "TrainOptions", seq_len: int, source: DataSource) -> dict[str, Any]:
    """Return the settings of the model that --model names."""
    model = find_model(options.model, options.trust_remote_code)
    synthetic = is_synthetic(source.source)
    check_data(model, seq_len, source, None if synthetic else Path(source.source))
    return {**model.settings, "vocab_size": model.vocab_size if synthetic else source.vocab_size}


def initial_weights(path: Path, best: bool) -> Path:
    """Return the path of the weights for --init: the checkpoints of a run, whose latest is used; otherwise the path.

    Args:
        path: value of --init.
        best: use the best checkpoint of an evaluated run, as fine-tuning does. The next phase of pretraining uses the
            latest, which has the weights and optimizer state of the end of the run.
    """
    path = path.resolve()
    if not path.exists() and not path.with_name(f"{path.name}.index").exists():  # the prefix of TensorFlow's files
        raise InputError(
            "path-missing", f"--init {path} does not exist: give a run directory, a checkpoint or a folder of weights"
        )
    if not is_train_run(path):
        return path
    run = TrainRun(path)
    state = run.read_state() or {}
    if not state.get("finished"):
        steps = f" (step {state['applied_steps']} of {state['total_steps']})" if state.get("applied_steps") else ""
        raise UsageError(
            "run-incomplete",
            f"--init {path} is an unfinished run{steps}: finish it with the command that started it, or give one of "
            f"its checkpoints in {run.checkpoints}",
        )
    return (run.best_checkpoint() if best else None) or run.checkpoints


def shape_of(init: Path, given: str | None, seq_len: int, vocab_size: int, data: TaskData) -> dict[str, str]:
    """Return `preset` and `shape` of the model in `init`; a `given` preset must match it."""
    path = _config_file(init)
    if path is None:
        if given is None:
            raise UsageError(
                "option-missing", f"--init {init} has no config.json or bert_config.json: give --preset too"
            )
        return {}
    config = read_config(path)
    longest = config.max_positions
    if seq_len > longest:
        raise UsageError(
            "data-mismatch",
            f"--init {init} is a model with {longest} positions, too few for sequences of {seq_len} tokens: give "
            f"another model, or prepare shorter data with `{data.prepare_command(longest)}`",
        )
    if config.vocab_size < vocab_size:
        raise InputError(
            "vocabulary-mismatch",
            f"--init {init} is a model with {config.vocab_size:,} word pieces, but the data use {vocab_size:,}: give "
            "another model, or data prepared with its vocabulary",
        )
    if given is not None:
        wanted = preset(given)
        wanted = wanted.replace(max_positions=max(wanted.max_positions, seq_len))
        if shape_in_words(wanted) != shape_in_words(config):
            raise UsageError(
                "weights-mismatch",
                f"--preset {given} does not match the model in {init} ({shape_in_words(config)}): omit --preset, or "
                "give other weights",
            )
        return {}
    name = preset_of(config)
    label = name or preset_of(config.replace(max_positions=512)) or f"{config.num_layers}x{config.hidden_size}"
    return {"preset": label, "shape": "" if name else shape_in_words(config)}


def _config_file(init: Path) -> Path | None:
    """Return the configuration file of a checkpoint, of the newest of several, or of weights in another format."""
    for folder in (init, init / "checkpoints"):
        own = sorted(folder.glob("step-*/config.json"), key=lambda path: (len(path.parent.name), path.parent.name))
        if own:
            return own[-1]
    if (init / "state.json").is_file():
        return init / "config.json"
    from bert.checkpoints.read import find_checkpoint

    return find_checkpoint(init).config


def check_vocabulary(init: Path, source: DataSource) -> None:
    """Refuse weights whose vocabulary differs from that of the data, if both are known. Raises InputError."""
    if source.vocabulary is None:
        return
    from bert.tasks.base import DataIdentity
    from bert.train.resume import find_weights

    data = DataIdentity(source=source.source, vocab_size=source.vocab_size, vocabulary=source.vocabulary)
    needed = f"this run needs a checkpoint of a model with {source.vocab_size} word pieces"
    find_weights(init, data, lambda message: None, needed, whole=False)  # the ranks report damaged checkpoints
