"""The search space: training options and their values, from the command line or a TOML file."""

import itertools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.plan.training import Kind
from bench.plan.variants import Value
from common.errors import InputError, UsageError, content_code, read_code
from common.registry import lookup

_RANGE_FIELDS = ("low", "high", "log", "step")
_FORMS = "NAME=VALUE,VALUE,... or NAME=LOW:HIGH, NAME=LOW:HIGH:STEP, NAME=log:LOW:HIGH"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One option to search: a list of values, or a range of numbers.

    Raises:
        UsageError: fewer than two values, or an invalid range.
    """

    name: str
    """Field of the options of `bertbench train`."""
    kind: Kind
    choices: tuple[Value, ...] = ()
    """The values; empty for a range."""
    low: float | int = 0
    high: float | int = 0
    """Largest value of a range, included."""
    log: bool = False
    """Whether values are drawn evenly on a logarithmic scale."""
    step: float | int | None = None
    """Step between values of a range; None is continuous for floats and 1 for whole numbers."""

    def __post_init__(self) -> None:
        """Refuse values that leave nothing to search."""
        if self.choices:
            split = next((choice for choice in self.choices if isinstance(choice, str) and "," in choice), None)
            if split is not None:
                raise UsageError(
                    "option-value",
                    f"{self.name}: {split!r} contains a comma, which separates values: rename it",
                )
            if len(set(self.choices)) < max(2, len(self.choices)):
                raise UsageError("option-value", f"{self.name}={self.text()}: give at least two values, each once")
            return
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise UsageError("option-value", f"{self.name}={self.text()}: LOW must be below HIGH, and both finite")
        if self.log and self.low <= 0:
            raise UsageError("option-value", f"{self.name}={self.text()}: LOW must be above 0 in a logarithmic range")
        if self.log and self.step is not None:
            raise UsageError("option-value", f"{self.name}={self.text()}: a logarithmic range has no step: remove it")
        if self.step is not None and not 0 < self.step <= self.high - self.low:
            raise UsageError(
                "option-value", f"{self.name}={self.text()}: the step must be above 0 and fit between LOW and HIGH"
            )

    def text(self) -> str:
        """Return the values in the canonical form of --search."""
        if self.choices:
            return ",".join(map(word, self.choices))
        step = "" if self.step is None else f":{word(self.step)}"
        return f"{'log:' if self.log else ''}{word(self.low)}:{word(self.high)}{step}"

    @property
    def count(self) -> int | None:
        """Number of values; None for a continuous range."""
        if self.choices:
            return len(self.choices)
        if self.step is not None:
            return math.floor((self.high - self.low) / self.step + 1e-9) + 1
        return int(self.high - self.low) + 1 if self.kind is int else None

    def suggest(self, trial: Any) -> Value:
        """Return the value that Optuna suggests for a trial."""
        if self.choices:
            chosen: Value = trial.suggest_categorical(self.name, self.choices)
        elif self.kind is int:
            chosen = trial.suggest_int(self.name, self.low, self.high, step=self.step or 1, log=self.log)
        else:
            chosen = trial.suggest_float(self.name, self.low, self.high, step=self.step, log=self.log)
        return chosen


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """All options to search."""

    parameters: tuple[Parameter, ...]

    @property
    def size(self) -> int | None:
        """Number of combinations; None if a range is continuous."""
        counts = [parameter.count for parameter in self.parameters]
        known = [count for count in counts if count is not None]
        return math.prod(known) if len(known) == len(counts) else None

    def texts(self) -> dict[str, str]:
        """Return the values by name in the canonical form of --search, independent of the order of the options."""
        return {parameter.name: parameter.text() for parameter in sorted(self.parameters, key=lambda own: own.name)}

    def corners(self) -> list[dict[str, Value]]:
        """Return the first and the last values of all parameters."""
        first = {own.name: own.choices[0] if own.choices else own.low for own in self.parameters}
        last = {own.name: own.choices[-1] if own.choices else own.high for own in self.parameters}
        return [first, last]

    def suggest(self, trial: Any) -> dict[str, Value]:
        """Return the values that Optuna suggests for a trial, by name."""
        return {parameter.name: parameter.suggest(trial) for parameter in self.parameters}


def make_space(words: Sequence[str], path: Path | None, kinds: Mapping[str, Kind]) -> SearchSpace:
    """Return the search space given on the command line, in a file, or both.

    Args:
        words: values of --search.
        path: TOML file, if any.
        kinds: the options that can be searched, with the type of each.
    """
    found = [_of_word(text, kinds) for text in words]
    if path is not None:
        found += _of_file(path, kinds)
    if not found:
        raise UsageError(
            "option-missing",
            f"there is nothing to search: give --search {_FORMS}, or --space FILE.toml, such as "
            "--search learning_rate=log:1e-5:1e-4 --search micro_batch_size=4,8,16",
        )
    for first, second in itertools.combinations(found, 2):
        if first.name == second.name:
            raise UsageError(
                "option-conflict", f"{first.name} is given twice ({first.text()} and {second.text()}): give it once"
            )
    return SearchSpace(tuple(found))


def make_choices(words: Sequence[str], kinds: Mapping[str, Kind]) -> dict[str, tuple[Value, ...]]:
    """Return the values of each option, given as NAME=VALUE,VALUE. Raises UsageError: a range, or an option twice."""
    for text in words:
        if "=" not in text:
            raise UsageError("option-value", f"{text} has no values: give {text}=VALUE,VALUE")
    found = make_space(words, None, kinds).parameters if words else ()
    for one in found:
        if not one.choices:
            raise UsageError("option-value", f"{one.name}={one.text()}: give the values, separated by commas")
    return {one.name: one.choices for one in found}


def word(value: Value) -> str:
    """Return a value as a command-line word."""
    return str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, float) else str(value)


def _of_word(text: str, kinds: Mapping[str, Kind]) -> Parameter:
    name, equals, values = text.partition("=")
    if not equals or not name or not values:
        raise UsageError("option-value", f"{text!r}: give {_FORMS}")
    name, kind = _known(name, kinds)
    return _of_text(name, kind, values)


def _known(name: str, kinds: Mapping[str, Kind]) -> tuple[str, Kind]:
    name = name.strip().removeprefix("--").replace("-", "_")
    return name, lookup(kinds, name, "training option")


def _of_text(name: str, kind: Kind, text: str) -> Parameter:
    log = text.startswith("log:")
    parts = text.removeprefix("log:").split(":")
    if kind in (bool, str) or (len(parts) == 1 and not log):
        return Parameter(name=name, kind=kind, choices=tuple(_value(name, kind, part) for part in text.split(",")))
    if len(parts) not in (2, 3):
        raise UsageError("option-value", f"{name}={text}: a range is LOW:HIGH, LOW:HIGH:STEP or log:LOW:HIGH")
    low, high, *step = (_number(name, kind, part) for part in parts)
    return Parameter(name=name, kind=kind, low=low, high=high, log=log, step=step[0] if step else None)


def _of_file(path: Path, kinds: Mapping[str, Kind]) -> list[Parameter]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            read_code(error), f"cannot read {path}: {error.strerror}; --space takes a TOML file"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(content_code(error), f"{path} is not TOML: {error}") from error
    try:
        return [_of_table(*_known(name, kinds), given) for name, given in content.items()]
    except UsageError as error:
        raise InputError(error.code, f"{path}: {error}") from error


def _of_table(name: str, kind: Kind, given: Any) -> Parameter:
    """Return an entry of the file: NAME = "value of --search", NAME = [values], or a table of choices or a range."""
    if isinstance(given, str):
        return _of_text(name, kind, given)
    table = {"choices": given} if isinstance(given, list) else given
    if not isinstance(table, dict) or not table.keys() <= {"choices", *_RANGE_FIELDS}:
        raise UsageError(
            "option-value", f"{name}: give a list of values, or a table with choices or {', '.join(_RANGE_FIELDS)}"
        )
    if "choices" in table:
        if len(table) > 1 or not isinstance(table["choices"], list) or not table["choices"]:
            raise UsageError("option-value", f"{name}: choices must be a list of values without other fields")
        return Parameter(name=name, kind=kind, choices=tuple(_plain(name, kind, own) for own in table["choices"]))
    if kind in (bool, str) or not {"low", "high"} <= table.keys() or not isinstance(table.get("log", False), bool):
        raise UsageError("option-value", f"{name}: a range needs numbers low and high, and may have step or log = true")
    numbers = {key: _plain(name, kind, table[key]) for key in ("low", "high", "step") if key in table}
    return Parameter(name=name, kind=kind, log=table.get("log", False), **numbers)  # type: ignore[arg-type]


def _plain(name: str, kind: Kind, given: Any) -> Value:
    """Return a value of the file in the type of the option; a float option accepts a whole number."""
    if type(given) is kind:
        return _value(name, kind, word(given))
    if kind is float and type(given) is int:
        return float(given)
    raise UsageError("option-value", f"{name}: {given!r} is not {_WORDS[kind]}")


def _number(name: str, kind: Kind, text: str) -> float | int:
    value = _value(name, kind, text)
    assert isinstance(value, float | int)
    return value


def _value(name: str, kind: Kind, text: str) -> Value:
    text = text.strip()
    if kind is bool and text in ("true", "false"):
        return text == "true"
    if kind is str and text:
        return text
    try:
        if kind in (int, float):
            value = kind(text)
            if math.isfinite(value):
                return value
    except ValueError:
        pass
    raise UsageError("option-value", f"{name}: {text!r} is not {_WORDS[kind]}")


_WORDS: dict[Kind, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a name"}
