"""Parse command lines with cyclopts: the fields of a dataclass are the options, their docstrings the help."""

import dataclasses
import inspect
import itertools
import re
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

from cyclopts import (
    App,
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
from cyclopts.field_info import POSITIONAL_ONLY

from bench.cli.options import RARE
from bert.tasks import known_tasks
from common.errors import Code, UsageError
from common.flags import POSITIONAL, flag

T = TypeVar("T")
_ADDED = ("vary", "search")
"""List options whose values add up where they are given several times; of others the last list counts."""
_CODES: dict[type[CycloptsError], Code] = {
    MissingArgumentError: "option-missing",
    UnknownOptionError: "option-unknown",
    UnusedCliTokensError: "option-unknown",
}


class _CommandLine(App):
    """A command line whose options are the fields of a dataclass."""

    whole: bool = True
    """Whether the help shows options that are rarely needed."""
    options: type
    """The dataclass; RARE, if it has that, are its fields for --help-all, REQUIRED those that have to be given."""

    def assemble_argument_collection(self, **given: Any) -> ArgumentCollection:
        """Return the options as cyclopts reads them from the dataclass, with what the help says of each."""
        arguments = super().assemble_argument_collection(**given)
        arguments.sort(key=lambda argument: argument.field_info.name in ("out", "json"))
        places, names = itertools.count(), {argument.name for argument in arguments}
        for argument in arguments:
            field = argument.field_info
            rare = field.name in getattr(self.options, "RARE", RARE)
            converter = _converted if field.name in _ADDED else _given_last
            positional = POSITIONAL in getattr(field.annotation, "__metadata__", ())
            text, default = " ".join((argument.parameter.help or "").split()), field.default
            shown = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
            says_default = isinstance(default, bool) or shown in ("", "None") or "; default " in text
            more = Parameter(
                group=Group("Further options", sort_key=2) if rare else Group("Options", sort_key=1),
                help=text,
                required=True if field.name in getattr(self.options, "REQUIRED", ()) else None,
                show_default=False if says_default else shown,
                show=self.whole or not rare,
                negative=() if default is False else None,
                converter=None if positional or isinstance(default, bool) else converter,
            )
            if positional:
                argument.index, field.kind = next(places), POSITIONAL_ONLY
                words = known_tasks() if field.name == "task" else argument.parameter.choices
                group = Group("Arguments", sort_key=0)
                more = Parameter.combine(more, Parameter(name=field.name.upper(), group=group, choices=words))
            elif isinstance(default, tuple) and not given.get("parse_docstring"):  # to parse, not to show
                singular = re.sub("ies$", "y", argument.name).removesuffix("s")
                more = Parameter.combine(more, Parameter(name=(argument.name, *({singular} - names))))
            if not argument.children:
                argument.parameter = Parameter.combine(argument.parameter, more)
        return arguments


def _given_last(kind: Any, tokens: Sequence[Token]) -> Any:
    """Return the value or list that was given last; cyclopts would add lists up."""
    return _converted(kind, tokens[max(place for place, token in enumerate(tokens) if not token.index) :])


def _converted(kind: Any, tokens: Sequence[Token]) -> Any:
    """Return the value of an option; cyclopts would round 1.5 to 2."""
    for token in tokens:
        if int in (kind, *typing.get_args(kind)) and not re.fullmatch(r"[+-]?\d+", token.value):
            raise ValueError(f"{token.value!r} is not an integer")
    return convert(kind, tokens)


def application(options: type, program: str, whole: bool = True) -> App:
    """Return the command line of a dataclass of options, as `program`; not `whole`: with a help of one screen."""

    def command(options: Any) -> Any:
        return options

    _flatten(options)
    command.__annotations__["options"] = options
    has_defaults = all(one.default is not one.default_factory for one in dataclasses.fields(options))
    command.__defaults__ = (options(),) if has_defaults else None
    examples = "\n  ".join(["Examples:", *examples_of(options)])
    app = _CommandLine(
        name=program,
        help=re.sub(r"(?<!\n)\n(?!\n)", " ", (inspect.getdoc(options) or "").partition("\nExamples:")[0]),
        help_format="plaintext",
        help_epilogue=examples if whole else f"Further options: {program} --help-all\n{examples}",
        help_flags=("--help", "-h", "--help-all"),
        version_flags=(),
        exit_on_error=False,
        print_error=False,
        default_parameter=Parameter(
            consume_multiple=(1, None), allow_repeating=True, json_list=False, negative_iterable=()
        ),
    )
    app["--help"].show, app.whole, app.options = False, whole, options
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
    app = application(options, program, "--help-all" in argv)
    try:
        command, bound, _ = app.parse_args(argv)
    except CycloptsError as error:
        error.verbose, missing = False, error.argument
        if missing is not None and missing.children:
            leaves = [one for one in missing.children_recursive if not one.children]
            error.argument = next((one for one in leaves if one.required), leaves[0])
        code: Code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), "option-value")
        if isinstance(error, CoercionError) and typing.get_origin(error.target_type) is typing.Literal:
            code = "option-choice"
        raise UsageError(code, f"{str(error).rstrip('.')} (see {program} --help)") from None
    result: T = command(*bound.args, **bound.kwargs)
    if command != app.default_command:  # the help was printed
        raise SystemExit(0)
    return result


def words_of(options: Any, kind: type | None = None) -> list[str]:
    """Return the words that `parse` makes these options of: the fields of `kind` that are not at their default."""
    first: list[str] = []
    others: list[str] = []
    for item in dataclasses.fields(kind or options):
        value, about = getattr(options, item.name), getattr(item.type, "__metadata__", ())
        if dataclasses.is_dataclass(value):
            others += words_of(value)
        elif value != item.default:
            words = [] if isinstance(value, bool) else list(map(str, value if isinstance(value, tuple) else (value,)))
            if POSITIONAL in about:
                first += words
            else:
                names = [name for one in about for name in one.name or ()] or [flag(item.name.rstrip("_"))]
                others += [names[0] if value is not False else f"--no-{names[0][2:]}", *words]
    return first + others


def examples_of(options: type) -> list[str]:
    """Return the command lines in the section Examples at the end of the docstring."""
    return [line.strip() for line in (inspect.getdoc(options) or "").partition("\nExamples:\n")[2].splitlines()]
