"""Options that sweeps and trainings share: what `auto` stands for, and the flags that tasks declare."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from bench.machine.devices import Devices
from bench.machine.environment import native_bf16
from bert.tasks import TASKS, given_options, known_tasks, task_data
from bert.tasks.base import TaskData
from bert.tasks.options import TaskOption, read_options
from common.errors import UsageError
from common.flags import choice_of, flag
from common.registry import lookup

AUTO = "auto"


def resolve_strategy(name: str, world_size: int) -> str:
    """Return the strategy that `auto` stands for, others as they are."""
    if name != AUTO:
        return name
    return "single" if world_size == 1 else "ddp"


def resolve_precision(name: str, devices: Devices) -> str:
    """Return the precision that `auto` stands for, others as they are."""
    if name != AUTO:
        return name
    return "bf16" if native_bf16(devices) else "fp32"


def resolve_padding(name: str, data: TaskData, task: str) -> str:
    """Return the padding that `auto` stands for, or `name`; "" where batches come padded. Raises UsageError."""
    if name == AUTO:
        return data.paddings[0] if data.paddings else ""
    if not data.paddings:
        raise UsageError(
            "option-not-applicable",
            f"--padding {name}: the batches of {task} come padded, there is nothing to choose; leave it out",
        )
    lookup(dict.fromkeys((AUTO, *data.paddings)), name, "padding")
    return name


_FIELDS = {"task": "benchmark_task"}
"""Options whose field has another name: the command's first word is `task`, too."""


def _fields() -> list[tuple[str, Any, Any]]:
    """A field for each option that some task has and a user can give; None or False where it is not given."""
    owners: dict[str, list[tuple[str, TaskOption]]] = {}
    for task in known_tasks():
        for option in task_data(task).options:
            if not option.from_data:
                owners.setdefault(option.name, []).append((task, option))
    found: list[tuple[str, Any, Any]] = []
    for name, pairs in owners.items():
        kinds = {option.kind for _, option in pairs}
        if len(kinds) > 1:
            tasks = " and ".join(task for task, _ in pairs)
            raise UsageError("option-conflict", f"{flag(name)} is of several kinds in the tasks {tasks}: rename one")
        kind = kinds.pop()
        choices = {option.choices for _, option in pairs}
        metavar = choice_of(next(iter(choices))) if len(choices) == 1 and any(choices) else None
        says = " ".join(_help(*pair) for pair in pairs)
        marker = tyro.conf.arg(name=name.replace("_", "-"), help=says, metavar=metavar)
        found.append((_FIELDS.get(name, name), Annotated[kind if kind is bool else kind | None, marker], _absent(kind)))
    return found


def _help(task: str, option: TaskOption) -> str:
    default = f"; default {option.default}" if option.default not in (None, False) else ""
    return f"{task}: {option.says or ' '.join(option.choices)}{default}."


def _absent(kind: type) -> bool | None:
    return False if kind is bool else None


class _Given:
    """Options that some tasks have and others have not."""

    def options(self, task: str) -> dict[str, Any]:
        """Return the options of a task, with its defaults for missing ones.

        Raises:
            UsageError: an option was given that the task does not have, or not with this value.
        """
        names = {field: name for name, field in _FIELDS.items()}
        given = {names.get(field, field): value for field, value in vars(self).items() if value not in (None, False)}
        own = {option.name for option in task_data(task).options}
        for name in given:
            if name not in own:
                owners = [other for other in known_tasks() if name in {one.name for one in task_data(other).options}]
                there = f"is an option of the task {' and '.join(owners)}" if owners else "is an option of no task here"
                raise UsageError(
                    "option-not-applicable",
                    f"{flag(name)} {there}, {task} has {_names(task_data(task).options)}: leave it out",
                )
        return given_options(task, given)


if TYPE_CHECKING:

    @dataclasses.dataclass(frozen=True)
    class TaskFlags(_Given):
        """What is made below; its fields are known when it is made."""

        def __init__(self, **options: Any) -> None: ...

else:
    TaskFlags = dataclasses.make_dataclass("TaskFlags", _fields(), bases=(_Given,), frozen=True, kw_only=True)


def of_our_tasks(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of TaskFlags without those that only tasks of other packages have and that were not given."""
    ours = {_FIELDS.get(option.name, option.name) for task in TASKS for option in task_data(task).options}
    return {name: value for name, value in flags.items() if name in ours or value not in (None, False)}


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
