"""`bertbench allreduce PATH...`: communication, what of it is exposed, who is waited for."""

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
    and stragglers. PATH is a trace, a folder of ranks, a tar, an nsys export, a profiled trial or a run directory; of
    an nsys summary of kernels (CSV), the share of communication in the kernels' time.

    Examples:
        bertbench allreduce runs/profile
        bertbench allreduce rank0.json rank1.json  # separates transfer from waiting
    """

    paths: tyro.conf.Positional[tuple[Path, ...]]
    """Files or folders to read. Several are read as one, such as the traces of all ranks of a run."""


OPTIONS = {"allreduce PATH...": AllreduceOptions}


def run(options: AllreduceOptions) -> Result:
    """Read the traces and break down communication; a trace without any is no error."""
    from analysis.diagnose.explain import to_do
    from analysis.diagnose.profiles import own_tests
    from analysis.diagnose.rules_communication import findings, no_communication
    from analysis.diagnose.rules_time import window
    from analysis.diagnose.summaries import communication_share
    from analysis.metrics.kernels.devices import LinkRates
    from analysis.sources import open_sources, profile_of

    if not options.paths:
        raise InputError(
            "option-missing", "allreduce needs an input: give a trace, a folder of ranks, a tar or a run directory"
        )
    source = open_sources(*options.paths)
    title, page = f"bertbench allreduce {source.path}", f"bertbench report {source.path}"
    if not source.timelines and (totals := communication_share(source.summaries)):
        about: dict[str, Any] = {"path": str(source.path), "kinds": list(source.kinds), "ranks": None}
        return findings_result(totals, source.problems, options, (), title=title, page=page, **about)
    if not source.timelines:
        raise InputError(
            "trace-without-work",
            f"{source.path} contains {', '.join(source.kinds)} instead of a trace: give a trace, or view it with "
            "`bertbench analyze`",
        )
    about = {"path": str(source.path), "kinds": list(source.kinds), "ranks": len(source.timelines)}
    trial = profile_of(source.path)
    links = LinkRates.of(source.summaries, own_tests(trial) if trial else ())
    found = findings(source.timelines, links=links)
    if not found:
        said = no_communication(source.timelines)
        return Result(document=document([], [*source.problems, said], **about), blocks=[said], problems=source.problems)
    return findings_result(
        [*window(source.timelines), *found],
        source.problems,
        options,
        to_do(source, found),
        title=title,
        page=page,
        **about,
    )
