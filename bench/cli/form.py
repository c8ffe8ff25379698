"""Convert a dataclass of options to a form for the parser: fields in groups, with choices and defaults.

tyro groups options by nested dataclasses, but options are declared flat, as records store them. The parser gets a
nested dataclass made from the flat one; its result is converted back.
"""

import ast
import dataclasses
import importlib
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import tyro

from bert.tasks import known_tasks, task_data
from common.errors import UsageError
from common.flags import Groups, OfTasks, OneOf, choice_of

GROUPS: Groups = {
    "model and data": (
        "file", "phase", "data", "preset", "presets", "model", "trust_remote_code", "implementation", "implementations",
        "input", "vocab", "init", "checkpoint", "seq_len", "seq_lens", "padding", "dropout", "seed", "eval_data",
    ),
    "sweep": (
        "batch_size", "batch_sizes", "strategy", "strategies", "zero_stage", "zero_stages", "deepspeed_config",
        "levers", "allocators", "nodes", "device", "devices", "scaling", "grad_accum", "precision", "precisions",
        "activation_checkpointing", "bucket_mib", "threads", "rounds", "max_batch_search", "max_batch_limit",
        "max_batch_step", "input_only", "global_batch_size", "micro_batch_size",
        "grad_accum_steps",
    ),
    "measuring": (
        "start", "stop", "min_steps", "max_steps", "max_seconds", "precision_target", "memory_limit_gib",
        "time_budget", "timeout_seconds", "retry_failed",
    ),
    "output": ("json", "out", "output", "full", "csv", "markdown", "price_per_hour", "log_to", "log_every"),
}  # fmt: skip
"""Headings in the help of every command. A dataclass of options can add its own as GROUPS."""

_HEADINGS = {"sweep": "execution"}
"""Headings for commands that take single values instead of lists."""

SINGULARS = {
    "presets": "preset",
    "implementations": "implementation",
    "strategies": "strategy",
    "batch_sizes": "batch_size",
    "seq_lens": "seq_len",
    "stages": "stage",
    "tasks": "task",
}
"""List options that can also be given by their singular, in every command that has them."""

_GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}
_DEFAULT = "; default "
_EXAMPLES = "\nExamples:\n"


@dataclass(frozen=True, slots=True)
class Leaf:
    """An option of a command."""

    path: tuple[str, ...]
    """Names of the nested fields, its own last."""
    hint: Any
    """Its type with tyro's markers."""
    field: "dataclasses.Field[Any]"
    help: str
    """Its meaning, without the default."""
    default_text: str
    """The default as text; "" if it is required or a switch."""
    choices: tuple[str, ...] = ()
    """The accepted words, if limited."""
    owner: type | None = None
    """The dataclass that declares it."""

    @property
    def name(self) -> str:
        """The name of the field."""
        return self.path[-1]

    @property
    def markers(self) -> tuple[Any, ...]:
        """Markers in its annotation."""
        return tuple(getattr(self.hint, "__metadata__", ()))

    @property
    def positional(self) -> bool:
        """Whether it is a positional argument."""
        return tyro.conf.Positional in self.markers or any("positional" in str(one).lower() for one in self.markers)

    @property
    def required(self) -> bool:
        """Whether it must be given."""
        missing = dataclasses.MISSING
        return self.field.default is missing and self.field.default_factory is missing

    @property
    def switch(self) -> bool:
        """Whether it takes no value."""
        return self.kind is bool

    @property
    def flag(self) -> str:
        """Its command-line form, such as --batch-sizes, or --no-lower-case for a switch that is on by default."""
        given = next((marker.name for marker in self.markers if getattr(marker, "name", None)), self.name)
        return f"--{'no-' * (self.field.default is True)}{given.replace('_', '-')}"

    @property
    def group(self) -> str:
        """Heading of its group; "" if it has none."""
        own: Groups = getattr(self.owner, "GROUPS", {})
        return next((heading for heading in own if self.name in own[heading]), _GROUP_OF.get(self.name, ""))

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that have it; () if all do."""
        for marker in self.markers:
            if isinstance(marker, OfTasks):
                return marker.tasks
        if self.owner is None or self.owner.__name__ != "TaskFlags":
            return ()
        names = {self.name, *(marker.name for marker in self.markers if getattr(marker, "name", None))}
        spelled = {name.replace("-", "_") for name in names}
        return tuple(task for task in known_tasks() if spelled & {one.name for one in task_data(task).options})

    @property
    def alias(self) -> str:
        """The singular of a list option, such as --preset for --presets; "" if it has none."""
        many = typing.get_origin(self.kind) is tuple
        return f"--{SINGULARS[self.name].replace('_', '-')}" if many and self.name in SINGULARS else ""

    def default_of(self, task: str | None) -> str:
        """The default as text for one task; with None, for every task.

        Parts of a default are separated by "; ". One that begins with tasks, "fine-tuning" or "others" and a colon is
        only for these.
        """
        if task is None:
            return self.default_text
        names = {task} if task == "pretrain" else {task, "fine-tuning"}
        kept: list[str] = []
        own = False
        for part in " ".join(self.default_text.split()).split("; "):
            of, colon, text = part.partition(": ")
            words = set(of.split())
            if not colon or not words <= {"fine-tuning", "others", *known_tasks()}:
                kept.append(part)
            elif words & names or ("others" in words and not own):
                own = True
                kept.append(text)
        return "; ".join(kept)

    @property
    def kind(self) -> Any:
        """Its type without markers."""
        return typing.get_args(self.hint)[0] if self.markers else self.hint


def leaves(options: type, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Yield the fields of a dataclass of options, with nested dataclasses replaced by their fields."""
    texts = field_docstrings(options)
    hints = typing.get_type_hints(options, include_extras=True)
    for item in dataclasses.fields(options):
        hint = hints[item.name]
        markers = getattr(hint, "__metadata__", ())
        inner = typing.get_args(hint)[0] if markers else hint
        if dataclasses.is_dataclass(inner):
            assert isinstance(inner, type)
            yield from leaves(inner, (*path, item.name))
            continue
        said = texts.get(item.name) or next((one.help for one in markers if getattr(one, "help", None)), "")
        meaning, _, default = said.partition(_DEFAULT)
        yield Leaf(
            (*path, item.name),
            hint,
            item,
            meaning if not default or meaning.endswith(".") else f"{meaning}.",
            default.rstrip(".") or ("" if item.name == "task" else _default_text(item)),
            choices_of(item, inner, markers),
            options,
        )


def headings_of(found: Iterable[Leaf]) -> list[str]:
    """Return the headings of options in the order of the help: those of the command follow the first of every help."""
    used = dict.fromkeys(leaf.group for leaf in found if leaf.group and not leaf.positional)
    first, *others = GROUPS
    own = (heading for heading in used if heading not in GROUPS)
    return [heading for heading in (first, *own, *others) if heading in used]


def _default_text(item: "dataclasses.Field[Any]") -> str:
    value = item.default
    if value is dataclasses.MISSING or value is None or isinstance(value, bool) or value in ((), ""):
        return ""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def choices_of(item: "dataclasses.Field[Any]", kind: Any, markers: tuple[Any, ...] = ()) -> tuple[str, ...]:
    """Return the words that a field accepts; () for any. Its dataclass checks them, with its own error code."""
    for part in (kind, *typing.get_args(kind)):
        if typing.get_origin(part) is typing.Literal:
            return tuple(map(str, typing.get_args(part)))
    for marker in markers:
        if isinstance(marker, OneOf):
            return marker.words
        listed = getattr(marker, "metavar", None) or ""
        if listed.startswith("{"):
            return tuple(listed.partition("}")[0].removeprefix("{").split(","))
    words = str in (kind, *typing.get_args(kind))
    singular = "strategy" if item.name == "strategies" else item.name.removesuffix("s")
    known = (_named_choices(item.name) or _named_choices(singular)) if words else ()
    return tuple(one for one in known if one != "auto" or item.default is not None)


_NAMED: dict[str, tuple[str, ...]] = {
    "preset": ("bert.model.config:PRESETS",),
    "implementation": ("bench.implementations:IMPLEMENTATIONS",),
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
    "collective": ("records.kinds:COLLECTIVES",),
    "dtype": ("records.kinds:DTYPES",),
    "tasks": ("bert.tasks.glue.tasks:TASKS",),
    "download": ("wikipedia", "pg19"),
}
"""Words that fields accept, by name; MODULE:NAME stands for the words of a registry, which is imported when needed."""


def _named_choices(name: str) -> tuple[str, ...]:
    known: list[str] = []
    for word in _NAMED.get(name, ()):
        module, colon, registry = word.partition(":")
        known += [*getattr(importlib.import_module(module), registry)] if colon else [word]
    return tuple(known)


def form_of(options: type, task: str | None = None) -> tuple[type, Callable[[Any], Any]]:
    """Return a nested dataclass for the parser, and a function that converts its instances to `options`.

    Args:
        options: a dataclass of options, which can be nested.
        task: the task on the command line; options of other tasks are parsed but not shown.
    """
    found = list(leaves(options))
    names = [leaf.name for leaf in found]
    for leaf in found:
        if names.count(leaf.name) > 1 and leaf.tasks:
            owners = " and ".join(leaf.tasks)
            raise UsageError(
                "option-conflict", f"{leaf.flag} of the task {owners} is an option of every task: rename it there"
            )
    several = any(leaf.name == "presets" for leaf in found)
    own: list[Any] = []
    grouped: dict[str, list[Any]] = {heading: [] for heading in headings_of(found)}
    for leaf in found:
        hidden = task is not None and leaf.tasks and task not in leaf.tasks
        made = (leaf.name, _shown(leaf, task, bool(hidden)), *_default_of(leaf))
        (own if leaf.positional or not leaf.group else grouped[leaf.group]).append(made)
    for group, fields in grouped.items():
        heading = group if several else _HEADINGS.get(group, group)
        inner = dataclasses.make_dataclass(group.title().replace(" ", ""), fields, kw_only=True)
        inner.__doc__ = ""
        own.append((group.replace(" ", "_") + "_group", Annotated[inner, tyro.conf.arg(name=heading)]))
    form = dataclasses.make_dataclass("Form", own, kw_only=True)
    form.__doc__ = summary_of(options)

    def build(filled: Any) -> Any:
        values: dict[str, Any] = {}
        for holder in (filled, *(getattr(filled, item.name) for item in dataclasses.fields(filled))):
            if dataclasses.is_dataclass(holder):
                values |= {item.name: getattr(holder, item.name) for item in dataclasses.fields(holder)}
        return _build(options, values)

    return form, build


def _build(options: type, values: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(options, include_extras=True)
    arguments = {}
    for item in dataclasses.fields(options):
        inner = typing.get_args(hints[item.name])[0] if hasattr(hints[item.name], "__metadata__") else hints[item.name]
        arguments[item.name] = _build(inner, values) if dataclasses.is_dataclass(inner) else values[item.name]  # type: ignore[arg-type]
    return options(**arguments)


def _shown(leaf: Leaf, task: str | None, hidden: bool) -> Any:
    given = next((one for one in leaf.markers if hasattr(one, "help_behavior_hint")), tyro.conf.arg())
    metavar = given.metavar  # type: ignore[attr-defined]
    if leaf.choices and metavar is None and not leaf.positional:
        many = typing.get_origin(leaf.kind) is tuple
        metavar = choice_of(leaf.choices) + " ..." * many
    elif metavar is None and leaf.positional and not leaf.choices:
        many = typing.get_origin(leaf.kind) is tuple
        name = f"{leaf.name.removesuffix('s').upper()} ..." if many else leaf.name.upper()
        metavar = name if leaf.required or leaf.name == "task" else f"[{name}]"
    default = leaf.default_of(task)
    hint = f"(default: {default})" if default else ""
    says = f"{leaf.help} Also as {leaf.alias}." if leaf.alias else leaf.help
    merged = dataclasses.replace(given, help=says, metavar=metavar, help_behavior_hint=hint)  # type: ignore[type-var]
    rest = [one for one in leaf.markers if one is not given]
    # tyro checks a default of X | None with typeguard, whose import takes 50 ms, and one of Optional[X] without.
    kind = typing.Union[typing.get_args(leaf.kind)] if isinstance(leaf.kind, types.UnionType) else leaf.kind  # noqa: UP007
    shown: Any = Annotated[kind, merged]
    for marker in (*rest, *([tyro.conf.Suppress] if hidden else [])):
        shown = Annotated[shown, marker]
    return shown


def _default_of(leaf: Leaf) -> tuple[Any, ...]:
    if leaf.required:
        return ()
    if leaf.field.default is not dataclasses.MISSING:
        return (dataclasses.field(default=leaf.field.default),)
    return (dataclasses.field(default_factory=leaf.field.default_factory),)


def summary_of(options: type) -> str:
    """Return the description of a command from its dataclass of options, without the examples."""
    return (inspect.getdoc(options) or "").partition(_EXAMPLES)[0].strip()


def examples_of(options: type) -> list[tuple[str, str]]:
    """Return the command lines in the section Examples at the end of the docstring, each with its comment or ""."""
    listed = (inspect.getdoc(options) or "").partition(_EXAMPLES)[2]
    split = (line.strip().partition("  # ") for line in listed.splitlines())
    return [(command, says) for command, _, says in split if command]


@cache
def field_docstrings(options: type) -> dict[str, str]:
    """Return the docstring below each field."""
    found: dict[str, str] = {}
    for base in options.__mro__[1:]:
        if dataclasses.is_dataclass(base):
            found |= field_docstrings(base)
    if options.__module__ == "types":  # made by dataclasses.make_dataclass: help is in the markers
        return found
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(options))).body
    assert isinstance(body, ast.ClassDef)
    for before, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(before, ast.AnnAssign)
            and isinstance(before.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            found[before.target.id] = " ".join(str(after.value.value).split())
    return found
