"""`bertbench eval TASK`: hands over to the module of the task."""

from typing import Any

from bench.cli.dispatch import dispatch, options_of

_TASKS = {
    "squad": ("bench.cli.eval_squad", "official scores of SQuAD 1.1 and 2.0 predictions"),
    "gap": ("bench.cli.eval_gap", "official scores of GAP, log loss, accuracy, by gender, distance and length"),
    "glue": ("bench.cli.eval_glue", "the benchmark's scores of answers to a task of GLUE"),
}


def main(argv: list[str]) -> int:
    """Run the command of a task; 2 where none is named."""
    return dispatch("eval", "task", _TASKS, argv)


def __getattr__(name: str) -> Any:
    """Return the options of all tasks as OPTIONS, for the reference page."""
    if name != "OPTIONS":
        raise AttributeError(name)
    return options_of(_TASKS)
