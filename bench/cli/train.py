"""`bertbench train TASK`: train, resume, evaluate."""

import json
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from bench.cli.options import check_task, parse, plain_words, run_folder
from bench.cli.progress import note
from bench.cli.train_progress import TrainProgress, append_log, duration
from bench.cluster.inside import follow
from bench.cluster.world import World, joined_world, leading
from bench.implementations import OURS
from bench.machine.devices import find_devices
from bench.plan.options import AUTO
from bench.plan.training import Plan, TrainOptions, check_continues, check_space, plan_training
from bench.run.attempt import train_once
from bench.run.stop import StopRequest
from bert.tasks import check_task_options, task_data
from bert.tasks.base import Trained
from common import locks
from common.errors import BertbenchError, InputError, StorageError
from common.flags import flag
from common.redact import terminal_text
from common.scores import evaluation_text, in_words, parts_text
from records.run import TrialDirectory
from records.training import TrainRun

if TYPE_CHECKING:
    from bench.cli.train_classify import TrainClassifyOptions
    from bench.plan.training import TrainOptions


def next_command(options: "TrainOptions", argv: list[str], run: TrainRun, plan: Plan, finished: bool) -> str:
    """Return what to call next: the same again, phase 2 after phase 1, a conversion after phase 2; a prediction, or the
    report where nothing is there to predict."""
    if not finished:
        return shlex.join(["bertbench", "train", *argv])
    if plan.phase == 1:
        out = run.path.with_name(f"{run.path.name}-phase2")
        words = [
            "--phase",
            "2",
            "--data",
            _data_of_phase_2(options.data or options.file),
            "--init",
            str(run.path),
            "--out",
            str(out),
        ]
        return shlex.join(["bertbench", "train", "pretrain", *_kept_options(options), *words])
    state = run.read_state() or {}
    checkpoint = state.get("checkpoint")
    source = run.checkpoints / checkpoint if checkpoint else run.checkpoints
    if plan.phase is None:
        best = (state.get("best") or {}).get("checkpoint")
        source = run.checkpoints / best if best else source
    settings = plan.settings
    known = check_task_options(settings.task, settings.task_options)
    trained = Trained(source, run.path, settings.data, settings.eval_data, known)
    found = task_data(settings.task).next_command(trained)
    return shlex.join(found or ["bertbench", "report", str(run.path)])


def _kept_options(options: "TrainOptions") -> list[str]:
    """What was given for phase 1 and holds in phase 2 as well; lengths of run and warm-up are its own.

    A rate that was not given is that of the phase, which is LAMB's for large batches; one that was given holds on.
    """
    names = (
        "preset",
        "global_batch_size",
        "micro_batch_size",
        "optimizer",
        "learning_rate",
        "schedule",
        "weight_decay",
        "dropout",
        "seed",
    )
    words = [(flag(name), getattr(options, name)) for name in names]
    words += [
        ("--strategy", None if options.strategy == AUTO else options.strategy),
        ("--zero-stage", options.zero_stage),
    ]
    words += [("--implementation", None if options.implementation == OURS else options.implementation)]
    words += [("--devices", options.devices), ("--threads", options.threads)]
    words += [("--precision", None if options.precision == AUTO else options.precision)]
    return [word for name, value in words if value is not None for word in (name, str(value))]


def _data_of_phase_2(data: str | None) -> str:
    """The same folder where it holds samples of 512 tokens, too."""
    try:
        return (
            str(data)
            if task_data("pretrain").inspect(str(data), 512).seq_len in (None, 512)
            else "FOLDER_OF_512_TOKENS"
        )
    except InputError:
        return "FOLDER_OF_512_TOKENS"


def main(argv: list[str]) -> int:
    """Run the command; 0 also when it was stopped in time, 2 when it was refused, 3 when it failed.

    As a rank of a world that torchrun or `bertbench launch` has started it joins that world: rank 0 does all this with
    its own rank alone, the others do as it says.
    """
    world = joined_world()
    if world is not None and world.rank:
        _follow(argv, world)
    with StopRequest() as stop, leading(world) as leader:  # from here on: a signal while data are looked at is one, too
        options = _options(argv)
        classifies = _classifies(options)
        if classifies is not None:
            options = classifies = classifies.prepared(argv)
            if classifies.prep_only:
                return 0
        stop.limit(options.max_seconds)
        devices = find_devices(options.device)
        run = TrainRun(run_folder(options.out))
        is_new = not run.path.exists()
        plan = plan_training(options, devices, world)
        check_space(run, plan)
        progress = TrainProgress(stop, _log_of(options))
        with locks.locked(run.path, "another call", "wait for it, or choose another --out"):
            check_continues(run, plan)
            if devices.note and options.device == "auto" and not options.json:
                print(f"training on the CPU: {devices.note}", file=sys.stderr)
                append_log(_log_of(options), f"training on the CPU: {devices.note}")
            if (plan.phase or 1) > 1 and plan.settings.init is None and not run.attempts():
                note(f"phase {plan.phase} begins from scratch here: --init RUN takes the weights of a finished run")
            if stop.wanted():
                print(f"stopped by {stop.why()} before anything began", file=sys.stderr)
                return 130 if stop.signal == signal.SIGINT else 0
            try:
                directory, result = train_once(run, plan, devices, progress, leader, keep_refused=leader is not None)
            except StorageError as error:
                raise StorageError(
                    error.code, f"{error}; what the ranks said is in {run.path}/trials/*/log.txt"
                ) from error
            finally:
                progress.end()
        if is_new and result["status"] == "refused":
            locks.discard(run.checkpoints)
            locks.discard(run.path)
        leave = None if classifies is None else partial(classifies.leave, run, plan, devices)
        return _finish(options, argv, run, plan, directory, result, stop, world, leave)


def _follow(argv: list[str], world: World) -> NoReturn:
    """Be another rank than 0, which alone says what goes wrong for all."""
    code = 3
    try:
        with StopRequest():  # until the rank listens itself
            code = follow(world, find_devices(_options(argv).device))
    except BertbenchError as error:
        print(f"bertbench: {terminal_text(str(error))}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of a broken process group must not hold the process


def _options(argv: list[str]) -> TrainOptions:
    check_task(argv, "bertbench train")
    if argv[0] == "classify":
        from bench.cli.data_csv import DEFAULT_WORDS

        argv = plain_words(argv, DEFAULT_WORDS)
    return parse(_options_class(argv[0]), argv, "bertbench train")


def _options_class(task: str) -> "type[TrainOptions]":
    if task != "classify":
        return TrainOptions
    from bench.cli.train_classify import TrainClassifyOptions

    return TrainClassifyOptions


def _classifies(options: TrainOptions) -> "TrainClassifyOptions | None":
    """The options of a training that prepares its data and leaves results; None where it does not."""
    from bench.cli.train_classify import TrainClassifyOptions

    return options if isinstance(options, TrainClassifyOptions) else None


def _finish(
    options: TrainOptions,
    argv: list[str],
    run: TrainRun,
    plan: Plan,
    directory: TrialDirectory,
    result: Mapping[str, Any],
    stop: StopRequest,
    world: World | None,
    leave: Callable[[], None] | None = None,
) -> int:
    """Show how the attempt ended, and let a finished run leave its files; return the exit code."""
    from bert.train.events import LAST_GOOD_CHECKPOINT

    found = dict(result.get("outcome") or {})
    status = str(result["status"])
    if status == "ok":
        following = next_command(options, argv, run, plan, bool(found["finished"]))
        launched = world is not None and following.startswith("bertbench train ")
        ending = _ending(found, stop, f"{following}, launched as this was" if launched else following)
        _tell(options, _table(run, result, found))
        if leave is not None and found["finished"]:
            leave()
        _tell(options, ending)
        if options.json:
            _print_json(run, directory, result, next=following)
        return 130 if stop.signal == signal.SIGINT and not found["finished"] else 0
    message = str(result.get("reason") or status)
    if directory.log.exists():
        message += f"\n  the log of this attempt: {directory.log}"
    resumable = status != "refused" and LAST_GOOD_CHECKPOINT not in message  # what diverged would diverge again
    if resumable and (run.read_state() or {}).get("checkpoint"):
        message += "\n  the same command resumes from the last checkpoint"
    if options.json:
        _print_json(run, directory, result, next=None)
    code = f" [{result['code']}]" if result.get("code") else ""
    said = f"bertbench: {'' if status == 'refused' else f'{status}: '}{message}{code}"
    append_log(_log_of(options), said)
    print(said, file=sys.stderr)
    return 2 if status == "refused" else 3


def _tell(options: TrainOptions, text: str) -> None:
    """Print, and append to the log where there is one; with --json only the latter."""
    append_log(_log_of(options), text)
    if not options.json:
        print(text)


def _log_of(options: TrainOptions) -> Path | None:
    """The file that all that is told is kept in, where there is one."""
    classifies = _classifies(options)
    return None if classifies is None else classifies.logfile


def _print_json(run: TrainRun, directory: TrialDirectory, result: Mapping[str, Any], **more: Any) -> None:
    found = {
        "run": str(run.path),
        "state": run.read_state(),
        "result": dict(result),
        "log": str(directory.log) if directory.log.exists() else None,
    }
    print(json.dumps({**found, **more}, indent=2, allow_nan=False))


def _table(run: TrainRun, result: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    rate = result.get("samples_per_second")
    skipped = f", {found['skipped_steps']:,} left out after overflows" if found["skipped_steps"] else ""
    rows = [
        ("steps", f"{found['applied_steps']:,} of {found['total_steps']:,}, {found['steps_made']:,} now{skipped}"),
        ("samples", f"{found['samples_seen']:,}, {found['samples']:,} now"),
        ("time", duration(float(result.get("wall_seconds") or 0.0))),
        ("samples/s", "not measured" if rate is None else f"{rate:,.1f} at the median step time"),
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


def __getattr__(name: str) -> Any:
    """Return the options of all tasks as OPTIONS, for the reference page."""
    if name != "OPTIONS":
        raise AttributeError(name)
    return {"train TASK": TrainOptions, "train classify FILE": _options_class("classify")}
