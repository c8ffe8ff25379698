"""Runs every analysis that the content of a source allows, in the order in which people ask."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.diagnose.advice import STEP_TIME, Advice, Context, of_machine, ranked
from analysis.diagnose.finding import Finding, distinct, distinct_names, file_stem, short_name
from analysis.sources import Source
from analysis.wording import percent

if TYPE_CHECKING:
    import pandas as pd

    from analysis.metrics.comparison.traces import TraceComparison

# Findings in order of importance.
_FIRST = (
    "temporal_breakdown",
    "idle_causes",
    "idle_gaps",
    "all_reduce_by_rank",
    "stragglers",
    "kernel_families",
    "operator_families",
    "phases",
    "module_classes",
    "modules",
    "operator_roofline",
    "core_utilization",
    "sampled_utilization",
    "roofline",
    "kernel_rules",
    "memory_levels",
    "flop_rates",
    "kernel_limits",
)


def explain(
    source: Source,
    window_ns: float | None = None,
    measured: Mapping[str, float] | None = None,
    context: Context | None = None,
    own_tests: Sequence[Mapping[str, Any]] = (),
) -> list[Finding]:
    """Return the findings of a source: of its traces, their communication, its counters, its tables.

    Args:
        source: what `open_sources` returned. Several tables of counters are findings each, named by their file.
        window_ns: length of the counted steps without the profiler, for shares with idle time.
        measured: measured ceilings, as roofline takes them.
        context: the trial that was recorded, where it is known.
        own_tests: measurements of collectives on the same machine, rows of `collectives.by_size`.
    """
    found: list[Finding] = []
    context = context or Context()
    if source.timelines:
        from analysis.diagnose import cores as core_findings
        from analysis.diagnose import modules as module_findings
        from analysis.diagnose import rules_communication, rules_time
        from analysis.metrics.kernels.devices import LinkRates

        found += rules_time.window(source.timelines)
        found += rules_time.findings(source.timelines, context)
        found += rules_time.operators(source.timelines, context)
        found += core_findings.sampled_findings(source.timelines)
        found += module_findings.findings(source.timelines)
        found += module_findings.roofline_findings(source.timelines)
        found += rules_time.ranges(source.timelines)
        links = LinkRates.of(source.summaries, own_tests)
        found += rules_communication.findings(source.timelines, context=context, links=links)
    if source.counters:
        from analysis.diagnose import cores as core_findings

        for counters, file, ending in zip(source.counters, source.counter_files, counter_endings(source), strict=True):
            title = f" ({file.name})" if ending else ""
            found += [
                dataclasses.replace(one, name=f"{one.name}{ending}", title=f"{one.title}{title}")
                for one in core_findings.findings(counters, window_ns, measured, context)
            ]
    if source.summaries:
        from analysis.diagnose import summaries as summary_findings

        found += summary_findings.findings(source.summaries)
    return distinct(found)


def to_do(source: Source, findings: Sequence[Finding], context: Context | None = None) -> list[Advice]:
    """Return what to do about a profile, the largest gain first.

    The command measures the recorded trial with another option where that tests the remedy; otherwise it compares a
    second recording with this one.
    """
    context = context or Context()
    analyzed = STEP_TIME
    if any(timeline.is_part for timeline in source.timelines):
        analyzed = "time of the window"
    elif not any(len(timeline.steps) for timeline in source.timelines):
        analyzed = "recorded time"
    # Tables of totals do not compare, and a side of a comparison is one path.
    again = ["compare", str(source.path)] if source.timelines and source.given == 1 else ["analyze"]
    second = shlex.join(["bertbench", *again, "NEW_PROFILE"])
    candidates = [one for finding in findings for one in finding.advice] + of_machine(context.disturbed)
    return [
        dataclasses.replace(one, command=one.command or context.command(one.cause) or second, of=one.of or analyzed)
        for one in ranked(candidates)
    ]


def counter_endings(source: Source) -> list[str]:
    """Return what ends the names of the findings of each table of counters: "" for a single one, else "_<file>"."""
    if len(source.counters) < 2:
        return [""] * len(source.counters)
    return distinct_names([f"_{file_stem(file)}" for file in source.counter_files])


def in_window(source: Source, window: str) -> Source:
    """Return the source with every analysis over a window, as `metrics.time.window.windowed` takes it and raises."""
    from analysis.metrics.time.window import windowed
    from analysis.window_choice import STEPS

    if window == STEPS:
        return source
    kept, said = windowed(source.timelines, window)
    return dataclasses.replace(source, timelines=kept, problems=(*source.problems, *said))


def by_weight(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings in the order of _FIRST; others come last, in their own order."""

    def place(finding: Finding) -> int:
        return next((place for place, name in enumerate(_FIRST) if finding.name.startswith(name)), len(_FIRST))

    return sorted(findings, key=place)


def comparison_findings(found: "TraceComparison") -> list[Finding]:
    """Return the kinds of time, the families, the places and the kernels that changed."""
    from analysis.metrics.kernels.modules import OUTSIDE

    verdict = (
        f"{found.before_ms:,.3f} ms before, {found.after_ms:,.3f} ms after: {found.verdict} at a threshold of "
        f"{percent(found.threshold)}; only `bertbench throughput --rounds 3` is conclusive."
    )
    findings = [
        Finding("time", f"Time per {found.per} and rank", found.time, verdict),
        Finding("changed_families", "Kinds of work that changed", found.families),
    ]
    if (found.places["path"] != OUTSIDE).any():
        title = "Places in the model that changed, own time"
        findings.append(Finding("changed_places", title, found.places, _largest(found.places, "path")))
    changed = _largest(found.kernels[found.kernels["change"] != "same"], "name")
    return [*findings, Finding("changed_kernels", "Kernels that changed", found.kernels, changed)]


def _largest(rows: "pd.DataFrame", label: str) -> str:
    rows = rows[rows["delta_ms"] != 0]
    if not len(rows):
        return "Nothing changed."
    return f"{short_name(rows[label].iloc[0])} changed most, by {rows['delta_ms'].iloc[0]:+.3f} ms."
