"""One attempt at a training run, in its run directory: what `bertbench train` does between options and table."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.records import Trial, TrialDirectory, write_record
from analysis.train_records import TrainRun, is_train_run, read_events
from bench.devices import Devices
from bench.environment import capture
from bench.launch import LaunchOptions, Watcher, run_trial
from bench.plan import resolve_precision, resolve_strategy, task_data
from bench.sweep import write_results
from bert.checkpoints.model_config import read_config
from bert.config import ModelConfig, preset, preset_of, shape_in_words
from bert.tasks.data import DataSource
from bert.training.settings import FINE_TUNING, TrainSettings, resolve_settings, task_defaults
from common.errors import InputError, SchemaError, UsageError


@dataclass(frozen=True, slots=True)
class Plan:
    """A training, looked at before anything runs."""

    settings: TrainSettings
    """What bert.training is told."""
    phase: int | None
    """1 or 2; None for tasks without phases."""
    source: DataSource
    """The data."""


def plan_training(phase: int | None, given: Mapping[str, Any], devices: Devices) -> Plan:
    """Return a training as it will run.

    Args:
        phase: of pretraining, whose hyper-parameters are the defaults; None for other tasks, phase 1 of pretraining.
        given: fields of TrainSettings with what the user gave, None where nothing, and `epochs`; strategy and precision
            may be "auto", world_size None is every device; `init` may name a run directory.
        devices: what there is to train on.

    Raises:
        UsageError: settings that no run can have, more devices than there are, or `init` names an unfinished run or a
            model of another shape than the preset that was given.
        InputError: the data or `init` cannot be read, or the samples have another length.
    """
    values = dict(given)
    task = values.get("task") or "pretrain"
    if phase is None and task not in FINE_TUNING:
        phase = 1
    defaults = task_defaults(task, phase)
    data = task_data(task)
    if not values.get("data"):
        made = data.prepare_command(values.get("seq_len") or defaults["seq_len"])
        raise UsageError(f"no data was given: --data FOLDER, what `{made}` makes")
    world_size = values["world_size"] or devices.default_world_sizes()[-1]
    devices.environment(world_size)
    values["world_size"] = world_size
    values["strategy"] = resolve_strategy(values["strategy"], world_size)
    values["precision"] = resolve_precision(values["precision"], devices)
    source = data.inspect(str(values["data"]), values["seq_len"] or defaults["seq_len"])
    if phase is None:  # a length of its own has only pretraining, by its phase
        values["seq_len"] = values["seq_len"] or source.seq_len
    seq_len = values["seq_len"] or defaults["seq_len"]
    if source.seq_len not in (None, seq_len):
        raise InputError(_other_length(phase, seq_len, source, data.prepare_command(seq_len)))
    values |= {"data": source.source, "vocab_size": source.vocab_size, "max_predictions": source.max_predictions}
    if values.get("init"):
        init = initial_weights(Path(str(values["init"])))
        values |= {"init": str(init), **_shape(init, values.get("preset"), seq_len)}
    if values.get("eval_data"):
        values["eval_data"] = str(Path(str(values["eval_data"])).resolve())
    return Plan(resolve_settings(phase, values, source.samples), phase, source)


def _other_length(phase: int | None, seq_len: int, source: DataSource, made: str) -> str:
    other = {128: 1, 512: 2}.get(source.seq_len or 0)
    fitting = f"--phase {other}" if phase is not None and other not in (None, phase) else f"--seq-len {source.seq_len}"
    wanting = "--seq-len asks for" if phase is None else f"phase {phase} trains on"
    return (
        f"the samples in {source.source} have {source.seq_len} tokens, {wanting} {seq_len}: use {fitting}, or prepare "
        f"data with `{made}`"
    )


def initial_weights(path: Path) -> Path:
    """Return where the weights of --init lie: of a run its checkpoints, else the path itself.

    Raises:
        InputError: there is nothing.
        UsageError: it is a run that has not reached its end.
    """
    path = path.resolve()
    if not path.exists() and not path.with_name(f"{path.name}.index").exists():  # the prefix of TensorFlow's files
        raise InputError(f"--init {path} does not exist: give a run directory, a checkpoint or a folder of weights")
    if not is_train_run(path):
        return path
    run = TrainRun(path)
    state = run.read_state() or {}
    if not state.get("finished"):
        reached = f"step {state['applied_steps']} of {state['total_steps']}" if state.get("applied_steps") else "no end"
        raise UsageError(
            f"--init {path}: that run has reached {reached}: finish it with the command that began it, or give the "
            f"folder of one of its checkpoints in {run.checkpoints} to begin from there"
        )
    return run.checkpoints


def check_continues(run: TrainRun, plan: Plan, given: Mapping[str, Any]) -> None:
    """Refuse to go on in a run directory with another length, or with a batch size that nobody asked for.

    Args:
        run: the run directory; one without checkpoints may take any plan.
        plan: what is to be trained.
        given: fields of TrainSettings with what the user gave, None where nothing.

    Raises:
        UsageError: the plan is of another phase, or its global batch size is a default that is not this run's.
    """
    saved = _saved_settings(run)
    settings = plan.settings
    if saved.get("seq_len", settings.seq_len) != settings.seq_len:
        raise UsageError(
            f"{run.path} holds a run on sequences of {saved['seq_len']} tokens, this one has {settings.seq_len}: "
            f"such a run has a folder, steps and a curve of its own; give another --out, and --init {run.path} to "
            "begin from the weights of the finished run"
        )
    what = settings.task if plan.phase is None else f"phase {plan.phase}"
    asked = given.get("global_batch_size") or (given.get("micro_batch_size") and given.get("grad_accum_steps"))
    before = saved.get("global_batch_size", settings.global_batch_size)
    if before != settings.global_batch_size and not asked:
        raise UsageError(
            f"the run in {run.path} has updates of {before} samples, and {what} has "
            f"{settings.global_batch_size} where nothing is given: give --global-batch-size {before} to go on as it "
            "was, or another size to change it"
        )


def _saved_settings(run: TrainRun) -> dict[str, Any]:
    """Settings in the newest checkpoint that can be read; empty where there is none."""
    # Torch, which bert.training.checkpoint needs, is not imported before something is trained.
    states = run.checkpoints.glob("step-*/state.json")
    for path in sorted(states, key=lambda path: (len(path.parent.name), path.parent.name), reverse=True):
        try:
            return dict(json.loads(path.read_text(encoding="utf-8"))["settings"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return {}


def _shape(init: Path, given: str | None, seq_len: int) -> dict[str, str | None]:
    """Return `preset` and `shape` of the model whose weights lie in `init`; a preset that was `given` has to be it.

    Raises:
        InputError: there are no weights, or their configuration cannot be read.
        UsageError: the preset is another shape, or no configuration says what shape it is; or it is for shorter ones.
    """
    path = _config_file(init)
    if path is None:
        if given is None:
            raise UsageError(f"no config.json or bert_config.json is beside {init}: give --preset, its shape")
        return {}
    config = read_config(path)
    if seq_len > config.max_positions:
        raise UsageError(
            f"--init {init} is a model of {config.max_positions} positions, too few for sequences of {seq_len} tokens: "
            f"use --seq-len {config.max_positions} or less"
        )
    if given is not None:
        wanted = preset(given)
        wanted = wanted.replace(max_positions=max(wanted.max_positions, seq_len))
        if shape_in_words(wanted) != shape_in_words(config):
            raise UsageError(
                f"--preset {given} is not the shape of the model in {init} ({shape_in_words(config)}): leave --preset "
                "out to take that, or give other weights"
            )
        return {}
    name = preset_of(config)
    return {"preset": name or _label(config), "shape": None if name else shape_in_words(config)}


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


def train_once(
    run: TrainRun,
    plan: Plan,
    devices: Devices,
    request: Mapping[str, Any],
    watcher: Watcher,
    threads: int | None = None,
) -> tuple[TrialDirectory, dict[str, Any]]:
    """Make one attempt and return its folder and result; train.json and results.csv say how it ended.

    Must be called inside a lock on the run.

    Raises:
        StorageError: the run directory cannot be written.
        KeyboardInterrupt: the attempt was ended at once.
    """
    trial = _trial(run, plan, devices, threads)
    directory = run.run.trial(trial.trial_id)
    try:
        result = run_trial(trial, directory, devices, capture(devices), LaunchOptions(timeout_seconds=None), watcher)
    finally:
        if directory.trial_json.exists():
            write_record(run.state_json, _state(run, plan, request))
            write_results(run.run)
    return directory, result


def _trial(run: TrainRun, plan: Plan, devices: Devices, threads: int | None) -> Trial:
    settings = plan.settings
    attempts = [directory.read_trial().round for directory in run.attempts()]
    return Trial(
        kind="train",
        task=settings.task,
        implementation="bertbench",
        strategy=settings.strategy,
        preset=settings.preset,
        precision=settings.precision,
        seq_len=settings.seq_len,
        micro_batch_size=settings.micro_batch_size,
        grad_accum_steps=settings.grad_accum_steps,
        world_size=settings.world_size,
        device=devices.kind,
        data=settings.data,
        data_fingerprint=plan.source.fingerprint,
        max_predictions=settings.max_predictions,
        vocab_size=settings.vocab_size,
        dropout=settings.dropout,
        seed=settings.seed,
        round=max(attempts, default=-1) + 1,
        max_steps=settings.steps,
        threads_per_rank=threads,
        training=tuple(sorted(settings.to_json().items())),
    )


def _state(run: TrainRun, plan: Plan, request: Mapping[str, Any]) -> dict[str, Any]:
    """Where the run stands: what the attempts wrote down while they ran is there however they ended.

    An attempt that was refused changes nothing of what the run is: phase, steps and request stay those before it.
    """
    attempts = run.attempts()
    checkpoint: str | None = None
    evaluation: dict[str, Any] | None = None
    best: dict[str, Any] | None = None
    applied_steps = 0
    for directory in attempts:
        for event in read_events(directory):
            if event["event"] in ("resumed", "saved"):
                applied_steps = event["applied_steps"]
            if event["event"] == "saved" or (event["event"] == "resumed" and not event["new_phase"]):
                checkpoint = Path(event["path"]).name  # after a damaged one it is an earlier one that goes on
            if event["event"] == "saved":
                named = {name: event.get(f"best_{name}") for name in ("checkpoint", "applied_steps", "score", "value")}
                best = named if named["checkpoint"] is not None else None
            elif event["event"] == "evaluated":
                evaluation = event
    result = (attempts[-1].read_result() if attempts else None) or {}
    own: dict[str, Any] = {"phase": plan.phase, "total_steps": plan.settings.steps, "request": dict(request)}
    known = result.get("status") != "refused"
    if not known and checkpoint is not None:
        with contextlib.suppress(SchemaError):
            before = run.read_state() or {}
            known = own.keys() <= before.keys()
            own |= {name: before[name] for name in own if known}
    return {
        **own,
        "finished": known and checkpoint is not None and applied_steps >= own["total_steps"],
        "applied_steps": applied_steps,
        "status": result.get("status", "interrupted"),
        "reason": result.get("reason", ""),
        "checkpoint": checkpoint,
        "evaluation": evaluation,
        "best": best,
        "attempts": [directory.path.name for directory in attempts],
    }
