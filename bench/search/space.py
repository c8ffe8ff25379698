"""The values of --search and --vary: training options, each with a list of values or a range of numbers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.sweep.training import Kind, Value, Values
from common.errors import UsageError
from common.flags import flag
from common.registry import lookup

# Options of a training that may change between calls of one search.
FREE = ("out", "json", "threads", "max_seconds", "log_to", "log_every", "save_every", "keep", "device", "file")
# Further options that cannot be searched: they define the comparison.
FIXED = ("task", "benchmark_task", "phase", "devices", "eval_every", "eval_data", "eval_samples", "best_by",
         "deepspeed_config")  # fmt: skip
FORMS = "NAME=VALUE,VALUE or NAME=LOW:HIGH or NAME=log:LOW:HIGH"
_READERS: dict[Kind, Callable[[str], Value]] = {
    bool: lambda text: {"true": True, "false": False}[text],
    int: int,
    float: float,
    str: str,
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One option to search, a field of the options of `bertbench train`."""

    name: str
    text: str
    """The values as given."""
    values: tuple[Value, ...]
    """The values; of a range the lowest and the highest."""
    is_range: bool
    log: bool
    """Whether values of a range are drawn evenly on a logarithmic scale."""

    def suggest(self, trial: Any) -> Value:
        """Return the value that Optuna suggests for a trial."""
        if not self.is_range:
            choice: Value = trial.suggest_categorical(self.name, self.values)
            return choice
        suggest = trial.suggest_int if isinstance(self.values[0], int) else trial.suggest_float
        number: Value = suggest(self.name, *self.values, log=self.log)
        return number


def read_space(words: Sequence[str], kinds: Mapping[str, Kind]) -> dict[str, Parameter]:
    """Return the options to search by name.

    Args:
        words: those of --search.
        kinds: the options that can be searched, with the type of each.
    """
    space: dict[str, Parameter] = {}
    for word in words:
        name, _, text = word.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if name in space:
            raise UsageError("option-conflict", f"{name} is given twice: give all its values once")
        space[name] = _parameter(name, lookup(kinds, name, "training option"), text.strip())
    return space


def read_choices(words: Sequence[str], kinds: Mapping[str, Kind]) -> dict[str, tuple[Value, ...]]:
    """Return the values of each option, given as NAME=VALUE,VALUE. Raises UsageError: a range."""
    space = read_space(words, kinds)
    for name, parameter in space.items():
        if parameter.is_range:
            raise UsageError("option-value", f"{name}={parameter.text}: give the values, separated by commas")
    return {name: parameter.values for name, parameter in space.items()}


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
    log = text.startswith("log:")
    is_range = kind in (int, float) and ":" in text
    parts = text.removeprefix("log:").split(":") if is_range else text.split(",")
    try:
        values = tuple(_READERS[kind](part.strip()) for part in parts)
        if is_range:
            low, high = map(float, values)
            valid = (0 if log else -math.inf) < low < high < math.inf
        else:
            valid = 1 < len(values) == len(set(values)) and "" not in values
    except (ValueError, KeyError):
        valid = False
    if not valid:
        problem = f"{name}={text}: give {FORMS}, each of type {kind.__name__}, LOW below HIGH and for log above 0"
        raise UsageError("option-value", problem)
    return Parameter(name, text, values, is_range, log)
