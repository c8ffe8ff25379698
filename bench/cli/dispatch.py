"""Find the command of a command line, parse its options and run it."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from bench.cli.parser import parse
from bench.cli.result import Result, show
from common.errors import UsageError
from common.registry import lookup

COMMANDS = (
    "doctor", "data", "convert", "train", "predict", "eval", "tune", "throughput", "measure", "speed-of-light", "comm",
    "profile", "analyze", "core-util", "allreduce", "launch", "submit", "report", "compare",
)  # fmt: skip
"""Commands; bench.cli.NAME of a command's first word is imported when it is called: `run`, or `run_NAME` of several."""
_MODULES = {"core-util": "analyze", "allreduce": "analyze", "speed-of-light": "speed_of_light"}
SECOND_WORDS: dict[str, tuple[str, ...]] = {"data": ("pretrain", "download", "check"), "predict": (), "eval": ()}
"""Commands whose second word is a task that has the command, or one of these."""


def call(argv: Sequence[str]) -> int:
    """Run a command, print its result, return its exit code. Raises BertbenchError."""
    run, options = read(argv)
    return show(run(options), bool(getattr(options, "json", False)))


def result_of(argv: Sequence[str]) -> Result:
    """Run a command and return its result, without printing it. Raises BertbenchError."""
    run, options = read(argv)
    return run(options)


def module_of(command: str) -> Any:
    """Import the module of a command that no task has, such as "data check"."""
    name = command.split()[0]
    return importlib.import_module(f"bench.cli.{_MODULES.get(name, name)}")


def _forms(command: str) -> dict[str, type]:
    """Return the options of a command that no task has; of several forms the first is its own."""
    return {words: kind for words, kind in module_of(command).OPTIONS.items() if f"{words} ".startswith(f"{command} ")}


def read(argv: Sequence[str]) -> tuple[Callable[[Any], Result], Any]:
    """Return the function of a command and its options. Prints help and exits 0 on --help. Raises UsageError."""
    name, *words = argv
    lookup(dict.fromkeys(COMMANDS), name, "command")
    if name in SECOND_WORDS:
        from bench.cli import task_commands

        tasks = task_commands.commands(name)
        choices = dict.fromkeys((*tasks, *SECOND_WORDS[name]))
        usage = f"bertbench {name} {' | '.join(choices)} [OPTIONS]"
        if words[:1] in (["-h"], ["--help"]):
            print(f"Usage: {usage}\n\nOptions and examples of each: bertbench {name} {next(iter(choices))} --help")
            raise SystemExit(0)
        if not words or words[0].startswith("-"):
            raise UsageError("option-missing", f"{name} needs another word: {usage}")
        lookup(choices, words[0], f"word after {name}")
        word = words.pop(0)
        if word in tasks:
            return task_commands.read(name, word, tasks[word], words)
        name += f" {word}"
    module = module_of(name)
    options = module.form(words) if hasattr(module, "form") else next(iter(_forms(name).values()))
    run = getattr(module, f"run_{name.split()[-1].replace('-', '_')}", None) or module.run
    return run, parse(options, words, f"bertbench {name}")


def options_of(name: str) -> dict[str, type]:
    """Return the options of a command, or of each second word, by its words."""
    if name not in SECOND_WORDS:
        return _forms(name)
    from bench.cli.task_commands import options_of_tasks

    others = [_forms(f"{name} {word}") for word in SECOND_WORDS[name]]
    return {words: options for found in (options_of_tasks(name), *others) for words, options in found.items()}
