"""Parse and quote words of commands: shells, YAML, placeholders, torchrun's arguments, times and sizes."""

import os
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from common.errors import UsageError

_TIME = re.compile(r"(?:(\d+)-(\d+)(?::(\d+)(?::(\d+))?)?)|(?:(?:(\d+):)?(\d+):(\d+))|(\d+)")
_MEMORY = re.compile(r"(\d+)([MGT])")
_GIB = {"M": 1 / 1024, "G": 1, "T": 1024}
# Text that every version of YAML reads as text without quotes; 1e-5, 012, 1:30, yes and ~ need quotes.
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9./_-]*")
_NOT_TEXT = {"true", "false", "yes", "no", "on", "off", "y", "n", "null", "nan", "inf"}
_PLACE = re.compile(r"\{([a-z_][a-z0-9_]*)\}")


def time_limit_seconds(text: str) -> int:
    """Return a limit in s from the format of Slurm's sbatch(1). Raises UsageError for other formats and for 0."""
    match = _TIME.fullmatch(text)
    seconds = 0
    whole = True
    if match:
        days, day_hours, day_minutes, day_seconds, hours, minutes, rest, plain = (
            int(part or 0) for part in match.groups()
        )
        seconds = 86400 * days + 3600 * (day_hours + hours) + 60 * (day_minutes + minutes + plain) + day_seconds + rest
        # Only the first number may exceed its unit.
        whole = max(day_minutes, day_seconds, rest, minutes if match[5] else 0) < 60 and day_hours < 24
    if not seconds or not whole:
        what = "is not above 0" if whole else "has more than 59 minutes, 59 seconds or 23 hours after a larger unit"
        raise UsageError(
            "option-value",
            f"--time-limit {text!r} {what}: give minutes (90), hours:minutes:seconds (12:00:00) or "
            "days-hours:minutes:seconds (2-00:00:00)",
        )
    return seconds


def memory_gib(text: str) -> float:
    """Return an amount such as 64G in GiB. Raises UsageError for other formats and for 0."""
    match = _MEMORY.fullmatch(text)
    if not match or not int(match[1]):
        raise UsageError(
            "option-value", f"{text!r} is not an amount of memory: give a whole number with M, G or T, such as 64G"
        )
    return int(match[1]) * _GIB[match[2]]


def kubernetes_memory(text: str) -> str:
    """Return 64G in the format of Kubernetes, 64Gi. Raises UsageError as `memory_gib` does."""
    memory_gib(text)
    return f"{text}i"


def program(command: Sequence[str], module: bool, no_python: bool) -> list[str]:
    """Return torchrun's arguments for COMMAND: a script if its name ends in .py, else a program.

    Raises:
        UsageError: there is no command.
    """
    check_command(command)
    if module:
        return ["--module", *command]
    if no_python or not command[0].endswith(".py"):
        return ["--no-python", *command]
    return list(command)


def check_command(command: Sequence[str]) -> None:
    """Raise UsageError if there is no command."""
    if not command or not command[0].strip():
        raise UsageError(
            "option-missing", "no command was given: add it after --, as in -- bertbench train pretrain --data FOLDER"
        )


def text_words(command: Sequence[str]) -> None:
    """Raise UsageError if a word is not valid UTF-8, which the file requires."""
    for word in command:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UsageError("option-value", f"{word!a} is not UTF-8: give valid text for this file") from None


def quote(word: str) -> str:
    """Return a quoted word for bash, on one line and in printable characters."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(_escape(character) for character in word)
    return f"$'{escaped}'"


def _escape(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def fill(word: str, known: Sequence[str], quoted: Callable[[str], str], value: Callable[[str], str]) -> str:
    """Return a word for a shell with the placeholders {name} of `known` names filled in.

    Args:
        word: word of the user; other braces remain unchanged.
        known: names of placeholders.
        quoted: quotes text for the shell.
        value: returns shell text that expands to the value of a name as one word.
    """
    parts: list[str] = []
    position = 0
    for match in _PLACE.finditer(word):
        if match[1] in known:
            parts += [quoted(word[position : match.start()])] if match.start() > position else []
            parts.append(value(match[1]))
            position = match.end()
    parts += [quoted(word[position:])] if position < len(word) or not parts else []
    return "".join(parts)


def places(command: Sequence[str]) -> set[str]:
    """Return the names in braces in a command."""
    return {name for word in command for name in _PLACE.findall(word)}


def assignments(option: str, given: Sequence[str]) -> dict[str, str]:
    """Return NAME=VALUE words as a dictionary."""
    found: dict[str, str] = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not value or not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
            raise UsageError(
                "option-value", f"{option} {word!r} is not NAME=VALUE with a name of lowercase letters, digits and _"
            )
        if name in found:
            raise UsageError("option-value", f"{option} names {name} twice: give all its values at once")
        found[name] = value
    return found


def to_yaml(documents: Sequence[dict[str, Any]], header: str) -> str:
    """Return documents of plain values as YAML below a comment."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        plain = _PLAIN.fullmatch(text) and text.lower() not in _NOT_TEXT
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')

    Dumper.add_representer(str, represent)
    text: str = yaml.dump_all(
        documents, Dumper=Dumper, sort_keys=False, default_flow_style=False, width=10**6, allow_unicode=True
    )
    return f"# {header}\n{text}"
