"""`bertbench allreduce PATH...`: communication, what of it is exposed, who is waited for, what if it were free."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from bench.cli.options import Tables
from bench.cli.result import Result, document, findings_result
from common.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class AllreduceOptions(Tables):
    """Break down the cost of communication: per rank and collective, overlapped and exposed time, transfer and waiting,
    stragglers, and the step time with faster or no communication. PATH is a trace, a folder of ranks, a tar, an nsys
    export, a profiled trial or a run directory.

    Examples:
        bertbench allreduce runs/profile
        bertbench allreduce rank0.json rank1.json --what-if free 100GB/s  # predict the step time
        bertbench allreduce rank0.json --what-if without:gelu nodata  # fused kernels; data that is always ready
    """

    paths: tyro.conf.Positional[tuple[Path, ...]]
    """Files or folders to read. Several are read as one, such as the traces of all ranks of a run."""
    what_if: tuple[str, ...] = ()
    """Scenarios to replay: free (no communication time), half or twice (the speed), nowait (no waiting for other
    ranks), none (free and nowait), nohost (no host time), nodata (no data loading), a speedup such as 3x, a bus
    bandwidth such as 100GB/s, without:NAME (kernels with this in their name, * for any text, and their launches are
    gone), kernel:NAME=2x (twice as fast), ranks:N. Those of the host, of data and of kernels need no communication;
    default the first six."""


OPTIONS = {"allreduce PATH...": AllreduceOptions}


def run(options: AllreduceOptions) -> Result:
    """Read the traces and break down communication; a trace without any is no error."""
    from analysis.diagnose.communication import findings, no_communication
    from analysis.diagnose.profiles import own_tests
    from analysis.diagnose.timelines import window_findings
    from analysis.metrics.communication.link_rates import LinkRates
    from analysis.metrics.communication.what_if import SCENARIOS, parse_scenario
    from analysis.sources import open_sources, profile_of

    if not options.paths:
        raise InputError(
            "option-missing", "allreduce needs an input: give a trace, a folder of ranks, a tar or a run directory"
        )
    scenarios = tuple(parse_scenario(text) for text in options.what_if) or SCENARIOS
    source = open_sources(*options.paths)
    if not source.timelines:
        raise InputError(
            "trace-without-work",
            f"{source.path} contains {', '.join(source.kinds)} instead of a trace: give a trace, or view it with "
            "`bertbench analyze`",
        )
    about: dict[str, Any] = {"path": str(source.path), "kinds": list(source.kinds), "ranks": len(source.timelines)}
    trial = profile_of(source.path)
    links = LinkRates.of(source.summaries, own_tests(trial) if trial else ())
    found = findings(source.timelines, scenarios, links=links)
    if not found:
        said = no_communication(source.timelines)
        return Result(document=document([], [*source.problems, said], **about), blocks=[said], problems=source.problems)
    return findings_result([*window_findings(source.timelines), *found], source.problems, options, **about)
