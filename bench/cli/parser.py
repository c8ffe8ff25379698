"""Parse command lines to dataclasses of options with cyclopts: field docstrings are the help."""

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from bert.tasks import known_tasks, task_data
from common.errors import Code, UsageError
from common.flags import POSITIONAL, Groups, OfTasks, OneOf, flag

if TYPE_CHECKING:
    from cyclopts import App, CycloptsError, Token

T = TypeVar("T")

GROUPS: Groups = {
    "model and data": (
        "file", "phase", "data", "preset", "presets", "model", "trust_remote_code", "implementation", "implementations",
        "input", "vocab", "init", "checkpoint", "seq_len", "seq_lens", "padding", "dropout", "seed", "eval_data",
    ),
    "execution": (
        "batch_size", "batch_sizes", "strategy", "strategies", "zero_stage", "zero_stages", "deepspeed_config",
        "levers", "allocators", "nodes", "device", "devices", "scaling", "grad_accum", "precision", "precisions",
        "activation_checkpointing", "bucket_mib", "threads", "rounds", "max_batch_search", "max_batch_limit",
        "max_batch_step", "input_only", "global_batch_size", "micro_batch_size", "grad_accum_steps",
    ),
    "measuring": (
        "start", "stop", "min_steps", "max_steps", "max_seconds", "precision_target", "memory_limit_gib",
        "time_budget", "timeout_seconds", "retry_failed",
    ),
    "output": ("json", "out", "output", "full", "csv", "markdown", "price_per_hour", "log_to", "log_every"),
}  # fmt: skip
"""Headings in the help of every command. A dataclass of options can add its own as GROUPS."""
SINGULARS = {
    "presets": "preset",
    "implementations": "implementation",
    "strategies": "strategy",
    "zero_stages": "zero_stage",
    "precisions": "precision",
    "batch_sizes": "batch_size",
    "seq_lens": "seq_len",
    "stages": "stage",
    "tasks": "task",
}
"""List options that can also be given by their singular, in every command that has them."""

_ADDED = ("vary", "search")
"""List options whose values add up where they are given several times; of others the last list counts."""

_GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}
_CHOICES: dict[str, tuple[str, ...]] = {
    "preset": ("bert.model.config:PRESETS",),
    "allocator": ("bench.run.resources:ALLOCATORS",),
    "strategy": ("auto", "bert.parallel:STRATEGIES"),
    "precision": ("auto", "records.trial:PRECISIONS"),
    "device": ("auto", "cpu", "cuda"),
    "optimizer": ("lamb", "adamw"),
    "schedule": ("poly", "linear", "constant", "cyclic"),
    "scaling": ("weak", "strong"),
    "padding": ("auto", "longest", "fixed"),
    "profiler": ("bench.profilers:PROFILERS",),
    "log_to": ("bench.loggers:LOGGERS", "none"),
    "collective": ("bench.run.comm:COLLECTIVES",),
    "dtype": ("bench.run.comm:DTYPES",),
    "tasks": ("bert.tasks.glue.tasks:TASKS",),
    "download": ("wikipedia", "pg19"),
}
"""Words that fields accept, by name; MODULE:NAME stands for the words of a registry, which is imported when needed."""
_WORDS, _OTHERS = "arguments", "options"
"""Headings of positional words, and of options without another heading."""
_DEFAULT = "; default "
_EXAMPLES = "\nExamples:\n"


@dataclass(frozen=True, slots=True)
class Option:
    """A field of a dataclass of options, or of one inside it."""

    field: "dataclasses.Field[Any]"
    kind: Any
    """Its type."""
    markers: tuple[Any, ...]
    owner: type
    """The dataclass that declares it."""

    @property
    def name(self) -> str:
        """The name of the field."""
        return self.field.name

    @property
    def flag(self) -> str:
        """Its command-line form, such as --batch-sizes."""
        return flag(self.field.metadata.get("flag", self.name.rstrip("_")))

    @property
    def flags(self) -> list[str]:
        """Its forms; a list has a singular too."""
        return [self.flag, *([flag(SINGULARS[self.name])] if self.several and self.name in SINGULARS else [])]

    @property
    def positional(self) -> bool:
        """Whether it is a word without a name."""
        return POSITIONAL in self.markers

    @property
    def usage(self) -> str:
        """A positional word in the line about usage, such as [FILE] or PATH..."""
        name = self.name.removesuffix("s").upper() + "..." if self.several else self.name.upper()
        return name if self.required else f"[{name}]"

    @property
    def several(self) -> bool:
        """Whether it takes any number of values."""
        return typing.get_origin(self.kind) is tuple

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        return self.field.default is dataclasses.MISSING and self.field.default_factory is dataclasses.MISSING

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have it; () if all do."""
        for marker in self.markers:
            if isinstance(marker, OfTasks):
                return marker.tasks
        if self.owner.__name__ != "TaskFlags":
            return ()
        return tuple(task for task in known_tasks() if self.flag in {flag(one.name) for one in task_data(task).options})

    @property
    def choices(self) -> tuple[str, ...]:
        """The only words that it accepts; () for any."""
        for marker in self.markers:
            if isinstance(marker, OneOf):
                return marker.words
        if str not in (self.kind, *typing.get_args(self.kind)):
            return ()
        if self.positional and self.name == "task":
            return tuple(known_tasks())
        singular = SINGULARS.get(self.name, self.name.removesuffix("s"))
        words = _CHOICES.get(self.name) or _CHOICES.get(singular, ())
        known = [name for word in words for name in _registered(word)]
        return tuple(name for name in known if name != "auto" or self.field.default is not None)

    @property
    def help(self) -> tuple[str, str]:
        """Its meaning, and the default as text."""
        text = field_docstrings(self.owner).get(self.name) or self.field.metadata.get("help", "")
        meaning, _, default = text.partition(_DEFAULT)
        value = () if self.required else self.field.default
        if not default and not isinstance(value, bool) and value not in ((), "", None, dataclasses.MISSING):
            default = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        return meaning if not default or meaning.endswith(".") else f"{meaning}.", default.rstrip(".")

    def parameter(self, group: Any, shown: bool) -> inspect.Parameter:
        """Return it as a parameter of a function, annotated for cyclopts."""
        from cyclopts import Parameter

        meaning, default = self.help
        name = self.name.removesuffix("s").upper() if self.several else self.name.upper()
        annotation = Parameter(
            name=name if self.positional else self.flags,
            help=meaning,
            group=group,
            show=shown,
            allow_repeating=True,
            json_list=False,
            show_default=(lambda _: default) if default else False,
            negative=f"--no-{self.flag.removeprefix('--')}" if self.field.default is True else (),
            converter=_whole_numbers if int in (self.kind, *typing.get_args(self.kind)) else None,
            consume_multiple=(1, None) if self.several and not self.positional else None,
        )
        return inspect.Parameter(
            self.name,
            inspect.Parameter.POSITIONAL_ONLY if self.positional else inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if self.required else self.field.default,
            annotation=Annotated[_of_choices(self.kind, self.choices), annotation],
        )


def _whole_numbers(kind: Any, tokens: Sequence["Token"]) -> Any:
    """Return integers, where cyclopts would round 1.5 to 2."""
    try:
        numbers = tuple(int(token.value) for token in tokens)
    except ValueError:
        wrong = next(token.value for token in tokens if not re.fullmatch(r"[+-]?\d+", token.value))
        raise ValueError(f"{wrong!r} is not an integer") from None
    return numbers if typing.get_origin(kind) is tuple else numbers[0]


def _registered(word: str) -> Iterable[str]:
    module, colon, registry = word.partition(":")
    return tuple(getattr(importlib.import_module(module), registry)) if colon else (word,)


def _of_choices(kind: Any, choices: tuple[str, ...]) -> Any:
    """Return a type of texts as one of these choices alone."""
    if not choices:
        return kind
    word = Literal[choices]  # type: ignore[valid-type]
    if typing.get_origin(kind) is tuple:
        return tuple[word, ...]
    return word if kind is str else word | None


def options_in(options: type) -> Iterator[Option]:
    """Yield the fields of a dataclass of options, those of nested dataclasses in the place of these."""
    hints = typing.get_type_hints(options, include_extras=True)
    for item in dataclasses.fields(options):
        markers = getattr(hints[item.name], "__metadata__", ())
        kind = typing.get_args(hints[item.name])[0] if markers else hints[item.name]
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            yield from options_in(kind)
        else:
            yield Option(item, kind, markers, options)


def application(options: type, program: str, task: str | None = None, rest: bool = False, after: str = "") -> "App":
    """Return the command line of a dataclass of options.

    Args:
        options: the dataclass.
        program: what is called, such as "bertbench throughput".
        task: the task whose options alone are shown.
        rest: whether it takes unknown words too, as `rest`.
        after: what follows the options in the line about usage.
    """
    from cyclopts import App, Group, Parameter

    groups = {heading: Group(heading.capitalize(), sort_key=_place(heading)) for heading in (_WORDS, _OTHERS)}
    parameters: dict[str, inspect.Parameter] = {}
    for option in options_in(options):
        own: Groups = getattr(option.owner, "GROUPS", {})
        named = (heading for heading in own if option.name in own[heading])
        heading = _WORDS if option.positional else next(named, _GROUP_OF.get(option.name, _OTHERS))
        group = groups.setdefault(heading, Group(heading[:1].upper() + heading[1:], sort_key=_place(heading)))
        if option.name in parameters:
            raise UsageError(
                "option-conflict",
                f"{option.flag} of {' and '.join(option.tasks)} is an option of every task: rename it there",
            )
        parameters[option.name] = option.parameter(group, task is None or not option.tasks or task in option.tasks)
    if rest:
        any_word = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]
        parameters["rest"] = inspect.Parameter("rest", inspect.Parameter.VAR_POSITIONAL, annotation=any_word)

    def command() -> None:
        """Stand for the function that cyclopts would call."""

    command.__signature__ = inspect.Signature(sorted(parameters.values(), key=lambda one: one.kind))  # type: ignore[attr-defined]
    words = [one.usage for one in options_in(options) if one.positional]
    app = App(
        name=program,
        usage=" ".join(["Usage:", program, *words, "[OPTIONS]", after]).strip(),
        help=summary_of(options),
        help_format="plaintext",
        help_flags=(),
        version_flags=(),
        group_arguments=groups[_WORDS],
        group_parameters=groups[_OTHERS],
    )
    app.default(command)
    return app


def _place(heading: str) -> int:
    first, *others = GROUPS
    order = [_WORDS, _OTHERS, first, "", *others]  # "": headings of the command
    return order.index(heading if heading in order else "")


def parse(options: type[T], argv: Sequence[str], program: str, after: str = "") -> T:
    """Parse a command line into a dataclass of options. Prints help and exits 0 on --help.

    Args:
        options: the dataclass.
        argv: the words after the program.
        program: what is called.
        after: what follows the options in the line about usage.

    Raises:
        UsageError: unknown or missing options, or a value that the parser or the dataclass refuses.
    """
    return _parsed(options, argv, program, after=after)[0]


def parse_known(options: type[T], argv: Sequence[str], program: str) -> tuple[T, list[str]]:
    """Like `parse`, but also return the words that are not options of it."""
    return _parsed(options, argv, program, rest=True)


def _parsed(
    options: type[T], argv: Sequence[str], program: str, rest: bool = False, after: str = ""
) -> tuple[T, list[str]]:
    from cyclopts import CycloptsError

    if "-h" in argv or "--help" in argv:
        application(options, program, argv[0] if argv[0] in known_tasks() else None, after=after).help_print()
        listed = [f"  {line}" + f"\n      {says}" * bool(says) for line, says in examples_of(options)]
        print("\n".join(["Examples:", *listed]))
        raise SystemExit(0)
    app = application(options, program, rest=rest)
    try:
        bound = app.parse_args(_without_replaced(options, argv), exit_on_error=False, print_error=False)[1]
    except CycloptsError as error:
        raise UsageError(_code(error), f"{_message(error, argv)} (see {program} --help)") from None
    values = dict(bound.arguments)
    unknown = list(values.pop("rest", ()))
    return _build(options, values), unknown


def _code(error: "CycloptsError") -> Code:
    from cyclopts import CoercionError, MissingArgumentError, UnknownOptionError, UnusedCliTokensError

    if isinstance(error, MissingArgumentError):
        return "option-missing"
    if isinstance(error, UnknownOptionError | UnusedCliTokensError):
        return "option-unknown"
    chosen = isinstance(error, CoercionError) and typing.get_origin(error.target_type) is Literal
    return "option-choice" if chosen else "option-value"


def _without_replaced(options: type, argv: Sequence[str]) -> list[str]:
    """Return a command line without lists of values that the same option replaces later."""
    lists = {
        name: one.name for one in options_in(options) if one.several and one.name not in _ADDED for name in one.flags
    }
    groups: list[list[str]] = [[]]
    for word in argv:
        groups += [[]] if word.startswith("--") else []
        groups[-1].append(word)
    names = [lists.get(group[0].partition("=")[0]) if group else None for group in groups]
    kept = (
        group for place, group in enumerate(groups) if names[place] is None or names[place] not in names[place + 1 :]
    )
    return [word for group in kept for word in group]


def _message(error: "CycloptsError", argv: Sequence[str]) -> str:
    from cyclopts import MissingArgumentError, UnusedCliTokensError

    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.argument.name
        return f"{name} needs a value" if name in argv else f"{name} is missing"
    if isinstance(error, UnusedCliTokensError):
        return f"unknown words: {' '.join(error.unused_tokens or ())}"
    return str(error).rstrip(".")


def _build(options: Any, values: Mapping[str, Any]) -> Any:
    """Return the dataclass with the values that were given by field name, also of nested ones."""
    hints = typing.get_type_hints(options)
    given = {}
    for item in dataclasses.fields(options):
        if dataclasses.is_dataclass(hints[item.name]):
            given[item.name] = _build(hints[item.name], values)
        elif item.name in values:
            given[item.name] = values[item.name]
    return options(**given)


def summary_of(options: type) -> str:
    """Return the description of a command from its dataclass of options, without the examples."""
    text = (inspect.getdoc(options) or "").partition(_EXAMPLES)[0]
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n")).strip()


def examples_of(options: type) -> list[tuple[str, str]]:
    """Return the command lines in the section Examples at the end of the docstring, each with its comment or ""."""
    listed = (inspect.getdoc(options) or "").partition(_EXAMPLES)[2]
    split = (line.strip().partition("  # ") for line in listed.splitlines())
    return [(command, says) for command, _, says in split if command]


@cache
def field_docstrings(options: type) -> dict[str, str]:
    """Return the docstring below each field."""
    texts: dict[str, str] = {}
    for base in reversed(options.__mro__[1:]):
        if dataclasses.is_dataclass(base):
            texts |= field_docstrings(base)
    if options.__module__ == "types":  # made by dataclasses.make_dataclass: help is in the metadata
        return texts
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(options))).body
    assert isinstance(body, ast.ClassDef)
    for before, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(before, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(before.target, ast.Name):
            texts[before.target.id] = " ".join(str(ast.literal_eval(after.value)).split())
    return texts
