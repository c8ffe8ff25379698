"""Parse command lines with cyclopts: the fields of a dataclass are the options, their docstrings the help."""

import dataclasses
import importlib
import inspect
import itertools
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import (
    App,
    Argument,
    ArgumentCollection,
    CoercionError,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    Token,
    UnknownOptionError,
    UnusedCliTokensError,
    convert,
)

from bench.cli.options import CHOICES, GROUPS
from bert.tasks import known_tasks
from common.errors import Code, UsageError
from common.flags import POSITIONAL, OfTasks, OneOf, flag

T = TypeVar("T")

_ORDER = ("arguments", "options", "model and data", "", *list(GROUPS)[1:])
"""Headings in the help; those of a command are at ""."""
_ADDED = ("vary", "search")
"""List options whose values add up where they are given several times; of others the last list counts."""
_NAMES = {"benchmark_task": ("--task",)}
_CODES: dict[type[CycloptsError], Code] = {
    MissingArgumentError: "option-missing",
    UnknownOptionError: "option-unknown",
    UnusedCliTokensError: "option-unknown",
}


class _CommandLine(App):
    """A command line whose options are the fields of a dataclass, with the headings and choices of this suite."""

    task: str | None = None
    """The task whose options the help shows; None for all."""
    required: tuple[str, ...] = ()
    """Fields that a command line must give though they have a default: REQUIRED of the dataclass."""

    def assemble_argument_collection(self, **options: Any) -> ArgumentCollection:
        """Return the options as cyclopts reads them from the dataclass, completed."""
        arguments = super().assemble_argument_collection(**options)
        names = {argument.field_info.name for argument in arguments}
        places = itertools.count()
        owners = {id(child): parent.resolved_hint for parent in arguments for child in parent.children}
        for argument in arguments:
            if not argument.children:
                _complete(argument, owners[id(argument)], names, places, self.task)
                if argument.field_info.name in self.required:
                    argument.parameter = Parameter.combine(argument.parameter, Parameter(required=True))
        return arguments


def _complete(argument: Argument, owner: Any, taken: set[str], places: Iterator[int], task: str | None) -> None:
    """Give an option its names, heading, choices and the text of its default."""
    field, name = argument.field_info, argument.field_info.name
    markers = getattr(field.annotation, "__metadata__", ())
    kinds = {argument.hint, *typing.get_args(argument.hint)}
    positional, several = POSITIONAL in markers, typing.get_origin(argument.hint) is tuple
    singular = re.sub("ies$", "y", name).removesuffix("s") if several else name
    names = (*_NAMES.get(name, argument.parameter.name or ()), *[flag(singular)] * (singular not in taken))
    groups = {**GROUPS, **getattr(owner, "GROUPS", {})}
    headings = {one: heading for heading, ones in groups.items() for one in ones}
    heading = "arguments" if positional else headings.get(name, headings.get(singular, "options"))
    words = CHOICES.get(name, CHOICES.get(singular, ())) if str in kinds else ()
    choices = next((marker.words for marker in markers if isinstance(marker, OneOf)), ()) or _registered(words)
    if positional and name == "task":
        choices = tuple(known_tasks())
    tasks = next((marker.tasks for marker in markers if isinstance(marker, OfTasks)), ())
    meaning, _, default = " ".join((argument.parameter.help or "").split()).partition("; default ")
    if not default and field.default not in (None, "", (), field.empty) and not isinstance(field.default, bool):
        default = " ".join(map(str, field.default)) if several else str(field.default)
    if positional:
        argument.index, field.kind = next(places), inspect.Parameter.POSITIONAL_ONLY
    more = Parameter(
        name=(singular.upper(),) if positional else names,
        group=Group(heading[:1].upper() + heading[1:], sort_key=_ORDER.index(heading if heading in _ORDER else "")),
        help=f"{meaning}." if default and not meaning.endswith(".") else meaning,
        show_default=(lambda _: default.rstrip(".")) if default else False,
        show=not tasks or task is None or task in tasks,
        choices=tuple(one for one in choices if one != "auto" or field.default is not None) or None,
        converter=None if positional or bool in kinds or name in _ADDED else _given_last,
        negative=None if field.default is True else (),
    )
    argument.parameter = Parameter.combine(argument.parameter, more)


def _registered(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        module, colon, registry = word.partition(":")
        yield from getattr(importlib.import_module(module), registry) if colon else (word,)


def _given_last(kind: Any, tokens: Sequence[Token]) -> Any:
    """Return the value or list given last; cyclopts would add lists up, and round 1.5 to 2."""
    tokens = tokens[max(place for place, token in enumerate(tokens) if not token.index) :]
    for token in tokens:
        if int in (kind, *typing.get_args(kind)) and not re.fullmatch(r"[+-]?\d+", token.value):
            raise ValueError(f"{token.value!r} is not an integer")
    return convert(kind, tokens)


def application(options: type, program: str, task: str | None = None) -> App:
    """Return the command line of a dataclass of options, as `program`, with the options of one task or of all."""
    _flatten(options)

    def command(options: Any = None) -> Any:
        return options

    command.__annotations__["options"] = Annotated[options, Parameter(name="*")]
    if any(one.default is one.default_factory is dataclasses.MISSING for one in dataclasses.fields(options)):
        command.__defaults__ = None
    app = _CommandLine(
        name=program,
        help=re.sub(r"(?<!\n)\n(?!\n)", " ", (inspect.getdoc(options) or "").partition("\nExamples:")[0]),
        help_format="plaintext",
        version_flags=(),
        exit_on_error=False,
        print_error=False,
        default_parameter=Parameter(consume_multiple=(1, None), allow_repeating=True, json_list=False),
    )
    app["--help"].show = False
    app.task, app.required = task, getattr(options, "REQUIRED", ())
    app.default(command)
    named = [one for one in app.assemble_argument_collection() if one.index is not None]
    names = [one.name + "..." * (typing.get_origin(one.hint) is tuple) for one in named]
    words = [name if one.required else f"[{name}]" for name, one in zip(names, named, strict=True)]
    after = ["-- COMMAND"] if "COMMAND..." in words else []
    app.usage = " ".join(["Usage:", program, *(word for word in words if word != "COMMAND..."), "[OPTIONS]", *after])
    return app


def _flatten(options: Any) -> None:
    """Have cyclopts take the fields of dataclasses inside a dataclass as options without a prefix."""
    for kind in typing.get_type_hints(options).values():
        if dataclasses.is_dataclass(kind):
            Parameter(name="*")(kind)
            _flatten(kind)


def parse(options: type[T], argv: Sequence[str], program: str) -> T:
    """Parse the words after the program into a dataclass of options. Prints help and exits 0 on --help.

    Raises:
        UsageError: unknown or missing options, or a value that the parser or the dataclass refuses.
    """
    return _parsed(options, argv, program, App.parse_args)[0]


def parse_known(options: type[T], argv: Sequence[str], program: str) -> tuple[T, list[str]]:
    """Like `parse`, but also return the words that are not options of it."""
    return _parsed(options, argv, program, App.parse_known_args)


def _parsed(
    options: type[T], argv: Sequence[str], program: str, read: Callable[..., tuple[Any, ...]]
) -> tuple[T, list[str]]:
    app = application(options, program, argv[0] if argv and argv[0] in known_tasks() else None)
    if str(app.usage).endswith("-- COMMAND") and not {"--", "-h", "--help"} & set(argv):  # its options are not ours
        raise UsageError("option-missing", f"a command is missing: {str(app.usage).removeprefix('Usage: ')}")
    try:
        if read is App.parse_args:  # before the dataclass refuses what a misspelled option would have given it
            _check_names(app.assemble_argument_collection(), argv)
        command, bound, *unknown, _ = read(app, list(argv))
    except CycloptsError as error:
        error.verbose = False
        missing = error.argument if isinstance(error, MissingArgumentError) else None
        if missing is not None and missing.children:
            required = (one for one in missing.children_recursive if one.required and not one.children)
            error.argument = missing = next(required, None) or missing.resolved_hint()  # which says what it needs
        last = argv[-1] if argv else "-"
        if missing is not None and missing.index is not None and "--" not in argv and not re.match(r"-|\d+$", last):
            with suppress(UsageError):  # a list of values before it took it
                return _parsed(options, [*argv[:-1], "--", last], program, read)
        chosen = isinstance(error, CoercionError) and typing.get_origin(error.target_type) is Literal
        codes: list[Code] = [code for kind, code in _CODES.items() if isinstance(error, kind)]
        code: Code = "option-choice" if chosen else [*codes, "option-value"][0]
        text = str(error).rstrip(".")
        if missing is not None and missing.name not in argv:
            text = f"{missing.name} is missing"
        raise UsageError(code, f"{text} (see {program} --help)") from None
    parsed = command(*bound.args, **bound.kwargs)
    if command != app.default_command:  # the help was printed, which would wrap commands at the terminal's width
        print("\n  ".join(["Examples:", *examples_of(options)]))
        raise SystemExit(0)
    return parsed or options(), unknown[0] if unknown else []


def _check_names(arguments: ArgumentCollection, argv: Sequence[str]) -> None:
    for word in itertools.takewhile(lambda word: word != "--", argv):
        name = word.partition("=")[0]
        if name.startswith("--") and name != "--help" and arguments.get(name, None) is None:
            raise UnknownOptionError(token=Token(keyword=name, source="cli"), argument_collection=arguments)


def examples_of(options: type) -> list[str]:
    """Return the command lines in the section Examples at the end of the docstring."""
    return [line.strip() for line in (inspect.getdoc(options) or "").partition("\nExamples:\n")[2].splitlines()]
