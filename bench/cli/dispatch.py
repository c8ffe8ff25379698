"""Commands whose first word picks a module: `bertbench data pretrain`, `bertbench eval squad`."""

import importlib
import sys
from collections.abc import Mapping

from common.errors import UsageError
from common.registry import lookup

Choices = Mapping[str, tuple[str, str]]
"""Word -> (module with `run(argv)` and `OPTIONS`, or "module:class" of a task's command; one line of help). Either is
imported when its word is given."""


def dispatch(command: str, what: str, choices: Choices, argv: list[str]) -> int:
    """Run the module that the first word names and return its exit code; 2 where there is no word.

    Args:
        command: the command before that word: "eval".
        what: what the word names, in the singular: "kind", "task".
        choices: the words.
        argv: the command's arguments.

    Raises:
        UsageError: an option comes first, or the word is unknown.
    """
    program = f"bertbench {command}"
    if not argv or argv[0] in ("-h", "--help"):
        print(_usage(program, what, choices), end="", file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    if argv[0].startswith("-"):
        raise UsageError("option-missing", f"{program} needs a {what} first: {program} {' | '.join(choices)} [options]")
    module, _ = lookup(choices, argv[0], f"{what} of {command}")
    if ":" in module:
        from bench.cli.task_commands import run_task

        return run_task(command, argv[0], module, argv[1:])
    code: int = importlib.import_module(module).run(argv[1:])
    return code


def options_of(choices: Choices) -> dict[str, type]:
    """Return the options of all modules, for the reference page."""
    found: dict[str, type] = {}
    for module, _ in choices.values():
        if ":" not in module:
            found |= importlib.import_module(module).OPTIONS
    return found


def _usage(program: str, what: str, choices: Choices) -> str:
    width = max(map(len, choices))
    lines = "\n".join(f"  {name:<{width}} {text}" for name, (_, text) in choices.items())
    return (
        f"usage: {program} {what.upper()} [options]\n\n{lines}\n\n"
        f"  {program} {what.upper()} --help   options of a {what}\n"
    )
