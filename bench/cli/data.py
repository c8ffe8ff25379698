"""`bertbench data KIND`: hands over to the module of the kind."""

import importlib
import sys
from typing import Any

from common.errors import UsageError
from common.registry import lookup

# kind -> (module, one line of help); a module is imported when its kind is called.
_KINDS = {
    "pretrain": ("bench.cli.data_pretrain", "dumps and text -> HDF5 shards of pretraining instances"),
    "squad": ("bench.cli.data_squad", "SQuAD's JSON -> features: windows of questions and their contexts"),
    "csv": ("bench.cli.data_csv", "a CSV of texts with labels -> a SQLite file to train on"),
    "squad-scaling": ("bench.cli.data_squad_scaling", "time 1..N workers at SQuAD features, in both modes; draw it"),
    "gap": ("bench.cli.data_gap", "GAP's TSVs -> features: texts, a pronoun and two names in each"),
    "glue": ("bench.cli.data_glue", "GLUE's tables (TSV, or the `datasets` library) -> features, or plain text"),
    "download": ("bench.cli.data_download", "fetch Wikipedia, SQuAD or books, by name"),
    "inspect": ("bench.cli.data_inspect", "what a folder of HDF5 shards holds, and whether it keeps the format"),
    "verify": ("bench.cli.data_verify", "compare two folders of HDF5 shards"),
}

_USAGE = """usage: bertbench data KIND [options]

{kinds}

  bertbench data KIND --help   options of a kind
"""


def main(argv: list[str]) -> int:
    """Run the command of a kind; 2 where none is named."""
    if not argv or argv[0] in ("-h", "--help"):
        kinds = "\n".join(f"  {name:<13} {text}" for name, (_, text) in _KINDS.items())
        print(_USAGE.format(kinds=kinds), end="", file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    if argv[0].startswith("-"):
        raise UsageError(f"bertbench data needs a kind first: bertbench data {' | '.join(_KINDS)} [options]")
    lookup(_KINDS, argv[0], "kind of data")
    code: int = importlib.import_module(_KINDS[argv[0]][0]).run(argv[1:])
    return code


def __getattr__(name: str) -> Any:
    """Return the options of all kinds as OPTIONS, for the reference page."""
    if name != "OPTIONS":
        raise AttributeError(name)
    found: dict[str, type] = {}
    for module, _ in _KINDS.values():
        found |= importlib.import_module(module).OPTIONS
    return found
