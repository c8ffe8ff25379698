"""`bertbench predict TASK`."""

from typing import Any

from bench.cli.dispatch import Choices, dispatch, options_of
from bench.cli.task_commands import commands, options_of_tasks

_OTHERS: Choices = {
    "classify": ("bench.cli.predict_classify", "labels of the texts of a CSV"),
}
"""Those that show more than a task's outcome."""


def main(argv: list[str]) -> int:
    """Run the command of a task; 2 where none is named."""
    known = _OTHERS if argv and argv[0] in _OTHERS else {**commands("predict"), **_OTHERS}
    return dispatch("predict", "task", known, argv)


def __getattr__(name: str) -> Any:
    """Return the options of all tasks as OPTIONS, for the reference page."""
    if name != "OPTIONS":
        raise AttributeError(name)
    return {**options_of_tasks("predict"), **options_of(_OTHERS)}
