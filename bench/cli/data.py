"""`bertbench data KIND`: of the tasks, and what is no task's own."""

from typing import Any

from bench.cli.dispatch import Choices, dispatch, options_of
from bench.cli.task_commands import commands, options_of_tasks

_OTHERS: Choices = {
    "pretrain": ("bench.cli.data_pretrain", "dumps and text -> HDF5 shards of pretraining instances"),
    "csv": ("bench.cli.data_csv", "a CSV of texts with labels -> a SQLite file to train on"),
    "squad-scaling": ("bench.cli.data_squad_scaling", "time 1..N workers at SQuAD features, in both modes; draw it"),
    "download": ("bench.cli.data_download", "fetch Wikipedia, SQuAD or books, by name"),
    "inspect": ("bench.cli.data_inspect", "what a folder of HDF5 shards holds, and whether it keeps the format"),
    "verify": ("bench.cli.data_verify", "compare two folders of HDF5 shards"),
}
"""Those that show more than a task's outcome."""


def main(argv: list[str]) -> int:
    """Run the command of a kind; 2 where none is named."""
    known = _OTHERS if argv and argv[0] in _OTHERS else {**commands("data"), **_OTHERS}
    return dispatch("data", "kind", known, argv)


def __getattr__(name: str) -> Any:
    """Return the options of all kinds as OPTIONS, for the reference page."""
    if name != "OPTIONS":
        raise AttributeError(name)
    return {**options_of_tasks("data"), **options_of(_OTHERS)}
