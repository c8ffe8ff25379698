"""Option parsing shared by the commands: dataclasses in, instances out."""

import dataclasses
import json
from pathlib import Path
from typing import Any, TypeVar

import tyro

from bert.tasks import TASKS
from common.errors import UsageError
from common.registry import lookup

T = TypeVar("T")

OUT_HELP = "Run directory; a call with the same folder continues it."


def parse(options: type[T], argv: list[str], program: str) -> T:
    """Parse `argv` into the dataclass `options`. Prints help and exits 0 on --help, exits 2 on bad options.

    Raises:
        UsageError: a value that the dataclass refuses.
    """
    return tyro.cli(
        options,
        args=argv,
        prog=program,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff),
    )


def parse_task(options: type[T], argv: list[str], program: str) -> T:
    """Like `parse`, for commands whose first word names a task and whose other options are those of a sweep."""
    if not argv or (argv[0].startswith("-") and argv[0] not in ("-h", "--help")):
        raise UsageError(f"{program} needs a task: {program} {' | '.join(TASKS)} [options]; see {program} --help")
    if not argv[0].startswith("-"):
        lookup(TASKS, argv[0], "task")
    return parse(options, [_alias(word) for word in argv], program)


# The singular of a list option means the same.
_ALIASES = {
    "--preset": "--presets",
    "--implementation": "--implementations",
    "--strategy": "--strategies",
    "--batch-size": "--batch-sizes",
    "--seq-len": "--seq-lens",
}


def _alias(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{_ALIASES.get(name, name)}{equals}{value}"


def request_of(options: Any) -> dict[str, Any]:
    """Return the options as plain JSON values."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(options), default=_plain))
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{value!r} has no JSON form")


def run_folder(out: Path) -> Path:
    """Return --out as an absolute path. Raises UsageError where it names the current folder."""
    if out.resolve() == Path.cwd():
        raise UsageError(f"--out {str(out)!r} is the current folder: give a folder of its own, such as runs/mine")
    return out.resolve()
