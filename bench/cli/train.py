"""`bertbench train TASK`: train, resume, evaluate."""

import os
import shlex
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from bench.cli.options import check_task, parse, plain_words, run_folder
from bench.cli.progress import note
from bench.cli.result import Result
from bench.cli.train_progress import TrainProgress, append_log, duration
from bench.cluster.inside import follow
from bench.cluster.world import World, joined_world, leading
from bench.implementations import OURS
from bench.machine.devices import Devices, find_devices
from bench.plan.options import AUTO
from bench.plan.training import Plan, TrainOptions, check_continues, check_space, plan_training
from bench.run.attempt import train_once
from bench.run.processes import StopRequest
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


@dataclass(frozen=True, slots=True)
class TrainCall:
    """A call of the command."""

    options: TrainOptions
    words: list[str]
    """As they were given: the same words go on with the training."""

    @property
    def json(self) -> bool:
        """Whether the result is for programs."""
        return self.options.json


def next_command(options: TrainOptions, words: list[str], run: TrainRun, plan: Plan, finished: bool) -> str:
    """Return what to call next: the same again, phase 2 after phase 1, a conversion after phase 2; a prediction, or the
    report where nothing is there to predict."""
    if not finished:
        return shlex.join(["bertbench", "train", *words])
    if plan.phase == 1:
        out = run.path.with_name(f"{run.path.name}-phase2")
        own = ["--phase", "2", "--data", _data_of_phase_2(options.data or options.file)]
        own += ["--init", str(run.path), "--out", str(out)]
        return shlex.join(["bertbench", "train", "pretrain", *_kept_options(options), *own])
    state = run.read_state() or {}
    checkpoint = state.get("checkpoint")
    if plan.phase is None:
        checkpoint = (state.get("best") or {}).get("checkpoint") or checkpoint
    source = run.checkpoints / checkpoint if checkpoint else run.checkpoints
    settings = plan.settings
    known = check_task_options(settings.task, settings.task_options)
    trained = Trained(source, run.path, settings.data, settings.eval_data, known)
    found = task_data(settings.task).next_command(trained)
    return shlex.join(found or ["bertbench", "report", str(run.path)])


# Options of phase 1 that hold in phase 2, and what stands for not given; lengths of run and warm-up are its own.
# A rate that was not given is that of the phase, which is LAMB's for large batches; one that was given holds on.
_KEPT = {
    **dict.fromkeys(
        ("preset", "global_batch_size", "micro_batch_size", "optimizer", "learning_rate", "schedule", "weight_decay",
         "dropout", "seed")
    ),
    "strategy": AUTO, "zero_stage": None, "implementation": OURS, "devices": None, "threads": None, "precision": AUTO,
}  # fmt: skip


def _kept_options(options: TrainOptions) -> list[str]:
    given = ((name, getattr(options, name), absent) for name, absent in _KEPT.items())
    return [word for name, value, absent in given if value != absent for word in (flag(name), str(value))]


def _data_of_phase_2(data: str | None) -> str:
    """The same folder where it holds samples of 512 tokens, too."""
    try:
        fits = task_data("pretrain").inspect(str(data), 512).seq_len in (None, 512)
    except InputError:
        fits = False
    return str(data) if fits else "FOLDER_OF_512_TOKENS"


def read_words(words: list[str], program: str) -> TrainCall:
    """Return the options, those of the task that the first word names."""
    check_task(words, program)
    options = _options_class(words[0])
    return TrainCall(parse(options, plain_words(words, options), program), words)


def run(call: TrainCall) -> Result:
    """Train; exit code 0 also when it was stopped in time, 2 when it was refused, 3 when it failed.

    As a rank of a world that torchrun or `bertbench launch` has started it joins that world: rank 0 does all this with
    its own rank alone, the others do as it says.
    """
    options = call.options
    world = joined_world()
    if world is not None and world.rank:
        _follow(options, world)
    with StopRequest() as stop, leading(world) as leader:  # from here on: a signal while data are looked at is one, too
        classifies = _classifies(options)
        if classifies is not None:
            options = classifies = classifies.prepared(call.words)
            if classifies.prep_only:
                return Result()
        stop.limit(options.max_seconds)
        devices = find_devices(options.device)
        place = TrainRun(run_folder(options.out))
        is_new = not place.path.exists()
        plan = plan_training(options, devices, world)
        check_space(place, plan)
        progress = TrainProgress(stop, _log_of(options))
        with locks.locked(place.path, "another call", "wait for it, or choose another --out"):
            check_continues(place, plan)
            if devices.note and options.device == "auto" and not options.json:
                print(f"training on the CPU: {devices.note}", file=sys.stderr)
                append_log(_log_of(options), f"training on the CPU: {devices.note}")
            if (plan.phase or 1) > 1 and plan.settings.init is None and not place.attempts():
                note(f"phase {plan.phase} begins from scratch here: --init RUN takes the weights of a finished run")
            if stop.wanted():
                said = f"stopped by {stop.why()} before anything began"
                return Result(problems=[said], code=130 if stop.signal == signal.SIGINT else 0)
            try:
                directory, result = train_once(
                    place, plan, devices, progress, leader, keep_refused=leader is not None
                )  # fmt: skip
            except StorageError as error:
                raise StorageError(
                    error.code, f"{error}; what the ranks said is in {place.path}/trials/*/log.txt"
                ) from error
            finally:
                progress.end()
        if is_new and result["status"] == "refused":
            locks.discard(place.checkpoints)
            locks.discard(place.path)
        if result["status"] != "ok":
            return _failed(options, place, directory, result)
        return _ended(TrainCall(options, call.words), place, plan, directory, result, stop, devices, world)


def _follow(options: TrainOptions, world: World) -> NoReturn:
    """Be another rank than 0, which alone says what goes wrong for all."""
    code = 3
    try:
        with StopRequest():  # until the rank listens itself
            code = follow(world, find_devices(options.device))
    except BertbenchError as error:
        print(f"bertbench: {terminal_text(str(error))}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of a broken process group must not hold the process


def _options_class(task: str) -> "type[TrainOptions]":
    if task != "classify":
        return TrainOptions
    from bench.cli.train_classify import TrainClassifyOptions

    return TrainClassifyOptions


def _classifies(options: TrainOptions) -> "TrainClassifyOptions | None":
    """The options of a training that prepares its data and leaves results; None where it does not."""
    from bench.cli.train_classify import TrainClassifyOptions

    return options if isinstance(options, TrainClassifyOptions) else None


def _ended(
    call: TrainCall,
    place: TrainRun,
    plan: Plan,
    directory: TrialDirectory,
    result: Mapping[str, Any],
    stop: StopRequest,
    devices: Devices,
    world: World | None,
) -> Result:
    """What an attempt came to that ended well; a finished run leaves its files."""
    from analysis.render.tables import Facts, Plain

    options, found = call.options, dict(result["outcome"])
    following = next_command(options, call.words, place, plan, bool(found["finished"]))
    launched = world is not None and following.startswith("bertbench train ")
    ending = _ending(found, stop, f"{following}, launched as this was" if launched else following)
    facts = _facts(place, result, found)
    failure: BertbenchError | None = None
    classifies = _classifies(options)
    if classifies is not None and found["finished"]:
        try:
            facts += classifies.leave(place, plan, devices)
        except BertbenchError as error:
            failure = error
    append_log(_log_of(options), "\n".join([*(f"{name:<11} {value}" for name, value in facts), ending]))
    return Result(
        document=None if failure else _document(place, directory, result, next=following),
        blocks=[Facts(facts), Plain(ending)],
        failure=failure,
        code=130 if stop.signal == signal.SIGINT and not found["finished"] else 0,
    )


def _failed(options: TrainOptions, place: TrainRun, directory: TrialDirectory, result: Mapping[str, Any]) -> Result:
    from bert.train.events import LAST_GOOD_CHECKPOINT

    status = str(result["status"])
    message = str(result.get("reason") or status)
    if directory.log.exists():
        message += f"\n  the log of this attempt: {directory.log}"
    resumable = status != "refused" and LAST_GOOD_CHECKPOINT not in message  # what diverged would diverge again
    if resumable and (place.read_state() or {}).get("checkpoint"):
        message += "\n  the same command resumes from the last checkpoint"
    code = f" [{result['code']}]" if result.get("code") else ""
    said = f"{'' if status == 'refused' else f'{status}: '}{message}{code}"
    append_log(_log_of(options), f"bertbench: {said}")
    document = _document(place, directory, result, next=None)
    return Result(document=document, problems=[said], code=2 if status == "refused" else 3)


def _log_of(options: TrainOptions) -> Path | None:
    """The file that all that is told is kept in, where there is one."""
    classifies = _classifies(options)
    return None if classifies is None else classifies.logfile


def _document(run: TrainRun, directory: TrialDirectory, result: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    log = str(directory.log) if directory.log.exists() else None
    return {"run": str(run.path), "state": run.read_state(), "result": dict(result), "log": log, **more}


def _facts(run: TrainRun, result: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[str, str]]:
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
    return rows


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
