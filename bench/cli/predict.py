"""`bertbench predict TASK`: hands over to the module of the task."""

from typing import Any

from bench.cli.dispatch import dispatch, options_of

_TASKS = {
    "squad": ("bench.cli.predict_squad", "answers to the questions of a features file"),
    "gap": ("bench.cli.predict_gap", "which of two names a pronoun means, and Kaggle's CSV"),
    "classify": ("bench.cli.predict_classify", "labels of the texts of a CSV"),
    "glue": ("bench.cli.predict_glue", "answers to a task of GLUE, in the files that its server takes"),
}


def main(argv: list[str]) -> int:
    """Run the command of a task; 2 where none is named."""
    return dispatch("predict", "task", _TASKS, argv)


def __getattr__(name: str) -> Any:
    """Return the options of all tasks as OPTIONS, for the reference page."""
    if name != "OPTIONS":
        raise AttributeError(name)
    return options_of(_TASKS)
