"""Runs every analysis that the content of a source allows, in the order in which people ask."""

import dataclasses
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.diagnose.advice import STEP_TIME, Advice, Context, of_machine, ranked
from analysis.diagnose.finding import Finding, distinct, distinct_names, file_stem, short_name
from analysis.open import Source
from analysis.wording import percent

if TYPE_CHECKING:
    import pandas as pd

    from analysis.metrics.comparison.traces import TraceComparison

_FIRST = (
    "temporal_breakdown", "idle_causes", "idle_gaps", "all_reduce_by_rank", "stragglers", "kernel_families",
    "operator_families", "phases", "module_classes", "modules", "operator_roofline", "core_utilization",
    "sampled_utilization", "roofline", "kernel_rules",
)  # fmt: skip
"""Findings in order of importance."""


def explain(
    source: Source,
    window_ns: float | None = None,
    context: Context | None = None,
) -> list[Finding]:
    """Return the findings of a source: of its traces, their communication, its counters, its tables.

    Args:
        source: what `open_sources` returned. Several tables of counters are findings each, named by their file.
        window_ns: length of the counted steps without the profiler, for shares with idle time.
        context: the trial that was recorded, where it is known.
    """
    from analysis.diagnose import cores, rules_communication, rules_time, summaries

    made = rules_time.findings(source.timelines, context)
    made += rules_communication.findings(source.timelines, context)
    for counters, file, ending in zip(source.counters, source.counter_files, counter_endings(source), strict=True):
        title = f" ({file.name})" if ending else ""
        for one in cores.findings(counters, window_ns, context):
            made.append(dataclasses.replace(one, name=f"{one.name}{ending}", title=f"{one.title}{title}"))
    return distinct([*made, *summaries.findings(source.summaries)])


def to_do(source: Source, findings: Sequence[Finding], context: Context | None = None) -> list[Advice]:
    """Return what to do about a profile, the largest gain first.

    The command measures the recorded trial with another option where that tests the remedy; otherwise it compares a
    second recording with this one.
    """
    context = context or Context()
    analyzed = STEP_TIME
    if any(timeline.is_part for timeline in source.timelines):
        analyzed = "time of the window"
    elif source.timelines and not any(len(timeline.steps) for timeline in source.timelines):
        analyzed = "recorded time"
    # Tables of totals do not compare, and a side of a comparison is one path.
    again = ["compare", str(source.path)] if source.timelines and source.given == 1 else ["analyze"]
    second = shlex.join(["bertbench", *again, "NEW_PROFILE"])
    candidates = [one for finding in findings for one in finding.advice] + of_machine(context.disturbed)
    return [
        dataclasses.replace(
            one,
            command=one.command or context.command(one.cause) or second,
            of=analyzed if one.of == STEP_TIME else one.of,
        )
        for one in ranked(candidates)
    ]


def counter_endings(source: Source) -> list[str]:
    """Return what ends the names of the findings of each table of counters: "" for a single one, else "_<file>"."""
    if len(source.counters) < 2:
        return [""] * len(source.counters)
    return distinct_names([f"_{file_stem(file)}" for file in source.counter_files])


def by_weight(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings in the order of _FIRST; others come last, in their own order."""
    return sorted(findings, key=lambda one: [not one.name.startswith(name) for name in _FIRST])


def comparison_findings(compared: "TraceComparison") -> list[Finding]:
    """Return the kinds of time, the families, the places and the kernels that changed."""
    from analysis.metrics.kernels.modules import OUTSIDE

    verdict = (
        f"{compared.before_ms:,.3f} ms before, {compared.after_ms:,.3f} ms after: {compared.verdict} at a threshold of "
        f"{percent(compared.threshold)}; only `bertbench throughput --rounds 3` is conclusive."
    )
    findings = [
        Finding("time", f"Time per {compared.per} and rank", compared.time, verdict),
        Finding("changed_families", "Kinds of work that changed", compared.families),
    ]
    if (compared.places["path"] != OUTSIDE).any():
        title = "Places in the model that changed, own time"
        findings.append(Finding("changed_places", title, compared.places, _largest(compared.places, "path")))
    changed = _largest(compared.kernels[compared.kernels["change"] != "same"], "name")
    return [*findings, Finding("changed_kernels", "Kernels that changed", compared.kernels, changed)]


def _largest(rows: "pd.DataFrame", label: str) -> str:
    for name, delta in rows.loc[rows["delta_ms"] != 0, [label, "delta_ms"]].head(1).itertuples(index=False):
        return f"{short_name(name)} changed most, by {delta:+.3f} ms."
    return "Nothing changed."
