"""What a source says: every analysis that its content allows, in the order in which people ask."""

import dataclasses
from collections.abc import Mapping, Sequence

from analysis.diagnose.finding import Finding, distinct, distinct_names, file_stem
from analysis.sources import Source
from analysis.timeline import STEP_COLUMNS, empty

# Findings by how much they decide.
_FIRST = (
    "temporal_breakdown",
    "idle_causes",
    "idle_gaps",
    "all_reduce_by_rank",
    "stragglers",
    "what_if",
    "kernel_families",
    "operator_families",
    "phases",
    "core_utilization",
    "roofline",
)


def explain(
    source: Source, window_ns: float | None = None, measured: Mapping[str, float] | None = None
) -> list[Finding]:
    """Return the findings of a source: of its traces, their communication, its counters, its tables.

    Args:
        source: what `open_sources` returned. Several tables of counters are findings each, named by their file.
        window_ns: length of the counted steps without the profiler, for shares with idle time.
        measured: measured ceilings, as roofline takes them.
    """
    found: list[Finding] = []
    if source.timelines:
        from analysis.diagnose import communication as communication_findings
        from analysis.diagnose import operators as operator_findings
        from analysis.diagnose import timelines as timeline_findings
        from analysis.diagnose import window as window_finding

        found += window_finding.findings(source.timelines)
        found += timeline_findings.findings(source.timelines)
        found += operator_findings.findings(source.timelines)
        found += operator_findings.range_findings(source.timelines)
        found += communication_findings.findings(source.timelines)
    if source.counters:
        from analysis.diagnose import cores as core_findings

        for counters, file, ending in zip(source.counters, source.counter_files, counter_endings(source), strict=True):
            title = f" ({file.name})" if ending else ""
            found += [
                Finding(f"{one.name}{ending}", f"{one.title}{title}", one.table, one.sentence)
                for one in core_findings.findings(counters, window_ns, measured)
            ]
    if source.summaries:
        from analysis.diagnose import summaries as summary_findings

        found += summary_findings.findings(source.summaries)
    return distinct(found)


def counter_endings(source: Source) -> list[str]:
    """Return what ends the names of the findings of each table of counters: "" for a single one, else "_<file>"."""
    if len(source.counters) < 2:
        return [""] * len(source.counters)
    return distinct_names([f"_{file_stem(file)}" for file in source.counter_files])


def over_all_work(source: Source) -> Source:
    """Return the source with no step marked, so that every analysis is over all work, from first start to last end."""
    without = [dataclasses.replace(found, steps=empty(STEP_COLUMNS)) for found in source.timelines]
    return dataclasses.replace(source, timelines=tuple(without))


def by_weight(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings by how much they decide; what is not listed comes last, in its order."""

    def place(finding: Finding) -> int:
        return next((place for place, name in enumerate(_FIRST) if finding.name.startswith(name)), len(_FIRST))

    return sorted(findings, key=place)
