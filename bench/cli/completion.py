"""Scripts that complete command lines in a shell, written by cyclopts."""

import re
from collections.abc import Sequence

from bench.cli.dispatch import COMMANDS, Group, options_of
from bench.cli.parser import application
from common.errors import UsageError

SHELLS = ("bash", "zsh", "fish")


def completion(argv: Sequence[str]) -> str:
    """Return the script of a shell, the only word. Raises UsageError for anything else."""
    from cyclopts import App

    if len(argv) != 1 or argv[0] not in SHELLS:
        raise UsageError("option-choice", f"--completion needs a shell: {', '.join(SHELLS)}")
    root = App(name="bertbench", help_flags=(), version_flags=())
    for command, entry in COMMANDS.items():
        parent = root
        if isinstance(entry, Group):
            parent = App(name=command, help_flags=(), version_flags=())
            root.command(parent)
        for words, options in options_of(command).items():
            name = words.split()[1] if isinstance(entry, Group) else command
            if re.fullmatch("[a-z-]+", name) and name not in parent:  # the first of several forms
                parent.command(application(options, name), name=name)
    return str(root.generate_completion(shell=argv[0]))  # type: ignore[arg-type]  # nosec B604
