"""`data`, `predict` and `eval` of a task: parse its options, show its result and write its scores."""

import dataclasses
import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from analysis.render.tables import Block, Facts, Plain, texts
from bench.cli.options import Printed, run_folder
from bench.cli.parser import parse
from bench.cli.progress import note, show_stages
from bench.cli.result import Result, when_writable
from bench.machine.devices import find_devices
from bench.sweep.options import AUTO, COUNT, DEVICE, EVALUATED_PRECISION, resolve_precision
from bert.tasks import TASKS, known_tasks, task_data
from bert.tasks.base import Ready
from bert.tasks.commands import Grid, Outcome, Shown, TaskCommand
from common.registry import load
from records.training import TrainRun, is_train_run

if TYPE_CHECKING:
    from bert.predict import Opened


@dataclass(frozen=True, kw_only=True, slots=True)
class Computing:
    """Device and precision for a trained model."""

    device: Annotated[str, DEVICE] = "auto"
    """Device type; default auto: a GPU where one is present."""
    precision: Annotated[str, EVALUATED_PRECISION] = AUTO
    """Numeric precision; default auto: bf16 where the hardware supports it, otherwise fp32."""
    batch_size: Annotated[int, COUNT] = 32
    """Rows per batch; for squad, windows."""


def commands(verb: str, tasks: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return "module:class" of data, predict or eval of each task that has it, among `tasks` or all known tasks."""
    found = {}
    for task in known_tasks() if tasks is None else tasks:
        for words, (entry, _) in task_data(task).commands.items():
            called, _, name = words.partition(" ")
            if called == verb:
                found[name or task] = entry
    return found


def options_of_tasks(verb: str) -> dict[str, type]:
    """Return the options of the command of every built-in task, by its words."""
    return {f"{verb} {name}": _options_of(_loaded(name, entry)) for name, entry in commands(verb, TASKS).items()}


def _loaded(task: str, entry: str) -> TaskCommand:
    command: TaskCommand = load({task: entry}, task, "task")(task)
    return command


def _options_of(command: TaskCommand) -> type:
    """Return a dataclass of the options of a command: its own, those of a model that computes, and --json."""
    fields: list[Any] = [("own", command.options)]
    if command.computes:
        fields.append(("computing", Computing, dataclasses.field(default_factory=Computing)))
    about = {"__module__": __name__, "__doc__": (inspect.getdoc(type(command)) or "").replace("TASK", command.task)}
    return dataclasses.make_dataclass(
        "TaskOptions", fields, bases=(Printed,), namespace=about, frozen=True, kw_only=True
    )


def read(verb: str, task: str, entry: str, words: list[str]) -> tuple[Callable[[Any], Result], Any]:
    """Return the function of a task's command, and its options from the words after the task. Raises UsageError."""
    command = _loaded(task, entry)
    if verb == "data" and words and not words[0].startswith("-"):
        words = ["--input", *words]
    return partial(_run, verb, command), parse(_options_of(command), words, f"bertbench {verb} {task}")


def _run(verb: str, command: TaskCommand, options: Any) -> Result:
    own = options.own
    out = getattr(own, "out", None)
    if verb == "predict" and type(own).__dataclass_fields__["out"].default is not None:  # None: a file beside the data
        own = dataclasses.replace(own, out=run_folder(own.out))
    outcome = command.run(own, _Terminal(getattr(options, "computing", None)))
    blocks = list(map(_block, outcome.shown))
    if outcome.following is not None:
        blocks.append(Plain(f"next: {shlex.join(['bertbench', *outcome.following])}"))
    written: Sequence[Path] = ()
    failure, document = None, outcome.document
    if verb == "eval" and out is not None:
        written, failure = when_writable(lambda: _write_scores(outcome, out))
    if verb == "eval" and hasattr(own, "out"):
        document = {**document, "written": [str(path) for path in written]}
    return Result(document=document, blocks=blocks, written=written, notes=outcome.notes, failure=failure)


def _block(shown: Shown) -> Block:
    if isinstance(shown, str):
        return shown
    if isinstance(shown, Grid):
        return texts("table", shown.headings, shown.rows)
    return Facts([(name, str(value)) for name, value in shown])


def _write_scores(outcome: Outcome, out: Path) -> list[Path]:
    from analysis.render.figure import write_png
    from analysis.render.task_figures import precision_recall_figure
    from common.atomic import write_json

    write_json(out / "scores.json", outcome.document)
    if not outcome.drawn:
        return [out / "scores.json"]
    figure = precision_recall_figure(outcome.drawn, Path(outcome.document["predictions"]).name)
    return [out / "scores.json", write_png(figure, out)]


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
        return (TrainRun(path).best_checkpoint() or TrainRun(path).checkpoints) if is_train_run(path) else path

    def ready(self, opened: "Opened") -> Ready:
        assert self.computing is not None
        devices = find_devices(self.computing.device)
        precision = resolve_precision(self.computing.precision, devices)
        return opened.ready(devices.kind, precision, self.computing.batch_size)
