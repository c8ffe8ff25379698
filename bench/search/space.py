"""The search space of --search: training options, each with a list of values or a range of numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.sweep.training import Kind, Value, Values
from common.errors import UsageError
from common.flags import flag
from common.registry import lookup

FORMS = "NAME=VALUE,VALUE or NAME=LOW:HIGH or NAME=log:LOW:HIGH"
_KINDS: dict[Kind, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a name"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One option to search. Raises UsageError: fewer than two values, or an invalid range."""

    name: str
    """Field of the options of `bertbench train`."""
    text: str
    """The values as given."""
    kind: Kind
    choices: tuple[Value, ...] = ()
    """The values; empty for a range."""
    low: float | int = 0
    high: float | int = 0
    """Largest value of a range, included."""
    log: bool = False
    """Whether values are drawn evenly on a logarithmic scale."""

    def __post_init__(self) -> None:
        """Refuse values that leave nothing to search."""
        wrong = ""
        if self.choices and not 1 < len(self.choices) == len(set(self.choices)):
            wrong = "give at least two values, each once"
        elif not self.choices and not self.low < self.high:
            wrong = "LOW must be below HIGH"
        elif self.log and self.low <= 0:
            wrong = "LOW must be above 0 in a logarithmic range"
        if wrong:
            raise UsageError("option-value", f"{self.name}={self.text}: {wrong}")

    def suggest(self, trial: Any) -> Value:
        """Return the value that Optuna suggests for a trial."""
        value: Value
        if self.choices:
            value = trial.suggest_categorical(self.name, self.choices)
        elif self.kind is int:
            value = trial.suggest_int(self.name, self.low, self.high, log=self.log)
        else:
            value = trial.suggest_float(self.name, self.low, self.high, log=self.log)
        return value


def read_space(words: Sequence[str], kinds: Mapping[str, Kind]) -> dict[str, Parameter]:
    """Return the options to search by name.

    Args:
        words: those of --search.
        kinds: the options that can be searched, with the type of each.
    """
    space: dict[str, Parameter] = {}
    for word in words:
        name, _, text = word.partition("=")
        if not name or not text:
            raise UsageError("option-value", f"{word!r} has no values: give {FORMS}")
        name = name.strip().removeprefix("--").replace("-", "_")
        if name in space:
            raise UsageError("option-conflict", f"{name} is given twice ({space[name].text} and {text}): give it once")
        space[name] = _parameter(name, lookup(kinds, name, "training option"), text.strip())
    return space


def read_choices(words: Sequence[str], kinds: Mapping[str, Kind]) -> dict[str, tuple[Value, ...]]:
    """Return the values of each option, given as NAME=VALUE,VALUE. Raises UsageError: a range."""
    space = read_space(words, kinds)
    for name, parameter in space.items():
        if not parameter.choices:
            raise UsageError("option-value", f"{name}={parameter.text}: give the values, separated by commas")
    return {name: parameter.choices for name, parameter in space.items()}


def option_words(values: Values) -> list[str]:
    """Return values as options of `bertbench train`; a switch that is off is left out."""
    words: list[str] = []
    for name, value in values.items():
        if isinstance(value, bool):
            words += [flag(name)] * value
        else:
            words += [flag(name), str(value)]
    return words


def _parameter(name: str, kind: Kind, text: str) -> Parameter:
    ends = text.removeprefix("log:").split(":")
    log = text.startswith("log:")
    if kind in (bool, str) or (len(ends) == 1 and not log):
        choices = tuple(_value(name, kind, part) for part in text.split(","))
        return Parameter(name=name, text=text, kind=kind, choices=choices)
    if len(ends) != 2:
        raise UsageError("option-value", f"{name}={text}: a range is LOW:HIGH or log:LOW:HIGH")
    low, high = (_value(name, kind, part) for part in ends)
    assert isinstance(low, float | int) and isinstance(high, float | int)
    return Parameter(name=name, text=text, kind=kind, low=low, high=high, log=log)


def _value(name: str, kind: Kind, text: str) -> Value:
    text = text.strip()
    if kind is str and text:
        return text
    if kind is bool and text in ("true", "false"):
        return text == "true"
    try:
        if kind in (int, float) and math.isfinite(value := kind(text)):
            return value
    except ValueError:
        pass
    raise UsageError("option-value", f"{name}: {text!r} is not {_KINDS[kind]}")
