"""`bertbench completion SHELL`: a script that completes commands, tasks, options and their values."""

import argparse
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from bench.cli.form import Leaf, leaves, summary_of
from bench.cli.result import Result

_TASK = ("TASK", "[TASK]")


@dataclass(frozen=True, kw_only=True, slots=True)
class CompletionOptions:
    """Print a script that completes commands, tasks, options and their values in a shell.

    Save the script where the shell looks for completions, and open a new shell.

    Examples:
        bertbench completion bash > ~/.local/share/bash-completion/completions/bertbench
        bertbench completion zsh > ~/.zfunc/_bertbench  # needs fpath+=~/.zfunc before compinit in ~/.zshrc
        bertbench completion fish > ~/.config/fish/completions/bertbench.fish
    """

    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]
    """Shell to write the script for."""


OPTIONS = {"completion SHELL": CompletionOptions}


def run(options: CompletionOptions) -> Result:
    """Write the script to stdout, for the currently installed commands, options and tasks."""
    import shtab

    return Result(raw=shtab.complete(_parser(), options.shell) + "\n")


def _parser() -> argparse.ArgumentParser:
    """Return an argparse parser of all commands for shtab; it is not used to parse."""
    root = argparse.ArgumentParser(prog="bertbench")
    root.add_argument("-V", "--version", action="store_true", help="show the version")
    parsers: dict[tuple[str, ...], argparse.ArgumentParser] = {(): root}
    choices: dict[tuple[str, ...], Any] = {}
    for words, (options, task) in sorted(_commands().items()):
        for depth in range(len(words)):
            above, path = words[:depth], words[: depth + 1]
            if path in parsers:
                continue
            if above not in choices:
                choices[above] = parsers[above].add_subparsers()
            says = "" if depth + 1 < len(words) else _first_sentence(summary_of(options))
            parsers[path] = choices[above].add_parser(path[-1], help=says, description=says)
        for leaf in leaves(options):
            of_other_tasks = leaf.tasks and task not in leaf.tasks
            if not of_other_tasks and not (leaf.positional and leaf.name == "task"):
                _add(parsers[words], leaf)
    return root


def _commands() -> dict[tuple[str, ...], tuple[type, str | None]]:
    """Return the options of every command by its words, once per task for commands that take one."""
    from bench.cli.dispatch import COMMANDS, options_of
    from bert.tasks import usable_tasks

    found: dict[tuple[str, ...], tuple[type, str | None]] = {}
    for name in COMMANDS:
        for called, options in options_of(name).items():
            words = tuple(_plain(called))
            placeholder = called.split()[len(words) : len(words) + 1]
            if placeholder != ["TASK"]:
                task = words[-1] if words[-1] in usable_tasks() else None
                found[words] = (options, task)
            if placeholder and placeholder[0] in _TASK:
                found |= {(*words, task): (options, task) for task in usable_tasks()}
    return found


def _plain(called: str) -> Iterator[str]:
    """Yield the words of a command up to the first placeholder."""
    for word in called.split():
        if not word[0].isalpha() or word.isupper() or "." in word:
            return
        yield word


def _add(parser: argparse.ArgumentParser, leaf: Leaf) -> None:
    import shtab

    says = _first_sentence(leaf.help).replace("%", "%%")
    if leaf.switch:
        parser.add_argument(leaf.flag, action="store_true", help=says)
        return
    many = typing.get_origin(leaf.kind) is tuple
    taken: dict[str, Any] = {"help": says, "choices": leaf.choices or None}
    if many or leaf.positional:
        taken["nargs"] = "*" if many else "?"
    names = [leaf.name] if leaf.positional else [leaf.flag, *([leaf.alias] if leaf.alias else [])]
    made = parser.add_argument(*names, **taken)
    if Path in (leaf.kind, *typing.get_args(leaf.kind)) or leaf.name in ("data", "file"):
        made.complete = shtab.FILE  # type: ignore[attr-defined]


def _first_sentence(text: str) -> str:
    """Return the first sentence, for a list of completions."""
    return " ".join(text.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")
