"""The tasks, by name. An entry is "module:class" of a bert.tasks.base.Task, imported when it is asked for.

A package of your own adds a task by an entry point of the group `bertbench.tasks` (docs/explanation/architecture.md).
"""

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bert.tasks.options import check_options, options_text, read_options, with_defaults
from common.registry import load

if TYPE_CHECKING:
    from bert.model.config import ModelConfig
    from bert.model.step import Step
    from bert.tasks.base import DataSource, Task

ENTRY_POINTS = "bertbench.tasks"
TASKS = {
    "pretrain": "bert.tasks.pretrain.task:PretrainTask",
    "squad": "bert.tasks.squad.task:SquadTask",
    "gap": "bert.tasks.gap.task:GapTask",
    "classify": "bert.tasks.classify.task:ClassifyTask",
    "glue": "bert.tasks.glue.task:GlueTask",
}


@functools.cache
def _installed() -> Mapping[str, str]:
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}


def known_tasks() -> Mapping[str, str]:
    """Return the tasks of bertbench and those that installed packages add; none of the latter replaces one of ours."""
    return {**_installed(), **TASKS}


def task_data(name: str) -> "Task":
    """Return a task with the defaults of its options, for plans. Raises UsageError for an unknown task."""
    task: Task = load(TASKS if name in TASKS else known_tasks(), name, "task")()
    return task


def make_task(name: str, task_options: str = "") -> "Task":
    """Return a task; `task_options` is what `resolve_options` gave.

    Raises:
        UsageError: no such task, or an option it does not have.
        InputError: `task_options` is damaged.
    """
    data = task_data(name)
    options = check_options(name, data.options, read_options(task_options))
    return type(data)(**options)


def check_task_options(name: str, task_options: str) -> dict[str, Any]:
    """Return the options in a text that `resolve_options` gave; raises as `make_task` does."""
    return check_options(name, task_data(name).options, read_options(task_options))


def task_step(name: str, task_options: str, config: "ModelConfig") -> "Step":
    """Return what a training step of a task's model computes; raises as `make_task` does."""
    return make_task(name, task_options).step(config)


def given_options(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return options that a user gave, None being not given, with the task's defaults. Raises UsageError."""
    known = task_data(name).options
    return with_defaults(known, check_options(name, known, options))


def resolve_options(name: str, given: dict[str, Any], source: "DataSource") -> str:
    """Return the options of a task on some data as one canonical text, "" where it has none.

    Args:
        name: of the task.
        given: what `given_options` returned.
        source: what the task returned when it inspected the data with these options.

    Raises:
        UsageError: options that the data cannot be used with.
        InputError: the data cannot be read.
    """
    task = type(task_data(name))(**given)
    return options_text(check_options(name, task.options, task.resolve(source)))
