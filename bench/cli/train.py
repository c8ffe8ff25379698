"""`bertbench train TASK`: train, resume, evaluate."""

import json
import shlex
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from analysis.records import TrialDirectory
from analysis.train_records import TrainRun
from analysis.train_scores import evaluation_text, in_words, parts_text
from bench.cli.options import parse, request_of, run_folder
from bench.cli.progress import note
from bench.cli.train_progress import TrainProgress, duration
from bench.devices import find_devices
from bench.plan import AUTO, inspect_data
from bench.stop import StopRequest
from bench.trainer import Plan, check_continues, plan_training, train_once
from bert.tasks import TASKS
from common import locks
from common.errors import InputError, StorageError, UsageError
from common.registry import lookup

_OUT_HELP = "Run directory; a call with the same folder resumes it."


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainOptions:
    """Train until the run is complete; the same command resumes it. What is not given is as it was published: NVIDIA's
    BERT-large for pretraining, Devlin et al. 2018 for fine-tuning.

    SIGTERM and Ctrl-C save a checkpoint before they end it; a second signal ends it at once.
    """

    task: tyro.conf.Positional[str]
    """What is trained: pretrain squad."""
    phase: int | None = None
    """Of pretraining, 1 unless given: 1 is sequences of 128 tokens, 2 of 512, after phase 1."""
    data: str | None = None
    """Folder of HDF5 shards (pretrain), features (squad), or synthetic."""
    out: Annotated[Path, tyro.conf.arg(help=_OUT_HELP)] = Path("runs/train")
    preset: str | None = None
    """tiny mini small medium base large distilbert; default large, squad base, with --init its own."""
    device: str = "auto"
    """cpu cuda auto."""
    devices: int | None = None
    """Devices, one process each; default every GPU, or one process on all CPU cores."""
    strategy: str = AUTO
    """single ddp; auto: single on one device, ddp on several."""
    global_batch_size: int | None = None
    """Sequences per update; default 65536, in phase 2 32768, squad 32."""
    micro_batch_size: int | None = None
    """Sequences per device and micro-step; default 32, in phase 2 8, squad 8."""
    grad_accum_steps: int | None = None
    """Micro-steps per update; default what the batch sizes need."""
    seq_len: int | None = None
    """Tokens per sequence; default 128, in phase 2 512, squad 384."""
    steps: int | None = None
    """Updates in the whole run; default 7038, in phase 2 1563, else those of the epochs."""
    epochs: float | None = None
    """How often every sample is seen, in place of --steps; squad's default 2."""
    learning_rate: float | None = None
    """Rate that the warm-up climbs to; default 6e-3, in phase 2 4e-3, squad 3e-5."""
    warmup: float | None = None
    """Fraction of the updates spent on the warm-up; default .2843, in phase 2 .128, squad .1."""
    optimizer: str | None = None
    """lamb adamw; default lamb, squad adamw."""
    schedule: str | None = None
    """poly linear constant; default poly, squad linear."""
    weight_decay: float | None = None
    """Decay of all but biases and LayerNorm; default .01."""
    max_grad_norm: float | None = None
    """Gradients are clipped to this norm; default 1."""
    dropout: float | None = None
    """Dropout probability everywhere; default .1."""
    precision: str = AUTO
    """fp32 tf32 bf16 fp16; auto: bf16 where in hardware, else fp32."""
    seed: int | None = None
    """Seed of weights, data order and dropout; default 42."""
    init: Path | None = None
    """Where a new run begins: a finished run, a checkpoint, or anything that `bertbench convert` reads."""
    log_every: int | None = None
    """Steps between lines of progress; default 10."""
    eval_every: int | None = None
    """Updates between evaluations, and one at the end; default never, with --eval-data after each epoch."""
    eval_data: str | None = None
    """What it is evaluated on, a features file (squad); pretraining takes the test shards beside the others."""
    eval_samples: int | None = None
    """Samples of an evaluation; default all."""
    save_every: int | None = None
    """Updates between checkpoints; default 200."""
    keep: int | None = None
    """Checkpoints that stay, the latest; default 3; the best one stays besides."""
    padding: str | None = None
    """Of windows (squad): longest, to the longest of a micro-batch, or fixed, to --seq-len; default longest."""
    max_seconds: float | None = None
    """Save and end after this time, as a signal would; for the limits of queues."""
    threads: int | None = None
    """CPU threads per process; default an equal share."""
    json: bool = False
    """Print the result as JSON, progress on stderr."""

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing; the others are checked with the settings of the run."""
        for name in ("devices", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name} {value} must be at least 1")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise UsageError(f"--max-seconds {self.max_seconds} must be above 0")


OPTIONS = {"train TASK": TrainOptions}
# Options that are fields of bert.training.TrainSettings.
_SETTINGS = (
    "task", "preset", "dropout", "data", "seq_len", "micro_batch_size", "grad_accum_steps", "global_batch_size",
    "optimizer", "learning_rate", "schedule", "warmup", "steps", "weight_decay", "max_grad_norm", "precision",
    "strategy", "seed", "log_every", "eval_every", "eval_data", "eval_samples", "save_every", "keep", "init", "epochs",
    "padding",
)  # fmt: skip


def main(argv: list[str]) -> int:
    """Run the command; 0 also when it was stopped in time, 2 when it was refused, 3 when it failed."""
    with StopRequest() as stop:  # from here on: a signal while data are looked at is one, too
        options = _options(argv)
        stop.limit(options.max_seconds)
        devices = find_devices(options.device)
        if devices.note and options.device == "auto" and not options.json:
            print(f"training on the CPU: {devices.note}", file=sys.stderr)
        run = TrainRun(run_folder(options.out))
        given = {name: getattr(options, name) for name in _SETTINGS} | {"world_size": options.devices}
        plan = plan_training(options.phase, given, devices)
        progress = TrainProgress(stop)
        with locks.locked(run.path, "another call", "wait for it, or choose another --out"):
            check_continues(run, plan, given)
            if (plan.phase or 1) > 1 and plan.settings.init is None and not run.attempts():
                note(f"phase {plan.phase} begins from scratch here: --init RUN takes the weights of a finished run")
            if stop.wanted():
                print(f"stopped by {stop.why()} before anything began", file=sys.stderr)
                return 130 if stop.signal == signal.SIGINT else 0
            request = {"command": "train", **request_of(options)}
            try:
                directory, result = train_once(run, plan, devices, request, progress, options.threads)
            except StorageError as error:
                raise StorageError(f"{error}; what the ranks said is in {run.path}/trials/*/log.txt") from error
            finally:
                progress.end()
        return _finish(options, argv, run, plan, directory, result, stop)


def _options(argv: list[str]) -> TrainOptions:
    if not argv or (argv[0].startswith("-") and argv[0] not in ("-h", "--help")):
        raise UsageError(f"bertbench train needs a task: bertbench train {' | '.join(TASKS)} [options]")
    if not argv[0].startswith("-"):
        lookup(TASKS, argv[0], "task")
    return parse(TrainOptions, argv, "bertbench train")


def _finish(
    options: TrainOptions,
    argv: list[str],
    run: TrainRun,
    plan: Plan,
    directory: TrialDirectory,
    result: Mapping[str, Any],
    stop: StopRequest,
) -> int:
    """Show how the attempt ended; return the exit code."""
    from bert.training.events import LAST_GOOD_CHECKPOINT

    found = dict(result.get("outcome") or {})
    status = str(result["status"])
    if status == "ok":
        following = next_command(options, argv, run, plan, bool(found["finished"]))
        if options.json:
            _print_json(run, directory, result, next=following)
        else:
            print(_table(run, result, found))
            print(_ending(found, stop, following))
        return 130 if stop.signal == signal.SIGINT and not found["finished"] else 0
    message = f"{result.get('reason') or status}\n  the log of this attempt: {directory.log}"
    resumable = status != "refused" and LAST_GOOD_CHECKPOINT not in message  # what diverged would diverge again
    if resumable and (run.read_state() or {}).get("checkpoint"):
        message += "\n  the same command resumes from the last checkpoint"
    if options.json:
        _print_json(run, directory, result, next=None)
    print(f"bertbench: {'' if status == 'refused' else f'{status}: '}{message}", file=sys.stderr)
    return 2 if status == "refused" else 3


def _print_json(run: TrainRun, directory: TrialDirectory, result: Mapping[str, Any], **more: Any) -> None:
    found = {"run": str(run.path), "state": run.read_state(), "result": dict(result), "log": str(directory.log)}
    print(json.dumps({**found, **more}, indent=2, allow_nan=False))


def _table(run: TrainRun, result: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    rate = result.get("samples_per_second")
    skipped = f", {found['skipped_steps']:,} left out after overflows" if found["skipped_steps"] else ""
    rows = [
        ("steps", f"{found['applied_steps']:,} of {found['total_steps']:,}, {found['steps_made']:,} now{skipped}"),
        ("samples", f"{found['samples_seen']:,}, {found['samples']:,} now"),
        ("time", duration(float(result.get("wall_seconds") or 0.0))),
        ("samples/s", "not measured" if rate is None else f"{rate:,.1f}"),
    ]
    if found["loss"] is not None:
        parts = parts_text(found["loss_parts"])
        rows.append(("loss", f"{found['loss']:.4f} {f'({parts}) ' if parts else ''}in the last step"))
    if found["evaluation"] is not None:
        after = found["evaluation"]["applied_steps"]
        when = "earlier" if after is None else f"after step {after:,}"
        rows.append(("evaluation", f"{evaluation_text(found['evaluation'])}, {when}"))
    if found["checkpoint"] is not None:
        rows.append(("checkpoint", str(run.checkpoints / found["checkpoint"])))
    if found["best"] is not None:
        best = found["best"]
        reached = f"{in_words(best['score'], best['value'])} after step {best['applied_steps']:,}"
        rows.append(("best", f"{run.checkpoints / best['checkpoint']} ({reached})"))
    rows.append(("curve", str(run.curve_csv)))
    return "\n".join(f"{name:<11} {value}" for name, value in rows)


def _ending(found: Mapping[str, Any], stop: StopRequest, following: str) -> str:
    if found["finished"]:
        return f"finished; next: {following}"
    why = stop.why() or "a signal to the ranks"
    if found["checkpoint"] is None:
        return f"stopped by {why} before the first step; to begin: {following}"
    return (
        f"stopped by {why} after step {found['applied_steps']:,} of {found['total_steps']:,}, which is saved; "
        f"to continue: {following}"
    )


def next_command(options: TrainOptions, argv: list[str], run: TrainRun, plan: Plan, finished: bool) -> str:
    """Return what to call next: the same again, phase 2 after phase 1, a conversion after phase 2; a prediction."""
    if not finished:
        return shlex.join(["bertbench", "train", *argv])
    if plan.phase == 1:
        out = run.path.with_name(f"{run.path.name}-phase2")
        words = ["--phase", "2", "--data", _data_of_phase_2(options.data), "--init", str(run.path), "--out", str(out)]
        return shlex.join(["bertbench", "train", "pretrain", *_kept_options(options), *words])
    state = run.read_state() or {}
    checkpoint = state.get("checkpoint")
    source = run.checkpoints / checkpoint if checkpoint else run.checkpoints
    if plan.phase is None:
        best = (state.get("best") or {}).get("checkpoint")
        source = run.checkpoints / best if best else source
        words = ["--checkpoint", str(source), "--features", plan.settings.eval_data or "FEATURES"]
        out = run.path.with_name(f"{run.path.name}-predictions")
        return shlex.join(["bertbench", "predict", plan.settings.task, *words, "--out", str(out)])
    return shlex.join(["bertbench", "convert", str(source), str(run.path.with_name(f"{run.path.name}-hugging-face"))])


def _kept_options(options: TrainOptions) -> list[str]:
    """What was given for phase 1 and holds in phase 2 as well; lengths of run and warm-up and the rate are its own."""
    names = (
        "preset",
        "global_batch_size",
        "micro_batch_size",
        "optimizer",
        "schedule",
        "weight_decay",
        "dropout",
        "seed",
    )
    words = [(f"--{name.replace('_', '-')}", getattr(options, name)) for name in names]
    words += [("--devices", options.devices), ("--threads", options.threads)]
    words += [("--precision", None if options.precision == AUTO else options.precision)]
    return [word for name, value in words if value is not None for word in (name, str(value))]


def _data_of_phase_2(data: str | None) -> str:
    """The same folder where it holds samples of 512 tokens, too."""
    try:
        return str(data) if inspect_data(str(data), 512).seq_len in (None, 512) else "FOLDER_OF_512_TOKENS"
    except InputError:
        return "FOLDER_OF_512_TOKENS"
