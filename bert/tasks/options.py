"""Options of the tasks: their declarations, and the canonical text in records. Imports no torch."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from common.errors import InputError, UsageError

Value = str | int | bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskOption:
    """One option of a task, which the class that trains takes under this name."""

    name: str
    """Such as head."""
    kind: type[str] | type[int] | type[bool]
    default: Value | None = None
    """What holds by default; None if that follows from the data, or nothing does."""
    choices: tuple[str, ...] = ()
    """Of a word: which there are; empty if any will do."""
    least: int = 1
    """Of a number: the smallest."""
    from_data: bool = False
    """Whether it follows from the data alone, so that nobody is asked for it."""
    says: str = ""
    """What it is, for the help of the commands."""

    def check(self, value: object) -> None:
        """Refuse an invalid value. Raises UsageError."""
        if self.choices and value not in self.choices:
            raise UsageError("option-choice", f"{self.name}={value!r}: choose one of {', '.join(self.choices)}")
        low = isinstance(value, int) and self.kind is int and value < self.least
        if type(value) is not self.kind or low:
            wanted = {str: "a word", int: f"a whole number of at least {self.least}", bool: "true or false"}[self.kind]
            raise UsageError("option-value", f"{self.name}={value!r} must be {wanted}")


def check_options(task: str, known: Sequence[TaskOption], options: Mapping[str, Any]) -> dict[str, Value]:
    """Return the options that were given, None being not given. Raises UsageError: the task lacks one of them."""
    by_name = {option.name: option for option in known}
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if name not in by_name:
            known_names = ", ".join(by_name) or "none"
            raise UsageError("option-not-applicable", f"task {task} has no option {name}, it has {known_names}")
        by_name[name].check(value)
    return given


def with_defaults(known: Sequence[TaskOption], given: Mapping[str, Value]) -> dict[str, Value]:
    """Return the options that were given, and the defaults of the others that have one."""
    defaults = {option.name: option.default for option in known if option.default is not None}
    return {**defaults, **given}


def options_text(options: Mapping[str, Value]) -> str:
    """Return options as one canonical text, "" where there are none."""
    return json.dumps(options, sort_keys=True, separators=(",", ":"), allow_nan=False) if options else ""


def read_options(text: str) -> dict[str, Any]:
    """Return the options that `options_text` wrote. Raises InputError if the text is no JSON object."""
    try:
        return dict(json.loads(text or "{}"))
    except (ValueError, TypeError) as error:
        raise InputError("option-value", f"the task options {text[:80]!r} are not a JSON object") from error
