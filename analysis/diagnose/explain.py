"""Runs every analysis that the content of a source allows, in the order in which people ask."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.diagnose.advice import Advice, Context, ranked, with_command
from analysis.diagnose.finding import Finding, distinct, distinct_names, file_stem
from analysis.metrics.comparison.traces import TraceComparison
from analysis.metrics.kernels.modules import OUTSIDE
from analysis.sources import Source
from analysis.wording import percent

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
    "warp_stalls",
    "occupancy",
    "cache_hits",
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
        from analysis.diagnose import kernel_limits

        for counters, file, ending in zip(source.counters, source.counter_files, counter_endings(source), strict=True):
            title = f" ({file.name})" if ending else ""
            found += [
                dataclasses.replace(one, name=f"{one.name}{ending}", title=f"{one.title}{title}")
                for one in [
                    *core_findings.findings(counters, window_ns, measured, context),
                    *kernel_limits.findings(counters),
                ]
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
    found = [one for finding in findings for one in finding.advice]
    if context.disturbed:
        why = "the undisturbed speed was not measured"
        remedy = "wait until the machine is idle, then measure again"
        found.append(Advice(cause="machine", seen=context.disturbed, remedy=remedy, unknown=why))
    chosen = [dataclasses.replace(one, command=one.command or context.command(one.cause)) for one in ranked(found)]
    if any(timeline.is_part for timeline in source.timelines):
        chosen = [dataclasses.replace(one, of=one.of.replace("step time", "time of the window")) for one in chosen]
    elif not any(len(timeline.steps) for timeline in source.timelines):
        chosen = [dataclasses.replace(one, of=one.of.replace("step time", "recorded time")) for one in chosen]
    # Tables of totals do not compare, and a side of a comparison is one path.
    again = ["compare", str(source.path)] if source.timelines and source.given == 1 else ["analyze"]
    return with_command(chosen, shlex.join(["bertbench", *again, "NEW_PROFILE"]))


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


def comparison_findings(found: TraceComparison) -> list[Finding]:
    """Return the kinds of time, the families, the places and the kernels that changed, each with its sentence."""
    placed = (found.places["path"] != OUTSIDE).any()
    places = Finding("changed_places", "Places in the model that changed, own time", found.places, _place(found))
    return [
        Finding("time", f"Time per {found.per} and rank", found.time, _verdict(found)),
        Finding("changed_families", "Kinds of work that changed", found.families, ""),
        *([places] if placed else []),
        Finding("changed_kernels", "Kernels that changed", found.kernels, _largest(found)),
    ]


def _verdict(found: TraceComparison) -> str:
    change = f"{found.before_ms:,.3f} ms before, {found.after_ms:,.3f} ms after ({found.ratio:.3f} times)"
    verdict = {
        "slower": f"the second is slower by more than {100 * found.threshold:g} %",
        "faster": f"the second is faster by more than {100 * found.threshold:g} %",
        "same": f"the difference is within {100 * found.threshold:g} %",
    }[found.verdict]
    took = "The median step, of the slowest rank, took" if found.per == "step" else "The trace took"
    means = " The table holds means over steps and ranks." if found.per == "step" else ""
    return (
        f"{took} {change}: {verdict}.{means} A process can be slow as a whole, so two recordings are not "
        "conclusive: run `bertbench throughput --rounds 3` for both and compare the run directories."
    )


def _place(found: TraceComparison) -> str:
    rows = found.places[found.places["delta_ms"] != 0]
    if not len(rows):
        return ""
    first, change = rows.iloc[0], float(rows["delta_ms"].sum())
    slower = float(rows.loc[rows["delta_ms"] > 0, "delta_ms"].sum())
    return (
        f"Work takes {change:+.3f} ms per {found.per}: {slower:+.3f} ms in places that became slower, "
        f"{change - slower:+.3f} ms in places that became faster. The largest change is {str(first['path'])[-200:]}: "
        f"{first['delta_ms']:+.3f} ms ({first['change']})."
    )


def _largest(found: TraceComparison) -> str:
    rows = found.kernels[found.kernels["change"] != "same"]
    if not len(rows):
        return "Neither a kernel nor an operator changed."
    first = rows.iloc[0]
    name = str(first["name"])
    short = name if len(name) <= 80 else f"{name[:77]}..."
    return (
        f"The largest change is {short}: {first['delta_ms']:+.3f} ms per {found.per} ({first['change']}), "
        f"{percent(first['change_share'])} of all change: start there."
    )
