"""`bertbench data verify A B`: whether two folders of HDF5 shards hold the same."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from analysis.render.terminal import wrapped
from bench.cli.options import parse
from bench.cli.progress import show_stages
from bench.cli.result import terminal_width

if TYPE_CHECKING:
    from bert.tasks.pretrain.inspecting.verification import Comparison

_MOST_LINES = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyOptions:
    """Compare two folders of HDF5 shards, value by value; exit code 1 when they differ.

    Shards are paired by name; rows must be in the same order. Of each file the first difference is told; other
    compression and other fingerprints of settings are none.
    """

    first: tyro.conf.Positional[Path]
    """Folder A."""
    second: tyro.conf.Positional[Path]
    """Folder B."""
    json: bool = False
    """Print everything as JSON."""


OPTIONS = {"data verify A B": VerifyOptions}


def main(argv: list[str]) -> int:
    """Run the command; 1 when the folders differ."""
    options = parse(VerifyOptions, argv, "bertbench data verify")
    from bert.tasks.pretrain.inspecting.verification import verify

    found = verify(options.first, options.second, show_stages())
    if options.json:
        about = {"first": str(options.first), "second": str(options.second)}
        print(json.dumps({**about, **found.to_json()}, indent=2, allow_nan=False))
    else:
        _show(found, terminal_width())
    return 0 if found.passed else 1


def _show(found: "Comparison", width: int) -> None:
    lines = [f"differs: {one.file}: {one.what}" for one in found.differences]
    for text in lines[:_MOST_LINES]:
        print("\n".join(wrapped(text, width)))
    if len(lines) > _MOST_LINES:
        print(f"and {len(lines) - _MOST_LINES:,} more such lines: --json has all", file=sys.stderr)
    verdict = "the folders hold the same" if found.passed else f"{len(found.differences):,} file(s) differ"
    print(f"{len(found.identical):,} file(s) identical byte for byte")
    if found.equal:
        print(f"{len(found.equal):,} file(s) of equal content in other bytes")
    print(verdict)
