"""What a comparison of two recordings says."""

from analysis.diagnose.finding import Finding
from analysis.metrics.comparison.traces import TraceComparison


def findings(found: TraceComparison) -> list[Finding]:
    """Return the kinds of time, the families and the kernels that changed, each with its sentence."""
    return [
        Finding("time", f"Time per {found.per} and rank", found.time, _verdict(found)),
        Finding("changed_families", "Kinds of work that changed", found.families, ""),
        Finding("changed_kernels", "Kernels that changed", found.kernels, _largest(found)),
    ]


def _verdict(found: TraceComparison) -> str:
    change = f"{found.before_ms:,.3f} ms before, {found.after_ms:,.3f} ms after ({found.ratio:.3f} times)"
    verdict = {
        "slower": f"the second is slower by more than {found.threshold:.0%}",
        "faster": f"the second is faster by more than {found.threshold:.0%}",
        "same": f"the difference is within {found.threshold:.0%}",
    }[found.verdict]
    took = "The median step, of the slowest rank, took" if found.per == "step" else "The trace took"
    means = " The table holds means over steps and ranks." if found.per == "step" else ""
    return (
        f"{took} {change}: {verdict}.{means} These are two recordings: a process can be slow as a whole, so "
        "repeat the runs (`bertbench throughput --rounds 3`, then compare the run directories) before you decide."
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
        f"{first['change_share']:.0%} of all change; look there first."
    )
