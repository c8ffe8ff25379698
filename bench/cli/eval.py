"""`bertbench eval TASK`."""

from typing import Any

from bench.cli.dispatch import Choices, dispatch, options_of
from bench.cli.task_commands import commands, options_of_tasks

_OTHERS: Choices = {
    "squad": ("bench.cli.eval_squad", "official scores of SQuAD 1.1 and 2.0 predictions"),
    "gap": ("bench.cli.eval_gap", "official scores of GAP, log loss, accuracy, by gender, distance and length"),
}
"""Those that show more than a task's outcome."""


def main(argv: list[str]) -> int:
    """Run the command of a task; 2 where none is named."""
    known = _OTHERS if argv and argv[0] in _OTHERS else {**commands("eval"), **_OTHERS}
    return dispatch("eval", "task", known, argv)


def __getattr__(name: str) -> Any:
    """Return the options of all tasks as OPTIONS, for the reference page."""
    if name != "OPTIONS":
        raise AttributeError(name)
    return {**options_of_tasks("eval"), **options_of(_OTHERS)}
