"""The tasks, by name. An entry is "module:class" of a bert.tasks.base.Task, imported when it is asked for.

A package of your own adds a task by an entry point of the group `bertbench.tasks` (docs/explanation/architecture.md).
"""

import functools
from collections.abc import Mapping
from typing import Any

from bert.tasks.base import DataSource, Task, options_text, read_options
from common.registry import load

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


def _make(name: str, options: Mapping[str, Any]) -> Task:
    task: Task = load(TASKS if name in TASKS else known_tasks(), name, "task")(**options)
    return task


def task_data(name: str) -> Task:
    """Return a task with the defaults of its options, for plans. Raises UsageError for an unknown task."""
    return _make(name, {})


def make_task(name: str, task_options: str = "") -> Task:
    """Return a task with what `resolve_options` gave. Raises UsageError: no such task, or option of it."""
    return _make(name, read_options(task_options))


def given_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that a user gave, None being not given, with the task's defaults. Raises UsageError."""
    return _make(name, options).values


def resolve_options(name: str, given: Mapping[str, Any], source: DataSource) -> str:
    """Return the options `given` of a task on data that it inspected with them, as one canonical text.

    Raises UsageError (options that the data cannot be used with), InputError (data that cannot be read).
    """
    return options_text(_make(name, given).resolve(source))
