"""`bertbench collect DIRS --out DIR`: the run directories of several nodes become one."""

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from bench.cli.options import parse, run_folder
from bench.cli.progress import note
from common.errors import UsageError
from common.redact import terminal_text

_MOST_NAMES = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectOptions:
    """Gather run directories of several nodes, or of the tasks of an array, into one.

    A later call with the same folders, or with further ones, brings the collected one up to date. Exit code 1 where two
    differ or one cannot be read.
    """

    dirs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="DIRS")]
    """Run directories."""
    out: Path | None = None
    """Folder to gather them in."""
    json: bool = False
    """Print the summary as JSON."""


OPTIONS = {"collect DIRS": CollectOptions}


def main(argv: list[str]) -> int:
    """Run the command; 1 where two sources measured one trial differently, or a trial cannot be read."""
    options = parse(CollectOptions, argv, "bertbench collect")
    if options.out is None or not options.dirs:
        raise UsageError(
            "option-missing",
            "bertbench collect needs run directories and --out: bertbench collect node0 node1 --out runs/all",
        )
    from bench.cluster.collect import collect

    out = run_folder(options.out)
    told = collect(options.dirs, out)
    if options.json:
        print(json.dumps({"out": str(out), **dataclasses.asdict(told)}, indent=2))
    else:
        rows = [
            ("trials", f"{told.trials:,}"),
            ("sources", f"{len(told.sources):,}"),
            ("files", f"{told.copied:,} new"),
        ]
        rows.append(("joined", f"{len(told.joined):,} trials with ranks of several sources"))
        rows.append(("folder", str(out)))
        for name, value in rows:
            print(f"{name:<8} {value}")
    _name("differs, and lies apart", told.apart)
    _name("left out", told.left_out)
    for text in told.contested:
        print(
            f"bertbench: {text} was measured before: that measurement stays, this one lies in {out}/nodes",
            file=sys.stderr,
        )
    for text in told.damaged:
        print(
            f"bertbench: {terminal_text(text)}; what there is of it lies in {out}/nodes and counts for nothing",
            file=sys.stderr,
        )
    return 1 if told.contested or told.damaged else 0


def _name(what: str, names: list[str]) -> None:
    for name in names[:_MOST_NAMES]:
        note(f"{what}: {name}")
    if len(names) > _MOST_NAMES:
        note(f"{what}: {len(names) - _MOST_NAMES} more (--json lists all)")
