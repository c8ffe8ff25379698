"""Option parsing shared by the commands: dataclasses in, instances out."""

import contextlib
import dataclasses
import io
import itertools
import os
import shlex
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import tyro

from bench.cli.form import examples_of, form_of, leaves
from bert.tasks import TASKS, known_tasks
from common.errors import Code, UsageError
from common.flags import flag
from common.registry import lookup

T = TypeVar("T")

RunFolder = Annotated[Path, tyro.conf.arg(help="Run directory. The same command resumes it.")]
"""Type of --out for commands that run trials."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Printed:
    """Options of commands with a result for programs."""

    json: bool = False
    """Print the result as JSON on stdout; progress goes to stderr."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables(Printed):
    """Options of commands that print long tables."""

    full: bool = False
    """Print every table whole instead of one screen."""
    csv: Path | None = None
    """Also write every table to this folder as CSV in full precision; default no CSV files."""
    markdown: Path | None = None
    """Append every table to this file as Markdown, such as $GITHUB_STEP_SUMMARY; default no file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialOptions(Printed):
    """Options of commands that run trials."""

    device: str = "auto"
    """Device type; default auto: CUDA where a GPU is present, otherwise the CPU."""
    timeout_seconds: float = 900.0
    """Time limit of a trial in s; a trial that exceeds it has the status timeout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryOptions(TrialOptions):
    """Options of commands that run trials, where a failed one may be run again."""

    retry_failed: bool = False
    """Run failed trials again."""


@dataclass(frozen=True, slots=True)
class WrappedCommand(Generic[T]):
    """The options of a command of ours, and the command of the user that follows them."""

    options: T
    command: tuple[str, ...]

    @property
    def json(self) -> bool:
        """Whether the result is printed as JSON."""
        return bool(getattr(self.options, "json", False))


def parse(options: type[T], argv: list[str], program: str) -> T:
    """Parse `argv` into the dataclass `options`. Prints help and exits 0 on --help.

    Raises:
        UsageError: unknown or missing options, or a value that the parser or the dataclass refuses.
    """
    argv, task = in_plural(argv, options), _task_in(argv)
    form, build = form_of(options, task)
    shown = f"{program} {task}" if task else program
    with _colors(), _optional_values(), _refusals(program, options, argv), _examples(options):
        filled: Any = tyro.cli(form, args=argv, prog=shown, config=_CONFIG)
    found: T = build(filled)
    return found


def parse_known(options: type[T], argv: list[str], program: str) -> tuple[T, list[str]]:
    """Like `parse`, but also return the words that are not options of it."""
    argv = in_plural(argv, options)
    form, build = form_of(options, _task_in(argv))
    with _colors(), _optional_values(), _refusals(program, options, argv), _examples(options):
        known: tuple[Any, list[str]] = tyro.cli(form, args=argv, prog=program, config=_CONFIG, return_unknown_args=True)
    return build(known[0]), list(known[1])


_CONFIG = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)


def _task_in(argv: Sequence[str]) -> str | None:
    """Return the task whose help is requested; None without --help, so that options of other tasks are refused."""
    asked = "-h" in argv or "--help" in argv
    return argv[0] if asked and argv[0] in known_tasks() else None


@contextlib.contextmanager
def _colors() -> Iterator[None]:
    """Let tyro use color unless NO_COLOR is set (no-color.org); without a terminal it uses none."""
    options = tyro._experimental_options
    before = options["ansi_codes"]
    options["ansi_codes"] = before and not os.environ.get("NO_COLOR")
    try:
        yield
    finally:
        options["ansi_codes"] = before


@contextlib.contextmanager
def _examples(options: type) -> Iterator[None]:
    try:
        yield
    except SystemExit as end:
        if end.code == 0 and (listed := examples_of(options)):
            lines = [f"  {command}" + f"\n      {says}" * bool(says) for command, says in listed]
            print("\n".join(["examples:", *lines]))
        raise


@contextlib.contextmanager
def _refusals(program: str, options: type, argv: Sequence[str]) -> Iterator[None]:
    """Raise UsageError where tyro would exit with 2, below tyro's message unless ours says which value is wrong."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            yield
    except SystemExit as end:
        if end.code != 2:
            raise
        title = said.getvalue().partition("\n")[0]
        code: Code = "option-unknown" if "Unrecognized" in title else "option-value"
        if "Required" in title:
            code = "option-missing"
        wrong = _wrong_value(options, argv) if code == "option-value" else None
        if wrong is not None:
            said = io.StringIO()
            raise UsageError(code, f"{wrong}; see {program} --help") from None
        raise UsageError(code, f"invalid options: see {program} --help") from None
    finally:
        sys.stderr.write(said.getvalue())


_NUMBERS = {int: "an integer", float: "a number"}


def _wrong_value(options: type, argv: Sequence[str]) -> str | None:
    for leaf in leaves(options):
        if leaf.switch:
            continue
        kinds = (leaf.kind, *get_args(leaf.kind))
        number = next((kind for kind in (float, int) if kind in kinds), None)
        for place, word in enumerate(argv):
            name, equals, value = word.partition("=")
            if name.replace("_", "-") != leaf.flag:
                continue
            after = (
                [value]
                if equals
                else list(itertools.takewhile(lambda one: not one.startswith("--"), argv[place + 1 :]))
            )
            if get_origin(leaf.kind) is not tuple:
                if not after:
                    return f"{leaf.flag} needs a value"
                after = after[:1]
            for text in after:
                if number is not None and not _reads(text, number):
                    return f"{leaf.flag} {text!r} is not {_NUMBERS[number]}"
    return None


def _reads(text: str, kind: type[int] | type[float]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True


def _optional_values() -> tyro.constructors.ConstructorRegistry:
    """Show and parse an optional value as INT, not {None}|INT."""
    registry = tyro.constructors.ConstructorRegistry()
    metavars = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH"}

    @registry.primitive_rule
    def rule(
        info: tyro.constructors.PrimitiveTypeInfo,
    ) -> tyro.constructors.PrimitiveConstructorSpec[Any] | None:
        kinds = [kind for kind in typing.get_args(info.type) if kind is not type(None)]
        optional = info.type_origin in (typing.Union, types.UnionType) and len(kinds) < len(typing.get_args(info.type))
        if not optional or len(kinds) != 1:
            return None
        kind = kinds[0]
        if typing.get_origin(kind) is typing.Literal:
            return _choice(typing.get_args(kind))
        if kind not in metavars:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar=metavars[kind],
            instance_from_str=lambda words: kind(words[0]),
            is_instance=lambda value: (
                value is None or isinstance(value, kind) or (kind is float and type(value) is int)
            ),
            str_from_instance=lambda value: [str(value)],
        )

    return registry


def _choice(values: tuple[Any, ...]) -> "tyro.constructors.PrimitiveConstructorSpec[Any] | None":
    """Return a parser for one of several words; None, which leaves it to tyro, if they are not strings."""
    if not all(isinstance(value, str) for value in values):
        return None
    return tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="{" + ",".join(values) + "}",
        instance_from_str=lambda words: words[0],
        is_instance=lambda value: value is None or value in values,
        str_from_instance=lambda value: [str(value)],
        choices=values,
    )


def given_names(argv: Sequence[str]) -> frozenset[str]:
    """Return the names of the options on a command line, with underscores and without -- and no-."""
    words = (word.partition("=")[0] for word in argv if word.startswith("--"))
    return frozenset(word.removeprefix("--").replace("-", "_").removeprefix("no_") for word in words)


def check_task(argv: Sequence[str], program: str, tasks: Iterable[str] | None = None, what: str = "task") -> None:
    """Refuse a command line whose first word is neither a task nor --help. Raises UsageError."""
    if tasks is None:
        tasks = TASKS if argv and argv[0] in TASKS else known_tasks()
    if not argv or (argv[0].startswith("-") and argv[0] not in ("-h", "--help")):
        raise UsageError(
            "option-missing", f"{program} needs a task: {program} {' | '.join(tasks)} [options]; see {program} --help"
        )
    if not argv[0].startswith("-"):
        lookup(dict.fromkeys(tasks), argv[0], what)


def parse_task(options: type[T], argv: list[str], program: str) -> T:
    """Like `parse`, for commands whose first word is a task."""
    check_task(argv, program)
    return parse(options, argv, program)


def in_plural(argv: Sequence[str], options: type) -> list[str]:
    """Return the words of a command line with the singular of list options replaced by their names.

    Args:
        argv: command line; an option and its value are separate words or joined by =.
        options: dataclass of options.
    """
    lists = {leaf.alias: leaf.flag for leaf in leaves(options) if leaf.alias}
    parts = (word.partition("=") for word in argv)
    return [lists.get(name.replace("_", "-"), name) + equals + value for name, equals, value in parts]


def one_each(argv: Sequence[str], option: str) -> list[str]:
    """Return a command line in which every NAME=VALUES after an option has the option before it."""
    words: list[str] = []
    for given in argv:
        follows = words[-2:-1] == [option] and not given.startswith("-")
        if follows and "=" not in given and not Path(given).exists():
            raise UsageError("option-value", f"{option} {given} has no values: give {given}=VALUE,VALUE")
        words += [option, given] if follows and "=" in given else [given]
    return words


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before and after the first --: options and command."""
    words = list(argv)
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


def parse_with_command(options: type[T], argv: Sequence[str], program: str, example: str) -> WrappedCommand[T]:
    """Return the options before -- and the command after it.

    Args:
        options: a dataclass.
        argv: the words of the command line.
        program: what is called.
        example: a command, for the message.
    """
    own, command = split_command(argv)
    if "--" not in argv:
        unknown = parse_known(options, own, program)[1]
        if unknown and not unknown[0].startswith("-"):
            raise UsageError(
                "option-missing",
                f"-- is missing before the command: {program} [options] -- {shlex.join(own[own.index(unknown[0]) :])}",
            )
    found = parse(options, own, program)
    if not command:
        name = program.rpartition(" ")[2]
        raise UsageError(
            "option-missing",
            f"{name} needs a command after --: {program} [options] -- COMMAND, such as -- {example}",
        )
    return WrappedCommand(found, tuple(command))


def plain_words(argv: Sequence[str], options: type[Any]) -> list[str]:
    """Return the words without switches that repeat the default: the parser knows only the others."""
    known = set(_defaults(options))
    return [word for word in argv if word not in known]


def _defaults(options: type[Any]) -> Iterator[str]:
    hints = get_type_hints(options, include_extras=True)
    for item in dataclasses.fields(options):
        kind = get_args(hints[item.name])[0] if get_origin(hints[item.name]) is Annotated else hints[item.name]
        if kind is bool:
            yield flag(item.name) if item.default is True else flag(f"no_{item.name}")
        elif dataclasses.is_dataclass(kind):
            yield from _defaults(kind)  # type: ignore[arg-type]


def run_folder(out: Path) -> Path:
    """Return --out as an absolute path. Raises UsageError if it is the current folder or a file."""
    if out.exists() and not out.is_dir():
        raise UsageError("path-kind", f"--out {str(out)!r} is a file: give a folder")
    if out.resolve() == Path.cwd():
        raise UsageError(
            "option-value", f"--out {str(out)!r} is the current folder: give another folder, such as runs/mine"
        )
    return out.resolve()
