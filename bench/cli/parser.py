"""Parse command lines with cyclopts: the fields of a dataclass are the options, their docstrings the help."""

import dataclasses
import difflib
import inspect
import itertools
import re
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

from cyclopts import App, ArgumentCollection, CoercionError, CycloptsError, Group, MissingArgumentError, Parameter
from cyclopts.field_info import POSITIONAL_ONLY

from bench.cli.options import RARE
from bert.tasks import known_tasks
from common.errors import Code, UsageError
from common.flags import POSITIONAL, OfTasks

T = TypeVar("T")

_ARGUMENTS, _OPTIONS, _RARE = (
    Group(name, sort_key=key) for key, name in enumerate(("Arguments", "Options", "Further options"))
)


class _CommandLine(App):
    """A command line whose options are the fields of a dataclass."""

    task: str | None = None
    """The task whose options the help shows; None for all."""
    whole: bool = False
    """Whether the help shows options that are rarely needed."""

    def assemble_argument_collection(self, **options: Any) -> ArgumentCollection:
        """Return the options as cyclopts reads them from the dataclass, with what the help says of each."""
        arguments = super().assemble_argument_collection(**options)
        arguments.sort(key=lambda argument: argument.field_info.name in ("out", "json"))
        places = itertools.count()
        for argument in arguments:
            field, rare = argument.field_info, argument.field_info.name in RARE
            markers = getattr(field.annotation, "__metadata__", ())
            tasks = next((marker for marker in markers if isinstance(marker, OfTasks)), (self.task,))
            text, default = " ".join((argument.parameter.help or "").split()), field.default
            shown = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
            says_default = isinstance(default, bool) or shown in ("", "None") or "; default " in text
            more = Parameter(
                group=_RARE if rare else _OPTIONS,
                help=text,
                show_default=False if says_default else shown,
                show=(self.whole or not rare) and (self.task is None or self.task in tasks),
                negative=() if default is False else None,
            )
            if POSITIONAL in markers:
                argument.index, field.kind = next(places), POSITIONAL_ONLY
                words = known_tasks() if field.name == "task" else argument.parameter.choices
                more = Parameter.combine(more, Parameter(name=field.name.upper(), group=_ARGUMENTS, choices=words))
            if not argument.children:
                argument.parameter = Parameter.combine(argument.parameter, more)
        return arguments


def application(options: type, program: str, task: str | None = None, whole: bool = True) -> App:
    """Return the command line of a dataclass of options, as `program`.

    Args:
        options: the dataclass.
        program: what stands before the options.
        task: the only task whose options the help shows; None for all.
        whole: whether it shows options that are rarely needed.
    """
    _flatten(options)

    def command(options: Any = None) -> Any:
        return options

    command.__annotations__["options"] = options
    if any(one.default is one.default_factory is dataclasses.MISSING for one in dataclasses.fields(options)):
        command.__defaults__ = None
    examples = "\n  ".join(["Examples:", *examples_of(options)])
    app = _CommandLine(
        name=program,
        help=re.sub(r"(?<!\n)\n(?!\n)", " ", (inspect.getdoc(options) or "").partition("\nExamples:")[0]),
        help_format="plaintext",
        help_epilogue=examples if whole else f"Further options: {program} --help-all\n{examples}",
        version_flags=(),
        exit_on_error=False,
        print_error=False,
        default_parameter=Parameter(
            consume_multiple=(1, None), allow_repeating=True, json_list=False, negative_iterable=()
        ),
    )
    app["--help"].show = False
    app.task, app.whole = task, whole
    app.default(command)
    return app


def _flatten(options: Any) -> None:
    """Have cyclopts take the fields of a dataclass, and of dataclasses inside it, as options without a prefix."""
    Parameter(name="*")(options)
    for kind in filter(dataclasses.is_dataclass, typing.get_type_hints(options).values()):
        _flatten(kind)


def parse(options: type[T], argv: Sequence[str], program: str) -> T:
    """Parse the words after the program into a dataclass of options. Prints help and exits 0 on --help.

    Raises:
        UsageError: unknown or missing options, or a value that the parser or the dataclass refuses.
    """
    parsed, unknown = _parsed(options, argv, program, strict=True)
    if unknown:
        raise UsageError("option-unknown", f"unexpected words: {' '.join(unknown)} (see {program} --help)")
    return parsed


def parse_known(options: type[T], argv: Sequence[str], program: str) -> tuple[T, list[str]]:
    """Like `parse`, but also return the words that are not options of it."""
    return _parsed(options, argv, program, strict=False)


def _parsed(options: type[T], argv: Sequence[str], program: str, strict: bool) -> tuple[T, list[str]]:
    app = application(options, program, next(iter({*argv[:1]} & {*known_tasks()}), None), "--help-all" in argv)
    arguments, words = app.assemble_argument_collection(), list(argv)
    names = [name for argument in arguments if not argument.children for name in argument.names]
    for place, word in enumerate(itertools.takewhile(lambda word: word != "--", argv)):
        name, equals, value = word.partition("=")
        if not name.startswith("--") or name in (*names, "--help"):
            continue
        # Words that are handed on may be options of their own: --seed beside --seeds.
        plural = next((one for one in names if strict and one in (f"{name}s", f"{name.removesuffix('y')}ies")), None)
        if plural is None and strict and name != "--help-all":
            near = "".join(f": did you mean {one}?" for one in difflib.get_close_matches(name, names, 1))
            raise UsageError("option-unknown", f"unknown option {name}{near} (see {program} --help)")
        words[place] = "--help" if name == "--help-all" else f"{plural or name}{equals}{value}"
    try:
        command, bound, unknown, _ = app.parse_known_args(words)
    except CycloptsError as error:
        error.verbose, missing = False, error.argument
        if missing is not None and missing.children:
            leaves = [one for one in missing.children_recursive if not one.children]
            error.argument = next((one for one in leaves if one.required), leaves[0])
        chosen = isinstance(error, CoercionError) and typing.get_origin(error.target_type) is typing.Literal
        code: Code = "option-choice" if chosen else "option-value"
        code = "option-missing" if isinstance(error, MissingArgumentError) else code
        raise UsageError(code, f"{str(error).rstrip('.')} (see {program} --help)") from None
    parsed = command(*bound.args, **bound.kwargs)
    if command != app.default_command:  # the help was printed
        raise SystemExit(0)
    return parsed or options(), unknown


def examples_of(options: type) -> list[str]:
    """Return the command lines in the section Examples at the end of the docstring."""
    return [line.strip() for line in (inspect.getdoc(options) or "").partition("\nExamples:\n")[2].splitlines()]
