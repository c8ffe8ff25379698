"""`bertbench data verify A B`: compare two folders of HDF5 shards."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from bench.cli.options import Printed
from bench.cli.progress import show_stages
from bench.cli.result import Result

_MOST_LINES = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyOptions(Printed):
    """Compare two folders of HDF5 shards value by value. Exit code 1 if they differ.

    Shards are paired by name, and rows must be in the same order. The first difference of each file is reported.
    Compression and fingerprints of settings are not compared.

    Examples:
        bertbench data verify shards-a shards-b
    """

    first: tyro.conf.Positional[Path]
    """Folder A."""
    second: tyro.conf.Positional[Path]
    """Folder B."""


OPTIONS = {"data verify A B": VerifyOptions}


def run(options: VerifyOptions) -> Result:
    """Compare the folders; return exit code 1 if they differ."""
    from bert.tasks.pretrain.inspecting.verification import verify

    found = verify(options.first, options.second, show_stages())
    differences = [f"differs: {one.file}: {one.what}" for one in found.differences]
    lines = [*differences[:_MOST_LINES], f"{len(found.identical):,} file(s) identical byte for byte"]
    if found.equal:
        lines.append(f"{len(found.equal):,} file(s) with equal content but different bytes")
    lines.append("the folders have equal content" if found.passed else f"{len(differences):,} file(s) differ")
    more = len(differences) - _MOST_LINES
    return Result(
        document={"first": str(options.first), "second": str(options.second), **found.to_json()},
        blocks=lines,
        notes=[f"{more:,} more differences; --json lists all"] if more > 0 else (),
        code=0 if found.passed else 1,
    )
