"""The values of --search: training options, each with a list of values or a range of numbers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.sweep.training import TrainOptions
from common.errors import UsageError
from common.flags import flag

# Options of a training that may change between calls of one search.
FREE = ("out", "json", "threads", "max_seconds", "log_to", "log_every", "save_every", "keep", "device", "file",
        "vary", "seeds", "until", "profile_steps", "price_per_hour")  # fmt: skip
# Further options that cannot be searched: they define the comparison.
FIXED = ("task", "benchmark_task", "phase", "devices", "eval_every", "eval_data", "eval_samples", "best_by",
         "deepspeed_config")  # fmt: skip
FORMS = "NAME=VALUE,VALUE or NAME=LOW:HIGH or NAME=log:LOW:HIGH"
Value = bool | int | float | str
Values = Mapping[str, Value]
"""Options of `bertbench train`, by name."""
Read = Callable[[Sequence[str]], TrainOptions]
"""Returns the options of a training with further words on its command line. Raises UsageError."""


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


def read_space(words: Sequence[str], read: Read) -> dict[str, Parameter]:
    """Return the options to search by name, from the words of --search. Raises UsageError."""
    space: dict[str, Parameter] = {}
    for word in words:
        name, _, text = word.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if name in (*space, *FREE, *FIXED):
            raise UsageError("option-conflict", f"{name} cannot be searched, or is given twice: leave it out")
        space[name] = _parameter(name, text.strip(), read)
    return space


def option_words(values: Values) -> list[str]:
    """Return values as options of `bertbench train`."""
    words: list[str] = []
    for name, value in values.items():
        if isinstance(value, bool):
            words.append(flag(name) if value else f"{flag(name)}=false")
        else:
            words += [flag(name), str(value)]
    return words


def _parameter(name: str, text: str, read: Read) -> Parameter:
    log = text.startswith("log:")
    parts = text.removeprefix("log:").split(":")
    is_range = len(parts) > 1 or log
    texts = parts if is_range else text.split(",")
    values = tuple(read([f"{flag(name)}={part.strip()}"]).value(name) for part in texts)
    if is_range:
        numbers = [float(value) for value in values if isinstance(value, int | float)]
        valid = len(values) == len(numbers) == 2 and (0 if log else -math.inf) < numbers[0] < numbers[1] < math.inf
    else:
        valid = 1 < len(values) == len(set(values)) and "" not in values
    if not valid:
        raise UsageError(
            "option-value", f"{name}={text}: give {FORMS}, at least two values, or LOW below HIGH, for log above 0"
        )
    return Parameter(name, text, values, is_range, log)
