"""What the program's named ranges say, and, on a trace without GPU work, the CPU's operators."""

from collections.abc import Sequence

from analysis.diagnose.finding import Finding
from analysis.diagnose.sentences import number, precision_clause
from analysis.metrics.kernels.gemm_precision import gemm_time_by_precision
from analysis.metrics.kernels.tables import operators_over_ranks
from analysis.metrics.time.ranges import range_rows
from analysis.timeline import Timeline, lost_kernels

_TOP = 30
_MOVES_DATA = ("elementwise", "norm", "dropout", "activation", "copy")


def range_findings(timelines: Sequence[Timeline]) -> list[Finding]:
    """Return ranges: the named ranges of the program; nothing where there are none.

    Ranges nest: shares would add up to more than the time that there is, so inclusive and own time stand side by side.
    """
    table = range_rows(timelines)
    if not len(table):
        return []
    first = table.iloc[0]
    said = f"{int(table['count'].sum()):,} ranges of {len(table)} names; {first['name'][:80]} takes the longest, "
    said += f"{number(float(first['total_ms']))} ms in {int(first['count']):,} with all ranges within it. "
    if not any(len(timeline.steps) for timeline in timelines):
        said += "These are of the whole recording. "
    said += f"With each moment of a thread counted once (self time), they cover {number(table['self_ms'].sum())} ms"
    own = table.iloc[int(table["self_ms"].to_numpy().argmax())]
    said += f", the largest is {own['name'][:80]} ({number(float(own['self_ms']))} ms)."
    return [Finding("ranges", f"Named ranges, time on the CPU (at most {_TOP})", table.head(_TOP), said)]


def findings(timelines: Sequence[Timeline]) -> list[Finding]:
    """Return operator_families and top_operators; nothing where a GPU worked, or no operator was recorded."""
    if any(len(timeline.kernels) for timeline in timelines):
        return []
    families, names = (operators_over_ranks(timelines, by) for by in ("family", "name"))
    if not len(families):
        return []
    if not int(names["calls"].sum()) or not float(names["self_ms"].sum()):
        said = "No operator of the window took any time, by this trace."
        return [Finding("operator_families", "Operators by family", families, said)]
    share = {str(name): float(part) for name, part in zip(families["family"], families["self_time_share"], strict=True)}
    largest = next(iter(share))
    said = f"{largest} takes {_percent(share[largest])} of the operators' own time"
    moving = sum(share.get(name, 0.0) for name in _MOVES_DATA)
    if share.get("GEMM", 0.0) > 0.5:
        said += f"; it {ran}" if (ran := precision_clause(timelines)) else ""
    elif moving > 0.4 and not lost_kernels(timelines):  # what operators of a GPU take on the CPU is their launch
        said += f", operators that only move memory {_percent(moving)}: fuse them (torch.compile), use a larger batch"
        narrow = [label for label in gemm_time_by_precision(timelines) if label in ("bf16", "fp16")]
        if share.get("copy", 0.0) > 0.4 and narrow:
            said += f", and see whether casts cost more than {narrow[0]} saves on this CPU"
    few = int((names["self_time_share"].cumsum() < 0.8).sum()) + 1
    first = names.iloc[0]
    longest = f"{few} of {len(names)} operators make up 80 % of the operators' own time, the longest, "
    longest += f"{first['name']}, {_percent(float(first['self_time_share']))}."
    return [
        Finding("operator_families", "Operators by family", families, said + "."),
        Finding("top_operators", f"Longest operators (at most {_TOP})", names.head(_TOP), longest),
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
