"""Options that commands share, and the words of a command line around them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from bench.cli.parser import parse
from bert.tasks import TASKS, known_tasks
from common.errors import UsageError
from common.registry import lookup

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Printed:
    """Options of commands with a result for programs."""

    json: bool = False
    """Print the result as JSON on stdout; progress goes to stderr."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables(Printed):
    """Options of commands that print long tables."""

    full: bool = False
    """Print every table whole instead of one screen."""
    csv: Path | None = None
    """Also write every table to this folder as CSV in full precision; default no CSV files."""
    markdown: Path | None = None
    """Append every table to this file as Markdown, such as $GITHUB_STEP_SUMMARY; default no file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialOptions(Printed):
    """Options of commands that run trials."""

    device: str = "auto"
    """Device type; default auto: CUDA where a GPU is present, otherwise the CPU."""
    timeout_seconds: float = 900.0
    """Time limit of a trial in s; a trial that exceeds it has the status timeout."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryOptions(TrialOptions):
    """Options of commands that run trials, where a failed one may be run again."""

    retry_failed: bool = False
    """Run failed trials again."""


@dataclass(frozen=True, slots=True)
class WrappedCommand(Generic[T]):
    """The options of a command of ours, and the command of the user that follows them."""

    options: T
    command: tuple[str, ...]

    @property
    def json(self) -> bool:
        """Whether the result is printed as JSON."""
        return bool(getattr(self.options, "json", False))


def given_names(argv: Sequence[str]) -> frozenset[str]:
    """Return the names of the options on a command line, with underscores and without -- and no-."""
    words = (word.partition("=")[0] for word in argv if word.startswith("--"))
    return frozenset(word.removeprefix("--").replace("-", "_").removeprefix("no_") for word in words)


def check_task(argv: Sequence[str], program: str) -> None:
    """Refuse a command line whose first word is neither a task nor --help. Raises UsageError."""
    if not argv or (argv[0].startswith("-") and argv[0] not in ("-h", "--help")):
        tasks = " | ".join(known_tasks())
        raise UsageError("option-missing", f"{program} needs a task: {program} {tasks} [options]; see {program} --help")
    if not argv[0].startswith("-"):
        lookup(dict.fromkeys(TASKS if argv[0] in TASKS else known_tasks()), argv[0], "task")


def parse_task(options: type[T], argv: list[str], program: str) -> T:
    """Like `parse`, for commands whose first word is a task."""
    check_task(argv, program)
    return parse(options, argv, program)


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before and after the first --: options and command."""
    words = list(argv)
    place = words.index("--") if "--" in words else len(words)
    return words[:place], words[place + 1 :]


def parse_with_command(options: type[T], argv: Sequence[str], program: str, example: str) -> WrappedCommand[T]:
    """Return the options before -- and the command after it.

    Args:
        options: a dataclass.
        argv: the words of the command line.
        program: what is called.
        example: a command, for the message.
    """
    words, command = split_command(argv)
    if not command and not {"-h", "--help"} & set(words):
        name = program.rpartition(" ")[2]
        raise UsageError(
            "option-missing",
            f"{name} needs a command after --: {program} [options] -- COMMAND, such as -- {example}",
        )
    return WrappedCommand(parse(options, words, program, after="-- COMMAND"), tuple(command))


def run_folder(out: Path) -> Path:
    """Return --out as an absolute path. Raises UsageError if it is the current folder or a file."""
    if out.exists() and not out.is_dir():
        raise UsageError("path-kind", f"--out {str(out)!r} is a file: give a folder")
    if out.resolve() == Path.cwd():
        raise UsageError(
            "option-value", f"--out {str(out)!r} is the current folder: give another folder, such as runs/mine"
        )
    return out.resolve()
