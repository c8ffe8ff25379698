"""`bertbench data KIND`: hands over to the module of the kind."""

from typing import Any

from bench.cli.dispatch import dispatch, options_of

_KINDS = {
    "pretrain": ("bench.cli.data_pretrain", "dumps and text -> HDF5 shards of pretraining instances"),
    "squad": ("bench.cli.data_squad", "SQuAD's JSON -> features: windows of questions and their contexts"),
    "csv": ("bench.cli.data_csv", "a CSV of texts with labels -> a SQLite file to train on"),
    "squad-scaling": ("bench.cli.data_squad_scaling", "time 1..N workers at SQuAD features, in both modes; draw it"),
    "gap": ("bench.cli.data_gap", "GAP's TSVs -> features: texts, a pronoun and two names in each"),
    "glue": ("bench.cli.data_glue", "GLUE's tables -> features, or plain text"),
    "download": ("bench.cli.data_download", "fetch Wikipedia, SQuAD or books, by name"),
    "inspect": ("bench.cli.data_inspect", "what a folder of HDF5 shards holds, and whether it keeps the format"),
    "verify": ("bench.cli.data_verify", "compare two folders of HDF5 shards"),
}


def main(argv: list[str]) -> int:
    """Run the command of a kind; 2 where none is named."""
    return dispatch("data", "kind", _KINDS, argv)


def __getattr__(name: str) -> Any:
    """Return the options of all kinds as OPTIONS, for the reference page."""
    if name != "OPTIONS":
        raise AttributeError(name)
    return options_of(_KINDS)
