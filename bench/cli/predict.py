"""`bertbench predict TASK`: hands over to the module of the task."""

from typing import Any

from bench.cli.dispatch import dispatch, options_of

_TASKS = {"squad": ("bench.cli.predict_squad", "answers to the questions of a features file")}


def main(argv: list[str]) -> int:
    """Run the command of a task; 2 where none is named."""
    return dispatch("predict", "task", _TASKS, argv)


def __getattr__(name: str) -> Any:
    """Return the options of all tasks as OPTIONS, for the reference page."""
    if name != "OPTIONS":
        raise AttributeError(name)
    return options_of(_TASKS)
