"""`bertbench allreduce PATH...`: communication, what of it is exposed, who is waited for, what if it were free."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from bench.cli.findings_output import show
from bench.cli.options import parse
from common.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class AllreduceOptions:
    """Say what communication costs: per rank and collective, overlapped and exposed, transfer and waiting, stragglers,
    and what a step would take with other communication. PATH is a trace, a folder of ranks, a tar, an nsys export, a
    profiled trial or a run directory.
    """

    paths: tyro.conf.Positional[tuple[Path, ...]]
    """What to read; several are read as one, such as the traces of a run's ranks."""
    what_if: tuple[str, ...] = ()
    """What to replay instead of the usual: free, half, twice (as fast), nowait (for other ranks), none (free, and no
    waiting), nohost (the host takes no time), a speed-up such as 3x, a bus bandwidth such as 100GB/s."""
    json: bool = False
    """Print everything as JSON."""
    csv: Path | None = None
    """Folder to write every table into, as CSV in full precision."""
    rows: int = 20
    """Rows of a table to print; 0 for all."""


OPTIONS = {"allreduce PATH...": AllreduceOptions}


def main(argv: list[str]) -> int:
    """Run the command; 0 also for a trace without communication, which is said."""
    options = parse(AllreduceOptions, argv, "bertbench allreduce")
    from analysis.diagnose import window as window_finding
    from analysis.diagnose.communication import findings, no_communication
    from analysis.metrics.communication.what_if import SCENARIOS, parse_scenario
    from analysis.sources import open_sources

    if not options.paths:
        raise InputError(
            "option-missing", "allreduce needs what to read: a trace, a folder of ranks, a tar, a run directory"
        )
    scenarios = tuple(parse_scenario(text) for text in options.what_if) or SCENARIOS
    source = open_sources(*options.paths)
    if not source.timelines:
        raise InputError(
            "trace-without-work",
            f"{source.path} holds no trace but {', '.join(source.kinds)}: give a trace, or see it with "
            "`bertbench analyze`",
        )
    found = findings(source.timelines, scenarios)
    found = [*window_finding.findings(source.timelines), *found] if found else []
    message = "" if found else no_communication(source.timelines)
    if message and not options.json:
        print(message)
    if found or options.json:
        show(
            found,
            [*source.problems, *([message] if message else [])],
            as_json=options.json,
            csv=options.csv,
            rows=options.rows,
            path=str(source.path),
            kinds=list(source.kinds),
            ranks=len(source.timelines),
        )
    return 0
