"""Convert the options of `bertbench train` to the settings of a run, and check whether a run can resume with them."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from cyclopts import Parameter, validators

from bench.implementations import IMPLEMENTATIONS, OURS, TRAININGS
from bench.implementations.model_folder import check_data, check_options, find_model
from bench.launch.world import World
from bench.loggers import LOGGERS, chosen_loggers
from bench.loggers import VARIABLE as LOG_TO_VARIABLE
from bench.machine.devices import Devices, capture
from bench.run.inside import Leader
from bench.run.supervise import LaunchOptions, finish, run_trial
from bench.sweep.options import (
    AUTO,
    COUNT,
    DEVICE,
    POSITIVE,
    PRECISION,
    PRESET,
    STEP,
    STRATEGY,
    TaskFlags,
    check_same_request,
    request_of,
    resolve_precision,
    resolve_strategy,
)
from bench.sweep.sweep import write_results
from bert.checkpoints.model_config import read_config
from bert.model.config import preset_of, shape_in_words
from bert.parallel import devices_per_rank, options_text
from bert.parallel.deepspeed_config import read_deepspeed_config, training_values
from bert.speed import FAST
from bert.tasks import make_task, resolve_options, task_data
from bert.tasks.base import DataSource
from bert.train.settings import GIVEN, TrainSettings, resolve_settings, task_defaults
from common.atomic import remove_left_overs
from common.errors import InputError, UsageError
from common.flags import Positional
from common.registry import load
from records.documents import Best, TrainState
from records.files import write_record
from records.run import TrialDirectory
from records.training import TrainRun, is_train_run, read_events
from records.trial import Trial

TRAINS_GIVEN = "hf-trainer"
"""The implementation that trains the model of --model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainOptions:
    """Train a model until the run is complete. The same command resumes. Defaults are as published: NVIDIA's BERT-large
    for pretraining, Devlin et al. 2018 for fine-tuning.

    SIGTERM and Ctrl-C save a checkpoint before the run stops. A second signal stops it at once.

    With --vary, --seeds or --until, several trainings with one global batch size run one after another, and a table
    compares their time, samples/s, losses, scores and communication. Set --dropout 0 to get equal losses.

    Examples:
        bertbench train squad --data runs/squad --init bert-base --out runs/squad-train
        bertbench train gap --data runs/gap --vary head=mul,concat --seeds 3
        bertbench train pretrain --until mlm_loss=6.5 --seeds 3 --preset mini --data data/mine --steps 1000
    """

    task: Positional[str]
    """Task to train."""
    file: Positional[str | None] = None
    """Same as --data."""
    task_flags: TaskFlags = field(default_factory=TaskFlags)
    phase: int | None = None
    """Phase of pretraining: 1 uses sequences of 128 tokens, 2 of 512, after phase 1; default 1."""
    data: str | None = None
    """Shards (pretrain), features (squad gap glue), CSV or SQLite file (classify), or synthetic."""
    out: Path | None = None
    """Run directory. The same command resumes it; default runs/train, of several trainings runs/trainings."""
    vary: tuple[str, ...] = ()
    """Train each combination of options, such as strategy=ddp,fsdp; default one training."""
    seeds: Annotated[int | None, COUNT] = None
    """Trainings of each combination, with the seeds from --seed on; default 1."""
    until: str | None = None
    """Stop pretraining at a held-out loss, mlm_loss=X: time and cost to it; default all steps."""
    profile_steps: Annotated[int, Parameter(validator=validators.Number(gte=0))] = 3
    """Steps to profile of each combination on several devices, with the PyTorch profiler; 0 disables it."""
    price_per_hour: Annotated[float | None, POSITIVE] = None
    """Price of the machine per hour, for the cost of several trainings; default no cost."""
    model: str = ""
    """Train this Hugging Face model with hf-trainer: folder, config.json or hub id; default a preset."""
    trust_remote_code: bool = False
    """Run the Python code that comes with --model."""
    preset: Annotated[str | None, PRESET] = None
    """Model size; default pretrain: large; fine-tuning: base; with --init, the size of those weights."""
    device: Annotated[str, DEVICE] = "auto"
    """Device type; default auto: a GPU where one is present."""
    devices: Annotated[int | None, COUNT] = None
    """Devices, one process each; default every GPU, or one process on all CPU cores."""
    strategy: Annotated[str, STRATEGY] = AUTO
    """Parallel strategy; default auto: single on one device, ddp on several."""
    implementation: Annotated[str | None, Parameter(choices=tuple(TRAININGS))] = None
    """Implementation; hf-trainer writes no intermediate checkpoints; default bertbench; with --model, hf-trainer."""
    zero_stage: int | None = None
    """ZeRO stage of deepspeed, 0 to 3; default the stage in --deepspeed-config, otherwise no sharding (0)."""
    deepspeed_config: Path | None = None
    """DeepSpeed configuration, JSON; its batch sizes, learning rate, decay and clipping apply unless given here."""
    global_batch_size: int | None = None
    """Sequences per update; default pretrain: 65536, in phase 2 32768; squad classify glue: 32; gap: 16."""
    micro_batch_size: int | None = None
    """Sequences per device and micro-step; default pretrain: 32, in phase 2 8; fine-tuning: 8."""
    grad_accum_steps: int | None = None
    """Micro-steps per update; default from the batch sizes."""
    seq_len: int | None = None
    """Tokens per sequence; default that of the data, for synthetic data of the phase or task."""
    steps: int | None = None
    """Updates of the run; default pretrain: 7038, in phase 2 1563; fine-tuning: from --epochs."""
    epochs: float | None = None
    """Passes over the data, instead of --steps; default squad: 2; gap classify glue: 3."""
    learning_rate: float | None = None
    """Peak learning rate; default pretrain: 6e-3, in phase 2 4e-3; fine-tuning: 3e-5."""
    warmup: float | None = None
    """Fraction of the updates for the learning-rate warm-up (cyclic: half a cycle); default pretrain: 0.2843, in
    phase 2 0.128; fine-tuning: 0.1."""
    optimizer: Literal["lamb", "adamw"] | None = None
    """Optimizer; default pretrain: lamb; fine-tuning: adamw."""
    schedule: Literal["poly", "linear", "constant", "cyclic"] | None = None
    """Learning-rate schedule; default pretrain: poly; fine-tuning: linear."""
    weight_decay: float | None = None
    """Weight decay of all parameters except biases and LayerNorm; default 0.01."""
    max_grad_norm: float | None = None
    """Maximum gradient norm; larger gradients are clipped; default 1."""
    dropout: float | None = None
    """Dropout probability everywhere, attention included; default 0.1."""
    activation_checkpointing: bool = False
    """Keep only the input of each layer and recompute the rest in the backward pass: less memory, the same losses."""
    step: Annotated[str | None, STEP] = None
    """Computation of a step: fast, or plain padded PyTorch; default fast."""
    bucket_mib: int | None = None
    """Gradient bucket size in MiB; default the strategy's own."""
    precision: Annotated[str, PRECISION] = AUTO
    """Numeric precision; default auto: bf16 where the hardware supports it, otherwise fp32."""
    fp8_fast_gradients: bool = False
    """GEMMs of gradients in fp8 add up in fewer bits, as those of the forward pass do; not measured on a GPU."""
    seed: int | None = None
    """Seed of weights, data order and dropout; default 42."""
    init: Path | None = None
    """Initial weights of a new run: a finished run (fine-tuning takes its best checkpoint, pretraining the latest), a
    checkpoint, or anything that `bertbench convert` reads; default random weights."""
    log_every: int | None = None
    """Steps between progress lines; default 10."""
    eval_every: int | None = None
    """Updates between evaluations, with one more at the end; default pretrain: never; fine-tuning: after each epoch,
    with --steps only at the end; squad: only with --eval-data."""
    eval_data: str | None = None
    """Features for evaluation (squad gap glue); default gap glue: those beside the training data."""
    eval_samples: int | None = None
    """Samples per evaluation, spread evenly; default 0: all."""
    best_by: str | None = None
    """Score that selects the best checkpoint, such as log_loss; default the task's own score."""
    save_every: int | None = None
    """Updates between checkpoints; default 200."""
    keep: int | None = None
    """Latest checkpoints to keep, in addition to the best; default 3."""
    padding: Literal["longest", "fixed"] | None = None
    """Padding of fine-tuning batches: to the longest sequence, or fixed to --seq-len; default longest."""
    max_seconds: Annotated[float | None, POSITIVE] = None
    """Save and stop after this time in s, for queues with a time limit; default no limit."""
    threads: Annotated[int | None, COUNT] = None
    """CPU threads per process; default an equal share."""
    logfile: Path | None = None
    """File to append progress, evaluations and results to, with timestamps; default no file."""
    log_to: Annotated[tuple[str, ...], Parameter(choices=(*LOGGERS, "none"))] = ()
    """Loggers; default tensorboard, and mlflow if MLFLOW_RUN_ID and MLFLOW_TRACKING_URI name a run."""
    json: bool = False
    """Print the result as JSON on stdout; progress goes to stderr."""

    def __post_init__(self) -> None:
        """Refuse data that are given twice."""
        if self.file is not None and self.data is not None:
            raise UsageError("option-conflict", f"{self.file} and --data {self.data} both give the data: give one")

    @property
    def several(self) -> bool:
        """Whether these are the options of several trainings, to be compared."""
        return bool(self.vary or self.seeds or self.until)

    def value(self, name: str) -> Any:
        """Return an option of the training or of its task, a path as text; None where it is not given."""
        found = getattr(self, name, getattr(self.task_flags, name, None))
        return str(found) if isinstance(found, Path) else found


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a training run."""

    options: TrainOptions
    """Options of the command."""
    settings: TrainSettings
    """Settings of bert.train."""
    phase: int | None
    """1 or 2; None for tasks without phases."""
    source: DataSource

    @property
    def implementation(self) -> str:
        """Implementation that trains, a name in bench.implementations.TRAININGS."""
        return self.options.implementation or (TRAINS_GIVEN if self.options.model else OURS)

    @property
    def log_to(self) -> tuple[str, ...]:
        """Names in bench.loggers.LOGGERS, auto or none."""
        return chosen_loggers(self.options.log_to)

    @property
    def request(self) -> dict[str, Any]:
        """The options as plain values, for the records."""
        return {"command": "train", **request_of(self.options)}

    def trial(self, **fields: Any) -> Trial:
        """Return a trial of this training with further `fields`: kind, device, measuring options."""
        return Trial.of(
            self.settings,
            implementation=self.implementation,
            devices_per_rank=devices_per_rank(self.settings.strategy, self.settings.world_size),
            data_fingerprint=self.source.fingerprint,
            **{"shape": "", "padding": "", **fields},  # a trial of kind train has them only in `training`
        )


def plan_training(options: TrainOptions, devices: Devices, world: World | None = None) -> Plan:
    """Return the plan of a training run; the size of a `world` of ranks is the number of devices."""
    given = [name for name in ("init", "preset", "dropout", "step") if getattr(options, name) is not None]
    check_options(options.model, options.task, given)
    if options.model and options.implementation not in (None, TRAINS_GIVEN):
        raise UsageError("unsupported-combination", f"--model is trained by {TRAINS_GIVEN}: omit --implementation")
    task, data = options.task, task_data(options.task)
    phase = 1 if options.phase is None and not data.defaults else options.phase
    defaults = task_defaults(task, phase)
    place, length = options.data or options.file, options.seq_len or defaults["seq_len"]
    if place is None:
        made = data.prepare_command(length)
        raise UsageError("option-missing", f"no data was given: give --data FOLDER; `{made}` prepares it")
    if world is not None:
        world_size = world.check_devices(options.devices)
    else:
        world_size = options.devices or devices.default_world_sizes()[-1]
        devices.environment(world_size)
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options) if field.name in GIVEN}
    values |= {"world_size": world_size, "precision": resolve_precision(options.precision, devices)}
    values |= _of_strategy(options, world_size, values, defaults)
    task_options = options.task_flags.options(task)
    source = data.inspect(place, length, task_options)
    if options.seq_len is None and phase is None:  # in pretraining the phase sets the length
        values["seq_len"] = source.seq_len
        length = source.seq_len or length
    if source.seq_len not in (None, length):
        problem = f"the samples in {source.source} have {source.seq_len} tokens, not {length}"
        raise InputError("data-mismatch", f"{problem}: use --seq-len {source.seq_len}")
    values |= {"data": source.source, "vocab_size": source.vocab_size, "max_predictions": source.max_predictions}
    values["task_options"] = resolve_options(task, task_options, source)
    if options.model:
        found = find_model(options.model, options.trust_remote_code)
        values |= {**found.settings, "vocab_size": check_data(found, length, source)}
    if options.init is not None:
        init = initial_weights(options.init, best=phase is None)
        values |= {"init": str(init), **shape_of(init, options.preset)}
    if options.eval_data:
        values["eval_data"] = str(Path(options.eval_data).resolve())
    settings = resolve_settings(phase, values, source.samples)
    if settings.eval_every:
        judged = make_task(task, settings.task_options)
        judged.check_evaluation(settings.data, settings.seq_len, settings.eval_data)
    plan = Plan(options, settings, phase, source)
    if plan.implementation != OURS and settings.step != FAST:
        raise UsageError("unsupported-combination", f"implementation {plan.implementation} has no --step: omit it")
    if plan.implementation != OURS:
        load(IMPLEMENTATIONS, plan.implementation, "implementation")().check(plan.trial())
    return plan


def _of_strategy(
    options: TrainOptions, world_size: int, values: Mapping[str, Any], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the strategy with its options, and settings of a DeepSpeed configuration that no option sets."""
    strategy = resolve_strategy(options.strategy, world_size)
    config = None if options.deepspeed_config is None else read_deepspeed_config(options.deepspeed_config)
    own = {"zero_stage": options.zero_stage, "bucket_mib": options.bucket_mib, "config": config}
    read = {} if config is None else training_values(config)
    read = {name: value for name, value in read.items() if values.get(name) is None}
    micro, batches = read.get("micro_batch_size"), {"global_batch_size", "grad_accum_steps"}
    given = {name for name in batches if values.get(name) or read.get(name)}
    if micro and not given and defaults["global_batch_size"] % (micro * world_size):
        read["grad_accum_steps"] = 1  # DeepSpeed's default, where that of the global batch size does not fit
    return {"strategy": strategy, "strategy_options": options_text(strategy, own), **read}


def check_continues(run: TrainRun, plan: Plan) -> None:
    """Refuse to resume a run with another implementation; the ranks compare everything else."""
    for attempt in run.attempts()[-1:]:
        before = {"implementation": attempt.read_trial().implementation}
        check_same_request(run.path, before, {"implementation": plan.implementation})


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


def train_once(
    run: TrainRun, plan: Plan, devices: Devices, watcher: Any, leader: Leader | None = None
) -> tuple[TrialDirectory, dict[str, Any]]:
    """Make one attempt inside a lock on the run; return its folder and result.

    `watcher` has `look` and `stop_wanted` of LaunchOptions. The ranks of the world of `leader` make it together.
    """
    options = LaunchOptions(
        timeout_seconds=None,
        leader=leader,
        variables={LOG_TO_VARIABLE: " ".join(plan.log_to)},
        look=watcher.look,
        stop_wanted=watcher.stop_wanted,
    )
    for before in run.attempts():
        if before.read_result() is None:
            reason = "killed with its launcher, or interrupted, before it recorded a result"
            finish(before.read_trial(), before, "crashed", reason, options, code="worker-lost")
    trial = plan.trial(
        kind="train",
        device=devices.kind,
        round=max((before.read_trial().round for before in run.attempts()), default=-1) + 1,
        max_steps=plan.settings.steps,
        threads_per_rank=plan.options.threads,
        training=tuple(sorted(plan.settings.to_json().items())),
    )
    directory = run.run.trial(trial.trial_id)
    try:
        result = run_trial(trial, directory, devices, capture(devices), options)
    finally:
        remove_left_overs(run.path, "trials/*")  # of killed ranks
        if directory.trial_json.exists():
            write_record(run.state_json, msgspec.to_builtins(_state(run, plan)))
            write_results(run.run)
    return directory, result


def _state(run: TrainRun, plan: Plan) -> TrainState:
    """Where the run stands: what the attempts wrote down while they ran is there however they ended.

    An attempt that was refused changes nothing of what the run is: phase, steps and request stay those before it.
    """
    attempts = run.attempts()
    events = [event for directory in attempts for event in read_events(directory)]
    reached = [event for event in events if event["event"] in ("resumed", "saved")]
    applied_steps = reached[-1]["applied_steps"] if reached else 0
    # After a damaged checkpoint an earlier one continues.
    checkpoints = [Path(event["path"]).name for event in reached if not event.get("new_phase")]
    checkpoint = checkpoints[-1] if checkpoints else None
    saved: dict[str, Any] = next((event for event in reversed(reached) if event["event"] == "saved"), {})
    best: dict[str, Any] = {name: saved.get(f"best_{name}") for name in Best.__struct_fields__}
    result = attempts[-1].read_result() or {}
    state = TrainState(
        phase=plan.phase,
        total_steps=plan.settings.steps,
        request=plan.request,
        loss=make_task(plan.settings.task, plan.settings.task_options).loss_label(),
        applied_steps=applied_steps,
        status=result.get("status", "interrupted"),
        reason=result.get("reason", ""),
        checkpoint=checkpoint,
        evaluation=next((event for event in reversed(events) if event["event"] == "evaluated"), None),
        best=None if best["checkpoint"] is None else Best(**best),
        attempts=[directory.path.name for directory in attempts],
    )
    if state.status == "refused" and run.state_json.exists():
        before = run.read_state()
        state.phase, state.total_steps, state.request = before.phase, before.total_steps, before.request
    state.finished = checkpoint is not None and applied_steps >= state.total_steps
    return state
