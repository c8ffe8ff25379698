"""`bertbench data pretrain`: text to HDF5 shards."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from bench.cli.options import parse
from bert.data.prepare import PrepareConfig
from common.errors import UsageError
from common.registry import lookup

if TYPE_CHECKING:
    from bert.data.prepare import PrepareSummary

_KINDS = {"pretrain": "folder of .txt files -> HDF5 shards of pretraining instances"}

_USAGE = """usage: bertbench data KIND [options]

{kinds}

  bertbench data KIND --help   options of a kind
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataPretrainOptions:
    """Turn plain text into HDF5 shards of pretraining instances; a call with the same options continues."""

    prepare: Annotated[PrepareConfig, tyro.conf.arg(name="")]
    json: bool = False
    """Print the summary as JSON."""


OPTIONS = {"data pretrain": DataPretrainOptions}


def main(argv: list[str]) -> int:
    """Run the command; 0 when the shards are complete."""
    if not argv or argv[0] in ("-h", "--help"):
        kinds = "\n".join(f"  {name}   {text}" for name, text in _KINDS.items())
        print(_USAGE.format(kinds=kinds), end="", file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    if argv[0].startswith("-"):
        raise UsageError(f"bertbench data needs a kind first: bertbench data {' | '.join(_KINDS)} [options]")
    lookup(_KINDS, argv[0], "kind of data")
    # The parser knows only the form that changes the default (--no-lower-case); scripts say the default, too.
    words = [word for word in argv[1:] if word != "--lower-case"]
    options = parse(DataPretrainOptions, words, f"bertbench data {argv[0]}")
    from bert.data.prepare import prepare

    summary = prepare(options.prepare, show_progress())
    if options.json:
        print(json.dumps(summary.to_json(), indent=2))
    else:
        _show(summary)
    return 0


def show_progress() -> Callable[[str, int, int], None]:
    """Return a callback that keeps one line up to date on stderr, or says nothing where that is no terminal."""

    def progress(stage: str, done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{stage} {done}/{total}\033[K", end="\n" if done == total else "", file=sys.stderr, flush=True)

    return progress


def _show(summary: "PrepareSummary") -> None:
    trained = "trained on this text" if summary.vocab_trained else "given"
    kept = f", {summary.shards_kept} of them finished before" if summary.shards_kept else ""
    for name, value in (
        ("documents", f"{summary.documents:,}"),
        ("sentences", f"{summary.sentences:,}"),
        ("vocabulary", f"{summary.vocab_size:,} word pieces, {trained}: {summary.vocab_path}"),
        (
            "instances",
            f"{summary.training_instances:,} training + {summary.test_instances:,} test, "
            f"{summary.seq_len} tokens, up to {summary.max_predictions} predictions",
        ),
        ("real tokens", f"{summary.padding_efficiency:.1%} of all, the rest is padding"),
        ("shards", f"{summary.shards}{kept}"),
        ("folder", str(summary.folder)),
    ):
        print(f"{name:<11} {value}")
    for note in summary.notes:
        print(f"note: {note}", file=sys.stderr)
