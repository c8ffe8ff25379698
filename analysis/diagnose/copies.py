"""What the copies of a GPU's traces say, and what to try."""

from collections.abc import Iterator, Sequence

from analysis.diagnose.advice import LEAST, Advice
from analysis.diagnose.finding import Finding, joined
from analysis.diagnose.sentences import number
from analysis.metrics.kernels.tables import copy_rows
from analysis.timeline import Timeline
from analysis.wording import percent

_HALF = 0.5


def copy_finding(timelines: Sequence[Timeline], span_ns: int) -> Finding | None:
    """Return memory_copies: a row per rank, direction and memory of the CPU; None for traces without copies.

    Args:
        timelines: one per rank.
        span_ns: time of all ranks together, 0 unknown.
    """
    table = joined([copy_rows(timeline) for timeline in timelines])
    if table is None:
        return None
    total = float(table["total_ms"].sum())
    hidden = float((table["overlapped_share"].fillna(0) * table["total_ms"]).sum()) / total if total else 0.0
    pageable = float(table.loc[table["host_memory"] == "pageable", "total_ms"].sum())
    per_rank = total / len(timelines)
    said = (
        f"Copies and memsets take {number(per_rank)} ms per rank, {percent(hidden)} of it overlapped with computation"
    )
    if span_ns and pageable > 0.01 * span_ns / 1e6:
        said += f"; {percent(pageable / total)} are from pageable memory: use pin_memory=True and non_blocking=True"
    return Finding("memory_copies", "Memory copies by direction", table, said + ".")


def overlap_remedy(timelines: Sequence[Timeline]) -> str:
    """Return what to do about copies that nothing overlaps."""
    pinned = "" if _copied_from(timelines)[0] == "pinned" else " from pinned memory"
    return f"keep data on the GPU, or overlap copies{pinned} with computation"


def copy_advice(timelines: Sequence[Timeline], exposed: float) -> Iterator[Advice]:
    """Yield what copies of a GPU could save that nothing overlaps.

    Args:
        timelines: one per rank.
        exposed: their share of the time of all ranks, without those before the first kernel.
    """
    if exposed >= LEAST:
        seen = f"copies that overlap with nothing take {percent(exposed)} of the time"
        yield Advice(cause="copies", seen=seen, remedy=overlap_remedy(timelines), saves=exposed)


def input_advice(timelines: Sequence[Timeline]) -> str:
    """Return the end of a sentence: what to do about steps that wait for their data."""
    memory, hidden = _copied_from(timelines)
    if memory == "none":
        return ", but there are no copies to the GPU"
    if memory == "pageable":
        return ", so copy inputs from pinned memory"
    if not memory:
        return ", so copy inputs from pinned memory (the trace does not show whether they are)"
    if hidden >= _HALF:
        return f"; the copies to the GPU are from pinned memory, and {percent(hidden)} of that time overlaps"
    return (
        f", so copy inputs earlier (they are from pinned memory, but only {percent(hidden)} overlaps with computation)"
    )


def _copied_from(timelines: Sequence[Timeline]) -> tuple[str, float]:
    """Which memory of the CPU most of the copies to the GPU are from ("pageable", "pinned", "" unknown, "none" for no
    copies), by time, and the share of their time that computation hides."""
    table = joined([copy_rows(timeline) for timeline in timelines])
    inputs = table[table["direction"] == "HtoD"] if table is not None else None
    total = float(inputs["total_ms"].sum()) if inputs is not None else 0.0
    if inputs is None or not total:
        return "none", 0.0
    hidden = float((inputs["overlapped_share"].fillna(0) * inputs["total_ms"]).sum()) / total
    return str(inputs.groupby("host_memory")["total_ms"].sum().idxmax()), hidden
