"""`bertbench train TASK`: train a model, resume a run, evaluate checkpoints."""

import os
import shlex
import signal
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from bench.cli.options import given_names, run_folder
from bench.cli.parser import parse
from bench.cli.progress import duration, note, terminal_text
from bench.cli.result import Result
from bench.cli.train_classify import TrainClassifyOptions
from bench.cli.train_progress import TrainProgress, append_log
from bench.implementations.model_folder import RANDOM
from bench.launch.world import World, joined_world
from bench.machine.devices import Devices, find_devices
from bench.run.attempt import train_once
from bench.run.inside import Leader, follow
from bench.run.processes import StopRequest
from bench.sweep.training import Plan, TrainOptions, check_continues, check_space, plan_training
from bert.tasks import check_task_options, task_data
from bert.tasks.base import Trained
from common import locks
from common.errors import BertbenchError, InputError
from common.scores import evaluation_text, in_words, parts_text
from records.files import read_record
from records.run import TrialDirectory
from records.training import TrainRun

if TYPE_CHECKING:
    from bench.cli.train_variants import SeveralCall

SEVERAL_OPTIONS = frozenset({"vary", "seeds", "until"})
"""Options that make several trainings of one command."""


@dataclass(frozen=True, slots=True)
class TrainCall:
    """A call of the command."""

    options: TrainOptions
    words: list[str]
    """The command line as given; the same words resume the training."""

    @property
    def json(self) -> bool:
        """Whether the result is for programs."""
        return self.options.json


def read_words(words: list[str], program: str) -> "TrainCall | SeveralCall":
    """Parse the command line; the first word names the task."""
    if given_names(words) & SEVERAL_OPTIONS:
        from bench.cli import train_variants

        return train_variants.read_words(words, program)
    options = TrainClassifyOptions if words[:1] == ["classify"] else TrainOptions
    return TrainCall(parse(options, words, program), words)


def parse_trainings(task: str, words: list[str]) -> TrainOptions:
    """Return the training options of a command that makes several trainings. Raises UsageError as `parse` does."""
    return parse(TrainOptions, [task, *words], "bertbench train")


def run(call: "TrainCall | SeveralCall") -> Result:
    """Train; return exit code 0 for a finished or stopped run, 2 for a refused one, 3 for a failed one.

    A process that torchrun or `bertbench launch` started joins that world: rank 0 runs the command, and the other ranks
    follow it.
    """
    if not isinstance(call, TrainCall):
        from bench.cli import train_variants

        return train_variants.run(call)
    options, world = call.options, joined_world()
    if world is not None and world.rank:
        _follow(options, world)
    with (
        StopRequest() as stop,
        Leader(world) if world else nullcontext() as leader,
    ):  # signals count from here on, also while data are checked
        if isinstance(options, TrainClassifyOptions):
            options = options.prepared(call.words)
            if options.prep_only:
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
                note(f"training on the CPU: {devices.note}")
            if plan.phase == 2 and not plan.settings.init and plan.settings.model_weights in ("", RANDOM):
                note("phase 2 starts from random weights, unless it is resumed: give --init RUN or --model CHECKPOINT")
            try:
                directory, result = train_once(place, plan, devices, progress, leader, keep_refused=leader is not None)
            finally:
                progress.end()
        if is_new and result["status"] == "refused":
            locks.discard(place.checkpoints)
            locks.discard(place.path)
        if result["status"] != "ok":
            return _failed(options, place, directory, result)
        return _ended(TrainCall(options, call.words), place, plan, directory, result, stop, devices)


def _follow(options: TrainOptions, world: World) -> NoReturn:
    """Run as a rank other than 0; rank 0 reports the errors of all ranks."""
    code = 3
    try:
        with StopRequest() as stop:  # until the rank installs its own signal handlers
            code = follow(world, find_devices(options.device), stop)
    except BertbenchError as error:
        print(f"bertbench: {terminal_text(str(error))}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of a broken process group must not keep the process alive


def _log_of(options: TrainOptions) -> Path | None:
    return options.logfile if isinstance(options, TrainClassifyOptions) else None


def next_command(options: TrainOptions, words: list[str], run: TrainRun, plan: Plan, finished: bool) -> str:
    """Return the next command: the same for an unfinished run, phase 2 after phase 1, a conversion after phase 2,
    otherwise a prediction, or the report for tasks without prediction.
    """
    if not finished:
        return shlex.join(["bertbench", "train", *words])
    state, settings = run.read_state(), plan.settings
    checkpoint = state.checkpoint
    if plan.phase == 1 and not options.model:
        out = run.path.with_name(f"{run.path.name}-phase2")
        data = ["--data", _data_of_phase_2(settings.data), "--init", str(run.path), "--out", str(out)]
        return shlex.join(["bertbench", "train", "pretrain", "--phase", "2", *data])
    if plan.phase is None:
        checkpoint = (state.best or state).checkpoint
    source = run.checkpoints / checkpoint if checkpoint else run.checkpoints
    known = check_task_options(settings.task, settings.task_options)
    trained = Trained(source, run.path, settings.data, settings.eval_data, known)
    # No command predicts with models of other architectures.
    following = None if options.model else task_data(settings.task).next_command(trained)
    return shlex.join(following or ["bertbench", "report", str(run.path)])


def _data_of_phase_2(data: str) -> str:
    """Return the data of phase 2: the same folder if it also holds samples of 512 tokens."""
    try:
        fits = task_data("pretrain").inspect(data, 512).seq_len in (None, 512)
    except InputError:
        fits = False
    return data if fits else "FOLDER_OF_512_TOKENS"


def _ended(
    call: TrainCall,
    place: TrainRun,
    plan: Plan,
    directory: TrialDirectory,
    result: Mapping[str, Any],
    stop: StopRequest,
    devices: Devices,
) -> Result:
    from analysis.render.tables import Facts, Plain

    outcome, options = result["outcome"], call.options
    following = next_command(options, call.words, place, plan, outcome["finished"])
    facts, failure = _facts(place, result, outcome), None
    if outcome["finished"]:
        ending = f"finished; next: {following}"
        try:
            facts += options.leave(place, plan, devices) if isinstance(options, TrainClassifyOptions) else []
        except BertbenchError as error:
            failure = error
    else:
        reached = f"after step {outcome['applied_steps']:,} of {outcome['total_steps']:,}"
        ending = f"stopped by {stop.why() or 'a signal to the ranks'} {reached}; to resume: {following}"
    append_log(_log_of(options), "\n".join([*(f"{name:<11} {value}" for name, value in facts), ending]))
    return Result(
        document=None if failure else _document(place, directory, result, following),
        blocks=[Facts(facts), Plain(ending)],
        failure=failure,
        code=130 if stop.signal == signal.SIGINT and not outcome["finished"] else 0,
    )


def _failed(options: TrainOptions, place: TrainRun, directory: TrialDirectory, result: Mapping[str, Any]) -> Result:
    from bert.train.events import LAST_GOOD_CHECKPOINT

    status = str(result["status"])
    problem = str(result.get("reason") or status)
    resumable = status != "refused" and LAST_GOOD_CHECKPOINT not in problem  # a diverged run would diverge again
    if directory.log.exists():
        problem += f"\n  log of this attempt: {directory.log}"
    if resumable and place.read_state().checkpoint:
        problem += "\n  run the same command to resume from the last checkpoint"
    code = f" [{result['code']}]" if result.get("code") else ""
    problem = f"{'' if status == 'refused' else f'{status}: '}{problem}{code}"
    append_log(_log_of(options), f"bertbench: {problem}")
    document = _document(place, directory, result, None)
    return Result(document=document, problems=[problem], code=2 if status == "refused" else 3)


def _document(
    run: TrainRun, directory: TrialDirectory, result: Mapping[str, Any], following: str | None
) -> dict[str, Any]:
    log = str(directory.log) if directory.log.exists() else None
    state = read_record(run.state_json) if run.state_json.exists() else None
    return {"run": str(run.path), "state": state, "result": dict(result), "log": log, "next": following}


def _facts(run: TrainRun, result: Mapping[str, Any], outcome: Mapping[str, Any]) -> list[tuple[str, str]]:
    from analysis.metrics.cautions import disturbance

    rate, best = result.get("samples_per_second"), outcome["best"]
    steps = f"{outcome['applied_steps']:,} of {outcome['total_steps']:,}, {outcome['steps_made']:,} in this call"
    skipped = f", {outcome['skipped_steps']:,} skipped after overflows" if outcome["skipped_steps"] else ""
    rows = [
        ("steps", f"{steps}{skipped}"),
        ("samples", f"{outcome['samples_seen']:,}, {outcome['samples']:,} in this call"),
        ("time", duration(float(result.get("wall_seconds") or 0.0))),
        ("samples/s", "not measured" if rate is None else f"{rate:,.1f} after warm-up"),
    ]
    if outcome["loss"] is not None:
        parts = parts_text(outcome["loss_parts"])
        rows.append(("loss", f"{outcome['loss']:.4f} {f'({parts}) ' if parts else ''}in the last step"))
    if outcome["evaluation"] is not None:
        after = outcome["evaluation"]["applied_steps"]
        when = "earlier" if after is None else f"after step {after:,}"
        rows.append(("evaluation", f"{evaluation_text(outcome['evaluation'])}, {when}"))
    if outcome["checkpoint"] is not None:
        rows.append(("checkpoint", str(run.checkpoints / outcome["checkpoint"])))
    if best is not None:
        reached = f"{in_words(best['score'], best['value'])} after step {best['applied_steps']:,}"
        rows.append(("best", f"{run.checkpoints / best['checkpoint']} ({reached})"))
    rows.append(("curve", str(run.curve_csv)))
    if message := disturbance(result.get("cautions") or []):
        rows.append(("caution", f"machine disturbed: {message}"))
    return rows


def __getattr__(name: str) -> Any:
    """Return the options of all tasks as OPTIONS, for the reference page."""
    if name != "OPTIONS":
        raise AttributeError(name)
    from bench.cli.train_variants import SeveralOptions

    several = {"train TASK --vary NAME=V,V --seeds N --until mlm_loss=X": SeveralOptions}
    return {"train TASK": TrainOptions, "train classify FILE": TrainClassifyOptions, **several}
