"""`bertbench collect DIRS --out DIR`: merge the run directories of several nodes."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from analysis.render.tables import Facts
from bench.cli.options import Printed, run_folder
from bench.cli.result import Result
from common.errors import UsageError

_MOST_NAMES = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectOptions(Printed):
    """Merge the run directories of several nodes, or of the tasks of a job array, into one.

    A later call with the same or more folders updates the merged run. Exit code 1 if two of them conflict, one cannot
    be read, or steps of a rank are missing.

    Examples:
        bertbench collect node0/run node1/run --out runs/all
    """

    dirs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="DIRS")]
    """Run directories."""
    out: Path | None = None
    """Folder for the merged run; required."""


OPTIONS = {"collect DIRS": CollectOptions}


def run(options: CollectOptions) -> Result:
    """Merge; return exit code 1 if two sources disagree on a trial, or if a trial cannot be read."""
    if options.out is None or not options.dirs:
        raise UsageError(
            "option-missing",
            "collect needs run directories and --out: bertbench collect node0 node1 --out runs/all",
        )
    from bench.cluster.collect import collect

    out = run_folder(options.out)
    told = collect(options.dirs, out)
    facts = [
        ("trials", f"{told.trials:,}"),
        ("sources", f"{len(told.sources):,}"),
        ("files", f"{told.copied:,} new"),
        ("joined", f"{len(told.joined):,} trials with ranks of several sources"),
        ("folder", str(out)),
    ]
    contested = f"was already measured: the first measurement is kept, this one is in {out}/nodes"
    damaged = f"its files are in {out}/nodes and are not used"
    return Result(
        document={"out": str(out), **dataclasses.asdict(told)},
        blocks=[Facts(facts)],
        notes=[*_named("differs, kept separately", told.apart), *_named("skipped", told.left_out)],
        problems=[
            *(f"{text} {contested}" for text in told.contested),
            *(f"{text}; {damaged}" for text in told.damaged),
            *(f"{text}: collect the folders of all nodes" for text in told.incomplete),
        ],
        code=1 if told.contested or told.damaged or told.incomplete else 0,
    )


def _named(what: str, names: list[str]) -> list[str]:
    more = len(names) - _MOST_NAMES
    return [
        *(f"{what}: {name}" for name in names[:_MOST_NAMES]),
        *[f"{what}: {more} more (--json lists all)"] * (more > 0),
    ]
