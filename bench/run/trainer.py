"""From what `bertbench train` was asked to the settings of a run, and whether a run may go on with them."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cluster.world import World
from bench.implementations import OURS, TRAININGS
from bench.loggers.base import AUTO, check_loggers
from bench.machine.devices import Devices
from bench.plan.automatic import resolve_precision, resolve_strategy
from bench.plan.task_flags import TaskFlags
from bert.checkpoints.model_config import read_config
from bert.data.lengths import is_synthetic
from bert.model.config import ModelConfig, model_config, preset, preset_of, shape_in_words
from bert.model.memory import parameter_count
from bert.parallel import devices_per_rank
from bert.parallel.deepspeed_config import read_deepspeed_config, said_of_training
from bert.parallel.options import options_text
from bert.tasks import check_task_options, make_task, resolve_options, task_data
from bert.tasks.base import DataSource, TaskData
from bert.train.settings import TrainSettings, resolve_settings, task_defaults
from common.errors import InputError, StorageError, UsageError
from common.registry import lookup
from records.training import TrainRun, is_train_run
from records.trial import Trial

# Of each parameter in a checkpoint: itself and two moments of the optimizer, in float32.
_WEIGHT_BYTES, _MOMENTS_BYTES = 4, 8


@dataclass(frozen=True, slots=True)
class Plan:
    """A training, looked at before anything runs."""

    settings: TrainSettings
    """What bert.train is told."""
    phase: int | None
    """1 or 2; None for tasks without phases."""
    source: DataSource
    log_to: tuple[str, ...] = (AUTO,)
    """Names in bench.loggers.LOGGERS, auto or none."""
    implementation: str = OURS
    """Whose model and loop train: a name in bench.implementations.TRAININGS."""

    def trial(self, **own: Any) -> Trial:
        """Return a trial of this training.

        Args:
            own: what else a Trial says: kind, device, levers as records have them, and how it is measured.
        """
        settings = self.settings
        # Where a training says the rest, its trial has always left these empty.
        own = {"shape": "", "padding": "", **own}
        return Trial.of(
            settings,
            implementation=self.implementation,
            devices_per_rank=devices_per_rank(settings.strategy, settings.world_size),
            data_fingerprint=self.source.fingerprint,
            **own,
        )


def plan_training(phase: int | None, given: Mapping[str, Any], devices: Devices, world: World | None = None) -> Plan:
    """Return a training as it will run.

    Args:
        phase: of pretraining, whose hyper-parameters are the defaults; None for other tasks, phase 1 of pretraining.
        given: fields of TrainSettings with what the user gave, None where nothing, `epochs`, `bucket_mib`,
            `task_flags`, `log_to` and `implementation`; strategy and precision may be "auto", world_size None is every
            device; `init` may name a run directory.
        devices: what there is to train on.
        world: the world of ranks that this process belongs to; its size is then the number of devices.

    Raises:
        UsageError: settings that no run can have, more devices than there are, `best_by` where nothing is evaluated or
            the task has no such score, or `init` names an unfinished run or a model of another shape than the preset
            that was given.
        InputError: the data, what is evaluated on or `init` cannot be read, or the samples have another length.
    """
    values = dict(given)
    log_to = check_loggers(values.pop("log_to", None))
    implementation = values.pop("implementation", None) or OURS
    lookup(TRAININGS, implementation, "implementation of training runs")
    task = values.get("task") or "pretrain"
    data = task_data(task)
    if phase is None and not data.defaults:
        phase = 1
    defaults = task_defaults(task, phase)
    options = (values.pop("task_flags", None) or TaskFlags()).options(task)
    if not values.get("data"):
        made = data.prepare_command(values.get("seq_len") or defaults["seq_len"])
        raise UsageError("option-missing", f"no data was given: --data FOLDER, what `{made}` makes")
    if world is None:
        world_size = values["world_size"] or devices.default_world_sizes()[-1]
        devices.environment(world_size)
    else:
        world_size = world.check_devices(values["world_size"])
    values["world_size"] = world_size
    values["strategy"] = resolve_strategy(values["strategy"], world_size)
    values |= strategy_settings(values)
    values |= _batch_of_the_file(values, given, defaults)
    values["precision"] = resolve_precision(values["precision"], devices)
    source = data.inspect(str(values["data"]), values["seq_len"] or defaults["seq_len"], options)
    values["task_options"] = resolve_options(task, options, source)
    if phase is None:  # a length of its own has only pretraining, by its phase
        values["seq_len"] = values["seq_len"] or source.seq_len
    seq_len = values["seq_len"] or defaults["seq_len"]
    if source.seq_len not in (None, seq_len):
        raise InputError("data-mismatch", _other_length(phase, seq_len, source, data.prepare_command(seq_len)))
    values |= {"data": source.source, "vocab_size": source.vocab_size, "max_predictions": source.max_predictions}
    if values.get("init"):
        init = initial_weights(Path(str(values["init"])), best=phase is None)
        values |= {"init": str(init), **_shape(init, values.get("preset"), seq_len, source.vocab_size, data)}
    if values.get("eval_data"):
        values["eval_data"] = str(Path(str(values["eval_data"])).resolve())
    settings = resolve_settings(phase, values, source.samples)
    if settings.eval_every:
        known = check_task_options(task, settings.task_options)
        data.check_evaluation(settings.data, settings.seq_len, settings.eval_data, known)
    if settings.best_by is not None:
        _check_best_by(settings, settings.best_by)
    if settings.init is not None:
        _check_vocabulary(Path(settings.init), source)
    return Plan(settings, phase, source, log_to, implementation)


def _check_best_by(settings: TrainSettings, name: str) -> None:
    """Refuse a score that cannot tell which checkpoint is the best. Raises UsageError."""
    from bert.tasks.base import deciding

    deciding(make_task(settings.task, settings.task_options), name)
    if is_synthetic(settings.data):
        raise UsageError(
            "option-not-applicable",
            f"--best-by {name}: made-up data are not evaluated: give real --data, or leave it out",
        )
    if not settings.eval_every:
        raise UsageError(
            "option-not-applicable", f"--best-by {name}: this run is not evaluated: give --eval-every, or leave it out"
        )


def _check_vocabulary(init: Path, source: DataSource) -> None:
    """Refuse weights of another vocabulary than the data's, where both are known. Raises InputError."""
    if source.vocabulary is None:
        return
    from bert.tasks.base import DataIdentity
    from bert.train.resume import find_weights

    data = DataIdentity(source=source.source, vocab_size=source.vocab_size, vocabulary=source.vocabulary)
    needed = f"this run needs a checkpoint of a model with {source.vocab_size} word pieces"
    find_weights(init, data, lambda message: None, needed, whole=False)  # the ranks tell of damaged checkpoints


def _batch_of_the_file(
    values: Mapping[str, Any], given: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """One micro-step per update, as DeepSpeed has it, where its file says the micro batch, nothing the others, and the
    default of an update cannot be divided into such."""
    said = given.get("micro_batch_size") is None and values.get("micro_batch_size")
    if not said or values.get("global_batch_size") or values.get("grad_accum_steps"):
        return {}
    return {"grad_accum_steps": 1} if defaults["global_batch_size"] % (said * values["world_size"]) else {}


# Of strategies, given by name.
_OPTIONS = ("zero_stage", "bucket_mib")


def strategy_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Take the options of the strategy out of `values`; return them as fields of TrainSettings.

    What a DeepSpeed configuration says of the training holds where nothing else was given.

    Raises:
        UsageError: an option that the strategy does not have.
        InputError: the configuration cannot be read.
    """
    path = values.pop("deepspeed_config", None)
    config = None if path is None else read_deepspeed_config(Path(str(path)))
    options = options_text(
        str(values["strategy"]), {name: values.pop(name, None) for name in _OPTIONS} | {"config": config}
    )
    said = {} if config is None else said_of_training(config)
    return {"strategy_options": options} | {name: value for name, value in said.items() if values.get(name) is None}


def _other_length(phase: int | None, seq_len: int, source: DataSource, made: str) -> str:
    other = {128: 1, 512: 2}.get(source.seq_len or 0)
    fitting = f"--phase {other}" if phase is not None and other not in (None, phase) else f"--seq-len {source.seq_len}"
    wanting = "--seq-len asks for" if phase is None else f"phase {phase} trains on"
    return (
        f"the samples in {source.source} have {source.seq_len} tokens, {wanting} {seq_len}: use {fitting}, or prepare "
        f"data with `{made}`"
    )


def initial_weights(path: Path, best: bool) -> Path:
    """Return where the weights of --init lie: of a run its checkpoints, of which the latest counts; else the path.

    Args:
        path: what was given.
        best: take of a run the best checkpoint, where it was evaluated: what fine-tuning begins from. A next phase of
            pretraining goes on from the latest, whose optimizer and weights belong to the end of the run.

    Raises:
        InputError: there is nothing.
        UsageError: it is a run that has not reached its end.
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
        reached = f"step {state['applied_steps']} of {state['total_steps']}" if state.get("applied_steps") else "no end"
        raise UsageError(
            "run-incomplete",
            f"--init {path}: that run has reached {reached}: finish it with the command that began it, or give the "
            f"folder of one of its checkpoints in {run.checkpoints} to begin from there",
        )
    return (run.best_checkpoint() if best else None) or run.checkpoints


def check_space(run: TrainRun, plan: Plan) -> None:
    """Refuse to begin where not one checkpoint would fit; a run that goes on may make room. Raises StorageError."""
    if run.attempts():
        return
    settings = plan.settings
    parameters = parameter_count(model_config(settings), settings.task, settings.task_options)
    # Other implementations save the weights alone.
    needed = parameters * (_WEIGHT_BYTES + (_MOMENTS_BYTES if plan.implementation == OURS else 0))
    place = next(folder for folder in (run.path, *run.path.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise StorageError(
            "disk-full",
            f"{run.path} has {free / 2**20:,.0f} MiB left on its disk, and a checkpoint of {parameters:,} parameters "
            f"takes about {needed / 2**20:,.0f} MiB: free some space, choose another --out, or a smaller --preset",
        )


def check_continues(run: TrainRun, plan: Plan, given: Mapping[str, Any]) -> None:
    """Refuse to go on in a run directory with another length, or with a batch size that nobody asked for.

    Args:
        run: the run directory; one without checkpoints may take any plan.
        plan: what is to be trained.
        given: fields of TrainSettings with what the user gave, None where nothing.

    Raises:
        UsageError: the plan is of another phase or implementation, or its global batch size is a default that is not
            this run's.
    """
    attempts = run.attempts()
    began = attempts[-1].read_trial().implementation if attempts else plan.implementation
    if began != plan.implementation:
        raise UsageError(
            "settings-changed",
            f"{run.path} holds a training by implementation {began}, not {plan.implementation}: give another --out, or "
            f"--implementation {began}",
        )
    saved = _saved_settings(run)
    settings = plan.settings
    if saved.get("seq_len", settings.seq_len) != settings.seq_len:
        raise UsageError(
            "settings-changed",
            f"{run.path} holds a run on sequences of {saved['seq_len']} tokens, this one has {settings.seq_len}: "
            f"such a run has a folder, steps and a curve of its own; give another --out, and --init {run.path} to "
            "begin from the weights of the finished run",
        )
    what = settings.task if plan.phase is None else f"phase {plan.phase}"
    asked = given.get("global_batch_size") or (given.get("micro_batch_size") and given.get("grad_accum_steps"))
    before = saved.get("global_batch_size", settings.global_batch_size)
    if before != settings.global_batch_size and not asked:
        raise UsageError(
            "settings-changed",
            f"the run in {run.path} has updates of {before} samples, and {what} has "
            f"{settings.global_batch_size} where nothing is given: give --global-batch-size {before} to go on as it "
            "was, or another size to change it",
        )


def _saved_settings(run: TrainRun) -> dict[str, Any]:
    """Settings in the newest checkpoint that can be read; empty where there is none."""
    # Torch, which bert.train.checkpoint needs, is not imported before something is trained.
    states = run.checkpoints.glob("step-*/state.json")
    for path in sorted(states, key=lambda path: (len(path.parent.name), path.parent.name), reverse=True):
        try:
            return dict(json.loads(path.read_text(encoding="utf-8"))["settings"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return {}


def _shape(init: Path, given: str | None, seq_len: int, vocab_size: int, data: TaskData) -> dict[str, str]:
    """Return `preset` and `shape` of the model whose weights lie in `init`; a preset that was `given` has to be it.

    Raises:
        InputError: there are no weights, their configuration cannot be read, or their vocabulary is too small.
        UsageError: the preset is another shape, or no configuration says what shape it is; or it is for shorter ones.
    """
    path = _config_file(init)
    if path is None:
        if given is None:
            raise UsageError(
                "option-missing", f"no config.json or bert_config.json is beside {init}: give --preset, its shape"
            )
        return {}
    config = read_config(path)
    longest = config.max_positions
    if seq_len > longest:
        raise UsageError(
            "data-mismatch",
            f"--init {init} is a model of {longest} positions, too few for sequences of {seq_len} tokens: give another "
            f"model, or data of at most {longest} tokens, such as `{data.prepare_command(longest)}` makes",
        )
    if config.vocab_size < vocab_size:
        raise InputError(
            "vocabulary-mismatch",
            f"--init {init} is a model of {config.vocab_size:,} word pieces, the data have ids of {vocab_size:,}: give "
            "another model, or data that were made with its vocabulary",
        )
    if given is not None:
        wanted = preset(given)
        wanted = wanted.replace(max_positions=max(wanted.max_positions, seq_len))
        if shape_in_words(wanted) != shape_in_words(config):
            raise UsageError(
                "weights-mismatch",
                f"--preset {given} is not the shape of the model in {init} ({shape_in_words(config)}): leave --preset "
                "out to take that, or give other weights",
            )
        return {}
    name = preset_of(config)
    return {"preset": name or _label(config), "shape": "" if name else shape_in_words(config)}


def _label(config: ModelConfig) -> str:
    """A name for a shape that is no preset's."""
    return preset_of(config.replace(max_positions=512)) or f"{config.num_layers}x{config.hidden_size}"


def _config_file(init: Path) -> Path | None:
    """The configuration of a checkpoint, of the newest of several, or beside weights of any other form."""
    for folder in (init, init / "checkpoints"):
        own = sorted(folder.glob("step-*/config.json"), key=lambda path: (len(path.parent.name), path.parent.name))
        if own:
            return own[-1]
    if (init / "state.json").is_file():
        return init / "config.json"
    from bert.checkpoints.read import find_checkpoint

    return find_checkpoint(init).config
