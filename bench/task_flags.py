"""The options of all tasks, as every command that trains takes them. Imports no torch."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from bert.tasks import DATA, given_options, task_data
from bert.tasks.options import TaskOption, read_options
from common.errors import UsageError
from common.flags import flag


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskFlags:
    """Options that some tasks have and others have not."""

    benchmark_task: Annotated[str | None, tyro.conf.arg(name="task")] = None
    """Of glue: cola sst2 mrpc qqp stsb mnli qnli rte wnli."""
    head: str | None = None
    """Of gap: concat mul segment span, how pronoun and names become an answer; default concat."""
    sample_limit: int | None = None
    """Of gap: train on N samples alone, spread evenly."""
    train_on_all: bool = False
    """Of gap: train on the validation data too."""

    def options(self, task: str) -> dict[str, Any]:
        """Return the options of a task, with its defaults where nothing was given.

        Raises:
            UsageError: an option was given that the task does not have, or not with this value.
        """
        given = {_OPTIONS.get(name, name): value for name, value in dataclasses.asdict(self).items()}
        given = {name: value for name, value in given.items() if value is not None and value is not False}
        own = {option.name for option in task_data(task).options}
        for name in given:
            if name not in own:
                owners = [other for other in DATA if name in {option.name for option in task_data(other).options}]
                there = f"is an option of the task {' and '.join(owners)}" if owners else "is an option of no task here"
                raise UsageError(
                    "option-not-applicable",
                    f"{flag(name)} {there}, {task} has {_names(task_data(task).options)}: leave it out",
                )
        return given_options(task, given)


# Fields whose option has another name.
_OPTIONS = {"benchmark_task": "task"}


def task_words(task: str, task_options: str) -> list[str]:
    """Return the options of a resolved task as words of a command line; what follows from the data is left out."""
    options = read_options(task_options)
    words: list[str] = []
    for option in task_data(task).options:
        value = options.get(option.name)
        if option.from_data or value is None or value is False:
            continue
        words += [flag(option.name)] if value is True else [flag(option.name), str(value)]
    return words


def _names(options: tuple[TaskOption, ...]) -> str:
    return ", ".join(flag(option.name) for option in options if not option.from_data) or "none of its own"
