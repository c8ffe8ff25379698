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
    from analysis.diagnose import rules_communication, rules_time
    from analysis.diagnose.explain import to_do
    from analysis.diagnose.profiles import own_tests
    from analysis.diagnose.summaries import communication_share
    from analysis.metrics.kernels.devices import LinkRates
    from analysis.open import open_sources, profile_of

    if not options.paths:
        raise InputError(
            "option-missing", "allreduce needs an input: give a trace, a folder of ranks, a tar or a run directory"
        )
    source = open_sources(*options.paths)
    timelines, kinds, path = source.timelines, list(source.kinds), str(source.path)
    about: dict[str, Any] = {"path": path, "kinds": kinds, "ranks": len(timelines) or None}
    trial = profile_of(source.path)
    links = LinkRates.of(source.summaries, own_tests(trial) if trial else ())
    findings = rules_communication.findings(timelines, links=links)
    findings = findings if timelines else communication_share(source.summaries)
    if not findings and not timelines:
        raise InputError(
            "trace-without-work",
            f"{path} contains {', '.join(kinds)} instead of a trace: give a trace, or view it with `bertbench analyze`",
        )
    if not findings:
        reason = rules_communication.no_communication(timelines)
        problems = [*source.problems, reason]
        return Result(document=document([], problems, **about), blocks=[reason], problems=source.problems)
    title, page = f"bertbench allreduce {path}", f"bertbench report {path}"
    shown, advice = [*rules_time.window(timelines), *findings], to_do(source, findings)
    return findings_result(shown, source.problems, options, advice, title=title, page=page, **about)
