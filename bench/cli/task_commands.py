"""`data`, `predict` and `eval` of a task: flags made of its options, its outcome printed."""

import dataclasses
import inspect
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin, get_type_hints

import tyro

from analysis.render.tables import Plain
from bench.cli.options import Printed, in_plural, parse, run_folder
from bench.cli.predicting import Computing, best_of_run, make_ready
from bench.cli.preparing import plain_words
from bench.cli.progress import note, show_stages
from bench.cli.result import Result
from bert.tasks import TASKS, known_tasks, task_data
from bert.tasks.commands import Ready, TaskCommand
from common.registry import load

if TYPE_CHECKING:
    from bert.predict import Opened


def commands(verb: str, tasks: Mapping[str, str] | None = None) -> dict[str, tuple[str, str]]:
    """Return the tasks that have a command, and one line of help of each; `tasks` are all that are known."""
    names = known_tasks() if tasks is None else tasks
    return {name: found for name in names if (found := task_data(name).commands.get(verb)) is not None}


def options_of_tasks(verb: str) -> dict[str, type]:
    """Return the options of the command of every task of ours, for the reference page."""
    found = {name: load({name: entry}, name, "task")(name) for name, (entry, _) in commands(verb, TASKS).items()}
    return {f"{verb} {name}": _options_class(command) for name, command in found.items()}


class TaskRun:
    """A command of a task, as bench.cli.dispatch runs the commands of modules."""

    def __init__(self, verb: str, task: str, entry: str) -> None:
        """Load it.

        Args:
            verb: data, predict or eval.
            task: a name in bert.tasks.
            entry: "module:class" of the command.
        """
        self._verb = verb
        self._command: TaskCommand = load({task: entry}, task, "task")(task)

    def read_words(self, words: list[str], program: str) -> Any:
        """Return the options that the words behind the task's name give. Raises UsageError."""
        hints = get_type_hints(self._command.options)
        lists = {name for name, kind in hints.items() if get_origin(kind) is tuple and name.endswith("s")}
        plurals = {f"--{name[:-1].replace('_', '-')}": f"--{name.replace('_', '-')}" for name in lists - {"features"}}
        return parse(_options_class(self._command), in_plural(plain_words(words), plurals), program)

    def run(self, options: Any) -> Result:
        """Do it. Raises BertbenchError."""
        own = options.own
        if self._verb == "predict":
            own = dataclasses.replace(own, out=run_folder(own.out))
        outcome = self._command.run(own, _Terminal(options.computing if self._command.computes else None))
        lines = list(outcome.lines)
        if outcome.following is not None:
            lines.append(f"next: {shlex.join(['bertbench', *outcome.following])}")
        return Result(document=outcome.document, blocks=[Plain("\n".join(lines))], notes=outcome.notes)


def _options_class(command: TaskCommand) -> type:
    """Return a dataclass of the command's own options, those of its device, and --json."""
    fields: list[Any] = [("own", Annotated[command.options, tyro.conf.arg(name="")])]
    if command.computes:
        default = dataclasses.field(default_factory=Computing)
        fields.append(("computing", Annotated[Computing, tyro.conf.arg(name="")], default))
    made = dataclasses.make_dataclass("TaskOptions", fields, bases=(Printed,), frozen=True, kw_only=True)
    made.__doc__ = inspect.getdoc(type(command))
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
        return best_of_run(path)

    def ready(self, opened: "Opened") -> Ready:
        assert self.computing is not None
        return make_ready(opened, self.computing)
