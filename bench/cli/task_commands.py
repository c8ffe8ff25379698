"""`data`, `predict` and `eval` of a task: parse its options, show its result and write its scores."""

import dataclasses
import inspect
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.render.tables import Block, Facts, Plain, texts
from bench.cli.options import Printed, run_folder
from bench.cli.parser import parse
from bench.cli.progress import note, show_stages
from bench.cli.result import Result, when_writable
from bench.machine.devices import find_devices
from bench.sweep.options import AUTO, resolve_precision
from bert.tasks import TASKS, known_tasks, task_data
from bert.tasks.base import Ready
from bert.tasks.commands import Grid, Outcome, Shown, TaskCommand
from common.errors import InputError, UsageError
from common.registry import load
from records.training import TrainRun, is_train_run
from records.trial import Trial

if TYPE_CHECKING:
    from bert.predict import Opened

SCORES_FILE = "scores.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Computing:
    """Device and precision for a trained model."""

    device: str = "auto"
    """Device type; default auto: CUDA where a GPU is present, otherwise the CPU."""
    precision: str = AUTO
    """Numeric precision; default auto: bf16 where the hardware supports it, otherwise fp32."""
    batch_size: int = 32
    """Rows per batch; for squad, windows."""

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        if self.batch_size < 1:
            raise UsageError("option-value", f"--batch-size {self.batch_size} must be at least 1")


def commands(verb: str, tasks: Mapping[str, str] | None = None) -> dict[str, tuple[str, str]]:
    """Return the tasks with a command, and one line of help for each, among `tasks` or all known tasks."""
    found = {}
    for task in known_tasks() if tasks is None else tasks:
        for words, entry in task_data(task).commands.items():
            called, _, name = words.partition(" ")
            if called == verb:
                found[name or task] = entry
    return found


def options_of_tasks(verb: str) -> dict[str, type]:
    """Return the options of the command of every built-in task, for the reference page."""
    found = {name: load({name: entry}, name, "task")(name) for name, (entry, _) in commands(verb, TASKS).items()}
    return {f"{verb} {name}": _options_class(command, name) for name, command in found.items()}


class TaskRun:
    """A command of a task, with the interface that bench.cli.dispatch expects."""

    def __init__(self, verb: str, task: str, entry: str) -> None:
        """Load the command.

        Args:
            verb: data, predict or eval.
            task: a name in bert.tasks.
            entry: "module:class" of the command.
        """
        self._verb, self._task = verb, task
        self._command: TaskCommand = load({task: entry}, task, "task")(task)

    def read_words(self, words: list[str], program: str) -> Any:
        """Parse the words after the task. Raises UsageError."""
        if self._verb == "data" and words and not words[0].startswith("-"):
            words = ["--input", *words]
        options = _options_class(self._command, self._task)
        return parse(options, words, program)

    @property
    def _writes_folder(self) -> bool:
        """Whether --out of a prediction is a folder; without a default it is a file beside the data."""
        defaults = {item.name: item.default for item in dataclasses.fields(self._command.options)}
        return defaults["out"] is not None

    def run(self, options: Any) -> Result:
        """Run the command. Raises BertbenchError."""
        own = options.own
        keeps_scores = self._verb == "eval" and hasattr(own, "out")
        if self._verb == "predict" and self._writes_folder:
            own = dataclasses.replace(own, out=run_folder(own.out))
        if keeps_scores and own.out is not None:
            _check_scores_folder(own.out, self._task)
        outcome = self._command.run(own, _Terminal(options.computing if self._command.computes else None))
        blocks = list(map(_block, outcome.shown))
        if outcome.following is not None:
            blocks.append(Plain(f"next: {shlex.join(['bertbench', *outcome.following])}"))
        written: Sequence[Path] = ()
        failure, document = None, outcome.document
        if keeps_scores:
            if own.out is not None:
                written, failure = when_writable(lambda: _write_scores(outcome, own.out))
            document = {**document, "written": [str(path) for path in written]}
        return Result(
            document=document,
            blocks=blocks,
            written=written,
            notes=outcome.notes,
            failure=failure,
        )


def _block(shown: Shown) -> Block:
    if isinstance(shown, str):
        return shown
    if isinstance(shown, Grid):
        return texts("table", shown.headings, shown.rows)
    return Facts([(name, str(value)) for name, value in shown])


def _write_scores(outcome: Outcome, out: Path) -> list[Path]:
    from bench.cli.score_pictures import draw_scores
    from common.atomic import write_json

    write_json(out / SCORES_FILE, outcome.document)
    return [out / SCORES_FILE, *draw_scores(outcome.document, outcome.drawn, out)]


def _check_scores_folder(out: Path, task: str) -> None:
    """Refuse to overwrite the scores of another task; those of the same task are overwritten."""
    path = out / SCORES_FILE
    if not path.is_file():
        return
    try:
        before = _task_of(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError("path-unreadable", f"cannot read {path}: {error.strerror}; give another --out") from error
    except ValueError:
        before = None
    if before is None:
        raise UsageError(
            "folder-occupied",
            f"{path} was not written by `bertbench eval {task}` and would be overwritten: give another --out",
        )
    if before != task:
        raise UsageError(
            "folder-occupied",
            f"{path} has the scores of {before} and would be overwritten with those of {task}: give another --out",
        )


def _task_of(document: Any) -> str | None:
    if not isinstance(document, dict):
        return None
    return str(document["task"]) if "task" in document else None


def _options_class(command: TaskCommand, task: str) -> type:
    """Return a dataclass of the command's own options, those of its device, and --json; TASK in its help is `task`."""
    fields: list[Any] = [("own", command.options)]
    if command.computes:
        default = dataclasses.field(default_factory=Computing)
        fields.append(("computing", Computing, default))
    made = dataclasses.make_dataclass("TaskOptions", fields, bases=(Printed,), frozen=True, kw_only=True)
    made.__doc__ = (inspect.getdoc(type(command)) or "").replace("TASK", task)
    return made


@dataclass(frozen=True, slots=True)
class _Terminal:
    """The bert.tasks.commands.Host of a command line."""

    computing: Computing | None

    def note(self, text: str) -> None:
        note(text)

    @property
    def progress(self) -> Any:
        return show_stages()

    def checkpoint(self, path: Path) -> Path:
        return _best_of_run(path)

    def trained_on(self, checkpoint: Path) -> tuple[str, str] | None:
        return _trained_on(checkpoint)

    def data_fingerprint(self, checkpoint: Path) -> str | None:
        return _data_fingerprint(checkpoint)

    def ready(self, opened: "Opened") -> Ready:
        assert self.computing is not None
        return _make_ready(opened, self.computing)


def _best_of_run(path: Path) -> Path:
    if not is_train_run(path):
        return path
    run = TrainRun(path)
    return run.best_checkpoint() or run.checkpoints


def _trained_on(checkpoint: Path) -> tuple[str, str] | None:
    """Return the task and data of a checkpoint's training, from the checkpoint or the run that contains it.

    Raises InputError: its settings are damaged.
    """
    from bert.predict import settings_of

    settings = settings_of(checkpoint)
    if settings is not None:
        return settings.task, settings.data
    trial = _trial_of(checkpoint)
    return None if trial is None else (trial.task, trial.data)


def _data_fingerprint(checkpoint: Path) -> str | None:
    """Return the fingerprint of the data of a checkpoint's training, from where _trained_on has them.

    Raises InputError: its state is damaged.
    """
    from bert.predict import state_of

    state = state_of(checkpoint)
    if state is not None:
        return state.data.fingerprint
    trial = _trial_of(checkpoint)
    return None if trial is None else trial.data_fingerprint or None


def _trial_of(checkpoint: Path) -> Trial | None:
    """Return the latest attempt of the training run that contains a checkpoint; None if there is no such run."""
    run = next((folder for folder in (checkpoint.parent, checkpoint.parent.parent) if is_train_run(folder)), None)
    attempts = [] if run is None else TrainRun(run).attempts()
    return attempts[-1].read_trial() if attempts else None


def _make_ready(opened: "Opened", computing: Computing) -> Ready:
    """Move a model to a device. Raises UsageError: no such device, or it does not support the precision."""
    from bert.optim.precision import Precision
    from bert.parallel.single import SingleStrategy

    devices = find_devices(computing.device)
    strategy = SingleStrategy()
    strategy.setup(devices.kind)
    model = opened.model.to(strategy.device)
    precision = Precision(resolve_precision(computing.precision, devices), devices.kind)
    return Ready(model, strategy.device, precision, computing.batch_size)
