"""`bertbench train TASK`: train a model or several, resume a run, evaluate checkpoints."""

import dataclasses
import shlex
import signal
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from analysis.render.terminal import printable
from bench.cli.options import RARE, run_folder
from bench.cli.parser import words_of
from bench.cli.progress import TrainProgress, append_log, duration, note, show_stages
from bench.cli.result import Result
from bench.implementations.model_folder import RANDOM
from bench.launch.world import joined_world
from bench.machine.devices import find_devices
from bench.run.inside import Leader, follow
from bench.run.processes import StopRequest
from bench.sweep.sweep import locked
from bench.sweep.training import Plan, TrainOptions, check_continues, plan_training, train_once
from bert.data.synthetic import is_synthetic
from bert.data.vocabulary import VOCABULARY_FILE
from bert.tasks import known_tasks, make_task, task_data
from bert.tasks.base import Trained
from bert.tasks.classify.prepare import CsvConfig, CsvTexts
from common.errors import BertbenchError, InputError, UsageError
from common.scores import evaluation_text, in_words
from records.files import read_record
from records.run import TrialDirectory
from records.training import TrainRun


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainClassifyOptions(TrainOptions):
    """Train a text classifier on a CSV with texts and labels, or on the SQLite file that `bertbench data csv` made from
    it. The results are written beside that file. It also takes the options of `bertbench train`.

    Examples:
        bertbench train classify reviews.csv --vocab vocab.txt --preset tiny
        bertbench train classify reviews.csv --init bert-base --label category --epochs 3
    """

    RARE: ClassVar = RARE | {"benchmark_task", "vary", "seeds", "until", "eval_data"}

    out: Path | None = None
    """Run directory. The same command resumes it; default runs/classify-NAME of the file."""
    texts: CsvTexts = field(default_factory=CsvTexts)
    vocab: Path | None = None
    """BERT vocab.txt; default the one beside --init or --model."""
    prep_only: bool = False
    """Prepare the data and stop."""

    def prepared(self) -> "TrainClassifyOptions":
        """Make the database of a CSV as `data csv` does, or open one; return the options to train with."""
        given = self.data or self.file
        if given is None:
            raise UsageError("option-missing", "train classify needs data: give FILE.csv or FILE.sqlite")
        if is_synthetic(given):
            return dataclasses.replace(self, out=self._out("synthetic"))
        from bert.tasks.classify.commands import facts
        from bert.tasks.classify.prepare import prepare
        from bert.tasks.classify.store import is_database, open_source, split_sizes

        path = Path(given).resolve()
        if not path.exists():
            raise InputError("path-missing", f"{path} does not exist: give FILE.csv or FILE.sqlite")
        if is_database(path):
            if self.vocab is not None or self.texts != CsvTexts():
                raise UsageError("option-not-applicable", f"{path} is prepared: give options of a CSV with the CSV")
            source = open_source(path)
        else:
            given_options: dict[str, Any] = dataclasses.asdict(self.texts)
            given_options |= {} if self.seq_len is None else {"max_seq_length": self.seq_len}
            summary = prepare(CsvConfig(input=path, vocab=self._vocabulary(), **given_options), show_stages())
            lines = "\n".join(f"{name:<11} {printable(value)}" for name, value in facts(summary))
            append_log(self.logfile, lines)
            if not self.json:
                print(lines, file=sys.stderr)
            for text in summary.notes():
                note(printable(text))
            source = summary.source
        if not self.prep_only and not split_sizes(source.path)["test"]["texts"]:
            raise UsageError("data-missing", f"{source.path} has no texts in its test split: give a larger --test")
        out, seq_len = self._out(source.path.stem), self.seq_len or source.max_seq_length
        return dataclasses.replace(self, data=str(source.path), file=None, out=out, seq_len=seq_len)

    def _out(self, name: str) -> Path:
        return self.out or Path("runs") / f"classify-{name}"

    def _vocabulary(self) -> Path:
        weights = Path(self.model) if self.model else self.init
        beside = [folder / VOCABULARY_FILE for folder in (() if weights is None else (weights, weights.parent))]
        found = self.vocab or next(filter(Path.is_file, beside), None)
        if found is None:
            raise UsageError("option-missing", "texts need a vocabulary: give --vocab VOCAB.txt of the model")
        return found


OPTIONS = {"train TASK": TrainOptions, "train classify FILE": TrainClassifyOptions}


def form(words: list[str]) -> type[TrainOptions]:
    """Return the options that the words after `bertbench train` give."""
    task = next((word for word in words if word in known_tasks()), "")
    return TrainClassifyOptions if task == "classify" else TrainOptions


def run(options: TrainOptions) -> Result:
    """Train; return exit code 0 for a finished or stopped run, 2 for a refused one, 3 for a failed one.

    A process that torchrun or `bertbench launch` started joins that world: rank 0 runs the command, and the other ranks
    follow it.
    """
    if options.several:
        from bench.cli import train_variants

        return train_variants.run(options.prepared() if isinstance(options, TrainClassifyOptions) else options)
    words, world = words_of(options), joined_world()
    if world is not None and world.rank:
        try:  # rank 0 reports the errors of all ranks
            return Result(code=follow(world, find_devices(options.device)), at_once=True)
        except BertbenchError as error:
            return Result(problems=[str(error)], code=3, at_once=True)
    # Signals count from here on, also while data are checked.
    with StopRequest() as stop, Leader(world) if world else nullcontext() as leader:
        if isinstance(options, TrainClassifyOptions):
            options = options.prepared()
            if options.prep_only:
                return Result()
        stop.max_seconds = options.max_seconds
        devices = find_devices(options.device)
        place = TrainRun(run_folder(options.out or Path("runs/train")))
        plan = plan_training(options, devices, world)
        progress = TrainProgress(stop, options.logfile)
        with locked(place.run):
            check_continues(place, plan)
            if devices.note and options.device == "auto" and not options.json:
                note(f"training on the CPU: {devices.note}")
            if plan.phase == 2 and not plan.settings.init and plan.settings.model_weights in ("", RANDOM):
                note("phase 2 starts from random weights, unless it is resumed: give --init RUN or --model CHECKPOINT")
            try:
                directory, result = train_once(place, plan, devices, progress, leader)
            finally:
                progress.end()
        return _result(words, options, place, plan, directory, result, stop)


def next_command(words: list[str], run: TrainRun, plan: Plan, finished: bool) -> str:
    """Return the next command: the same for an unfinished run, phase 2 after phase 1, a conversion after phase 2,
    otherwise a prediction, or the report for tasks without prediction.
    """
    if not finished:
        return shlex.join(["bertbench", "train", *words])
    settings = plan.settings
    if plan.phase == 1 and not settings.model:
        data = settings.data if is_synthetic(settings.data) else "FOLDER_OF_512_TOKENS"
        out = run.path.with_name(f"{run.path.name}-phase2")
        more = ["--phase", "2", "--data", data, "--init", str(run.path), "--out", str(out)]
        return shlex.join(["bertbench", "train", "pretrain", *more])
    checkpoint = run.read_state().checkpoint
    latest = run.checkpoints / checkpoint if checkpoint else run.checkpoints
    source = (run.best_checkpoint() or latest) if plan.phase is None else latest
    known = make_task(settings.task, settings.task_options).values
    trained = Trained(source, run.path, settings.data, settings.eval_data, known)
    # No command predicts with models of other architectures.
    following = None if settings.model else task_data(settings.task).next_command(trained)
    return shlex.join(following or ["bertbench", "report", str(run.path)])


def _result(
    words: list[str],
    options: TrainOptions,
    place: TrainRun,
    plan: Plan,
    directory: TrialDirectory,
    result: Mapping[str, Any],
    stop: StopRequest,
) -> Result:
    from analysis.render.tables import Facts, Plain

    log = str(directory.log) if directory.log.exists() else None
    state = read_record(place.state_json) if place.state_json.exists() else None
    document = {"run": str(place.path), "state": state, "result": dict(result), "log": log, "next": None}
    if result["status"] != "ok":
        refused, code = result["status"] == "refused", result.get("code")
        problem = ("" if refused else f"{result['status']}: ") + (result.get("reason") or "")
        problem += f"; see {log}" if log else ""
        if not refused and code != "training-diverged" and place.read_state().checkpoint:
            problem += "; run the same command to resume from the last checkpoint"
        problem += f" [{code}]" if code else ""
        append_log(options.logfile, f"bertbench: {problem}")
        return Result(document=document, problems=[problem], code=2 if refused else 3)
    outcome, facts, failure = result["outcome"], _facts(place, result), None
    following = next_command(words, place, plan, outcome["finished"])
    ending, code = f"finished; next: {following}", 0
    if not outcome["finished"]:
        reached = f"after step {outcome['applied_steps']:,} of {outcome['total_steps']:,}"
        ending = f"stopped by {stop.why() or 'a signal to the ranks'} {reached}; to resume: {following}"
        code = 130 if stop.signal == signal.SIGINT else 0
    elif plan.settings.task == "classify" and not is_synthetic(plan.settings.data) and not plan.settings.model:
        from bench.classify import leave_results

        try:
            facts += leave_results(place, plan.settings, find_devices(options.device), options.threads, note)
        except BertbenchError as error:
            failure = error
    append_log(options.logfile, "\n".join([*(f"{name:<11} {value}" for name, value in facts), ending]))
    document["next"] = following
    return Result(document=document, blocks=[Facts(facts), Plain(ending)], failure=failure, code=code)


def _facts(run: TrainRun, result: Mapping[str, Any]) -> list[tuple[str, str]]:
    from analysis.metrics.cautions import disturbance

    outcome, rate = result["outcome"], result.get("samples_per_second")
    best, evaluation = outcome["best"], outcome["evaluation"]
    here = f"{outcome['steps_made']:,} in {duration(float(result.get('wall_seconds') or 0.0))} of this call"
    skipped = f", {outcome['skipped_steps']:,} skipped after overflows" if outcome["skipped_steps"] else ""
    rows = [
        ("steps", f"{outcome['applied_steps']:,} of {outcome['total_steps']:,}, {here}{skipped}"),
        ("samples/s", "not measured" if rate is None else f"{rate:,.1f} after warm-up"),
    ]
    if outcome["loss"] is not None:
        parts = ", ".join(in_words(name, part) for name, part in outcome["loss_parts"].items())
        rows.append(("loss", f"{outcome['loss']:.4f} {f'({parts}) ' if parts else ''}in the last step"))
    if evaluation is not None:
        after = evaluation["applied_steps"]
        rows.append(("evaluation", evaluation_text(evaluation) + ("" if after is None else f", after step {after:,}")))
    if outcome["checkpoint"] is not None:
        rows.append(("checkpoint", str(run.checkpoints / outcome["checkpoint"])))
    if best is not None:
        reached = f"{in_words(best['score'], best['value'])} after step {best['applied_steps']:,}"
        rows.append(("best", f"{run.checkpoints / best['checkpoint']} ({reached})"))
    rows.append(("curve", str(run.curve_csv)))
    if message := disturbance(result.get("cautions") or []):
        rows.append(("caution", f"machine disturbed: {message}"))
    return rows
