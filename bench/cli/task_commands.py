"""`data`, `predict` and `eval` of a task: flags made of its options, its outcome printed."""

import dataclasses
import inspect
import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin, get_type_hints

import tyro

from analysis.render.terminal import printable
from bench.cli.dispatch import Choices
from bench.cli.options import in_plural, parse, run_folder
from bench.cli.predicting import Computing, best_of_run, make_ready
from bench.cli.preparing import plain_words
from bench.cli.progress import note, show_stages
from bert.tasks import TASKS, known_tasks, task_data
from bert.tasks.commands import Ready, TaskCommand
from common.registry import load

if TYPE_CHECKING:
    from bert.predict import Opened

_JSON_HELP = {
    "data": "Print the summary as JSON.",
    "predict": "Print the result as JSON, progress on stderr.",
    "eval": "Print everything as JSON, all digits.",
}


def commands(verb: str, tasks: Mapping[str, str] | None = None) -> Choices:
    """Return the tasks that have a command, and one line of help of each; `tasks` are all that are known."""
    names = known_tasks() if tasks is None else tasks
    return {name: found for name in names if (found := task_data(name).commands.get(verb)) is not None}


def options_of_tasks(verb: str) -> dict[str, type]:
    """Return the options of the command of every task of ours, for the reference page."""
    found = {name: load({name: entry}, name, "task")(name) for name, (entry, _) in commands(verb, TASKS).items()}
    return {f"{verb} {name}": _options_class(verb, command) for name, command in found.items()}


def run_task(verb: str, task: str, entry: str, argv: list[str]) -> int:
    """Run a command of a task and print what it came to; 0 when it is done.

    Args:
        verb: data, predict or eval.
        task: a name in bert.tasks.
        entry: "module:class" of the command.
        argv: the words behind the task's name.
    """
    command: TaskCommand = load({task: entry}, task, "task")(task)
    hints = get_type_hints(command.options)
    lists = {name for name, kind in hints.items() if get_origin(kind) is tuple and name.endswith("s")}
    plurals = {f"--{name[:-1].replace('_', '-')}": f"--{name.replace('_', '-')}" for name in lists - {"features"}}
    program = f"bertbench {verb} {task}"
    parsed: Any = parse(_options_class(verb, command), in_plural(plain_words(argv), plurals), program)
    own = parsed.own
    if verb == "predict":
        own = dataclasses.replace(own, out=run_folder(own.out))
    outcome = command.run(own, _Terminal(parsed.computing if command.computes else None))
    if parsed.json:
        print(json.dumps(outcome.document, indent=2, allow_nan=False))
        return 0
    print("\n".join(printable(line) for line in outcome.lines))
    for text in dict.fromkeys(outcome.notes):
        print(f"note: {printable(text)}", file=sys.stderr)
    if outcome.following is not None:
        print(printable(f"next: {shlex.join(['bertbench', *outcome.following])}"))
    return 0


def _options_class(verb: str, command: TaskCommand) -> type:
    """Return a dataclass of the command's own options, those of its device, and --json."""
    fields: list[Any] = [("own", Annotated[command.options, tyro.conf.arg(name="")])]
    if command.computes:
        default = dataclasses.field(default_factory=Computing)
        fields.append(("computing", Annotated[Computing, tyro.conf.arg(name="")], default))
    fields.append(("json", Annotated[bool, tyro.conf.arg(help=_JSON_HELP[verb])], False))
    made = dataclasses.make_dataclass(f"{verb.title()}Options", fields, frozen=True, kw_only=True)
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
