"""Find the command of a command line, parse its options and run it."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from bench.cli.parser import parse
from bench.cli.result import Result, show
from common.errors import UsageError
from common.registry import lookup


@dataclass(frozen=True, slots=True)
class Group:
    """A command with subcommands: a task, or another word."""

    what: str
    """Kind of the second word: kind or task."""
    others: Mapping[str, tuple[str, str]]
    """Further subcommands: module, and one line of help."""


COMMANDS: dict[str, str | Group] = {
    "doctor": "bench.cli.doctor",
    "data": Group(
        "kind",
        {
            "pretrain": ("bench.cli.data_pretrain", "dumps and text -> HDF5 shards of pretraining instances"),
            "download": ("bench.cli.data_download", "download Wikipedia, SQuAD or books, by name"),
            "check": ("bench.cli.data_check", "header, counts and ten decoded rows of prepared data"),
        },
    ),
    "convert": "bench.cli.convert",
    "train": "bench.cli.train",
    "predict": Group("task", {}),
    "eval": Group("task", {}),
    "tune": "bench.cli.tune",
    "throughput": "bench.cli.throughput",
    "measure": "bench.cli.measure",
    "speed-of-light": "bench.cli.speed_of_light",
    "comm": "bench.cli.comm",
    "profile": "bench.cli.profile",
    "analyze": "bench.cli.analyze",
    "core-util": "bench.cli.core_util",
    "allreduce": "bench.cli.allreduce",
    "launch": "bench.cli.launch",
    "submit": "bench.cli.submit",
    "report": "bench.cli.report",
    "compare": "bench.cli.compare",
}
"""Commands by name; a module is imported when its command is called."""


@dataclass(frozen=True, slots=True)
class Call:
    """A command and the words after its name."""

    program: str
    """Its full name: "bertbench eval squad"."""
    words: list[str]
    read_words: Callable[[list[str], str], Any]
    """Parses the words to options."""
    run: Callable[[Any], Result]


def call(argv: Sequence[str]) -> int:
    """Run a command, print its result, return its exit code. Raises BertbenchError."""
    found = find(argv)
    if isinstance(found, Result):
        return show(found, False)
    options = found.read_words(found.words, found.program)
    return show(found.run(options), bool(getattr(options, "json", False)))


def result_of(argv: Sequence[str]) -> Result:
    """Run a command and return its result, without printing it. Raises BertbenchError."""
    found = find(argv)
    return found if isinstance(found, Result) else found.run(found.read_words(found.words, found.program))


def find(argv: Sequence[str]) -> Call | Result:
    """Return the command of the first one or two words, or the help of a group.

    Raises:
        UsageError: unknown command, or a missing second word.
    """
    name, *words = argv
    entry = lookup(COMMANDS, name, "command")
    if isinstance(entry, Group):
        return _in_group(name, entry, words)
    return _of_module(entry, f"bertbench {name}", words)


def _of_module(module_name: str, program: str, words: list[str]) -> Call:
    module = importlib.import_module(module_name)
    return Call(program, words, getattr(module, "read_words", None) or _parser_of(module), module.run)


def _parser_of(module: ModuleType) -> Callable[[list[str], str], Any]:
    (options,) = module.OPTIONS.values()
    return lambda words, program: parse(options, words, program)


def _in_group(name: str, group: Group, words: list[str]) -> Call | Result:
    program = f"bertbench {name}"
    if words and words[0] in group.others:
        return _of_module(group.others[words[0]][0], f"{program} {words[0]}", words[1:])
    from bench.cli.task_commands import TaskRun, commands

    choices = {**commands(name), **group.others}
    if words and words[0] in ("-h", "--help"):
        from analysis.render.tables import Plain

        return Result(blocks=[Plain(_usage(program, group.what, choices))])
    if not words or words[0].startswith("-"):
        names = " | ".join(choices)
        raise UsageError("option-missing", f"{program} needs a {group.what} first: {program} {names} [options]")
    entry, _ = lookup(choices, words[0], f"{group.what} of {name}")
    task = TaskRun(name, words[0], entry)
    return Call(f"{program} {words[0]}", words[1:], task.read_words, task.run)


def _usage(program: str, what: str, choices: Mapping[str, tuple[str, str]]) -> str:
    width = max(map(len, choices))
    lines = "\n".join(f"  {name:<{width}} {text}" for name, (_, text) in choices.items())
    return (
        f"usage: {program} {what.upper()} [options]\n\n{lines}\n\n"
        f"  {program} {what.upper()} --help   options of a {what}"
    )


def options_of(name: str) -> dict[str, type]:
    """Return the options of a command, or of each subcommand, by its words, for the reference page."""
    entry = COMMANDS[name]
    if not isinstance(entry, Group):
        return dict(importlib.import_module(entry).OPTIONS)
    from bench.cli.task_commands import options_of_tasks

    found = options_of_tasks(name)
    for module, _ in entry.others.values():
        found |= importlib.import_module(module).OPTIONS
    return found
