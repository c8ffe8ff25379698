"""Sentences and parts of them that several findings share: numbers, names, whether ranks have equal work, the types of
GEMMs."""

from collections.abc import Iterable, Iterator, Sequence

from analysis.diagnose.advice import Context
from analysis.metrics.kernels.devices import faster_types
from analysis.metrics.kernels.gemm_precision import gemm_time_by_precision
from analysis.metrics.time.temporal import Temporal
from analysis.timeline import Timeline

_ALIKE = 0.05
"""Relative spread over ranks within which they compute alike."""
_NARROW = 0.01
_MOST = 0.5
_LONGEST_NAME = 60
OF_KERNELS = "kernels' time"
"""What shares of tables of counters are of."""


def number(value: float) -> str:
    """Four significant digits, whole and separated from 1000 on: 0.4, 116.9, 1,230."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def short_name(name: str) -> str:
    """Return the name of a kernel as a sentence has room for it."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."


def sentence_of(text: str) -> str:
    """Return a text with a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def range_over_ranks(shares: Sequence[float]) -> str:
    """Return, with a space before it, that a share is a mean over ranks and how far they differ; "" where they do not.

    Args:
        shares: one per rank, 0 to 1.
    """
    said = least_to_most(shares)
    return f" on average over {len(shares)} ranks{said}" if said else ""


def least_to_most(shares: Sequence[float]) -> str:
    """Return " (1.0 to 38.2 %)", "" where that would be one number."""
    least, most = f"{100 * min(shares):.1f}", f"{100 * max(shares):.1f}"
    return "" if least == most else f" ({least} to {most} %)"


def balance_sentence(rows: Sequence[Temporal], launched_ms: Sequence[float | None]) -> str:
    """Return, with a space before it, what computation the ranks were given; "" where there is nothing to say.

    Args:
        rows: where the time of each rank goes.
        launched_ms: computation that the steps of each rank launched, None unknown.
    """
    if not rows[0].on_gpu or not rows[0].steps or len({row.steps for row in rows}) > 1:
        return ""
    executed = [row.compute_ns / 1e6 for row in rows]
    given = [ms for ms in launched_ms if ms is not None]
    if len(given) < len(rows):
        if len(rows) < 2 or not _differs(executed):
            return ""
        return (
            f" {_range(executed)} ms of computation per rank ran in the steps; the traces do not show which step "
            "launched it, so whether ranks have equal work is unknown."
        )
    if len(rows) == 1:
        if abs(given[0] - executed[0]) <= _NARROW * max(given[0], executed[0]):
            return ""
        return (
            f" The steps launched {number(given[0])} ms of computation, and {number(executed[0])} ms ran before they "
            "ended: the GPU lags behind the CPU."
        )
    both = f"The steps launched {_range(given)} ms of computation per rank, {_range(executed)} ms ran during them"
    if _differs(given):
        most = max(range(len(given)), key=given.__getitem__)
        who = "One rank" if rows[most].rank is None else f"Rank {rows[most].rank}"
        return f" {both}. {who} has the most work: balance it between the ranks."
    if _differs(executed):
        return f" {both}: the ranks have equal work, and their GPUs lag behind their CPUs by different amounts."
    return ""


def _differs(values: Sequence[float]) -> bool:
    return max(values) > (1 + _ALIKE) * min(values)


def _range(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(number(value) for value in (min(values), max(values))))


def precision_clause(timelines: Sequence[Timeline], context: Context) -> str:
    """Return "runs in bf16" and the like, with advice only where it follows from what ran; "" where names tell nothing.

    Args:
        timelines: one per rank; of a CPU, where they have no GPU work.
        context: the recorded trial. A 16-bit trial gets no advice to use 16 bits.
    """
    times = gemm_time_by_precision(timelines)
    total = sum(times.values())
    shares = {label: part / total for label, part in times.items() if label and total and part >= 0.01 * total}
    if not shares:
        return ""
    said = "runs in " + ", ".join(
        label if part > 0.995 else f"{label} ({100 * part:.3g} % of its time)" for label, part in shares.items()
    )
    if shares.get("fp32", 0.0) <= _MOST:
        return said
    if context.narrow:
        return f"{said}, although the trial is in {context.narrow}: check which GEMMs autocast leaves in fp32"
    if any(len(timeline.kernels) for timeline in timelines):
        types = _faster_types(devices_of(timelines))
        if types is None:
            return f"{said}: on tensor cores, bf16 or tf32 (fp16 before Ampere) is several times as fast"
        named = " or ".join(kind for kind in ("bf16", "tf32") if kind in types) or "".join(types[:1])
        return f"{said}: {named} has a much higher peak on this GPU" if named else said
    if context.native_bf16 is not None:
        return f"{said}: try bf16, for which this CPU has instructions" if context.native_bf16 else said
    return f"{said}: bf16 helps on a CPU with instructions for it (avx512_bf16, amx)"


_USE_TF32 = "let fp32 GEMMs use tf32 (torch.set_float32_matmul_precision('high'))"


def _faster_types(devices: Iterable[str]) -> tuple[str, ...] | None:
    """The types in which GEMMs of all these GPUs are faster than in fp32; None where one is unknown."""
    found = [faster_types(name) for name in dict.fromkeys(devices)]
    known = [types for types in found if types is not None]
    if not found or len(known) < len(found):
        return None
    return tuple(kind for kind in known[0] if all(kind in types for types in known))


def devices_of(timelines: Sequence[Timeline]) -> Iterator[str]:
    """Yield the names of the GPUs of all traces, as far as these have them."""
    for timeline in timelines:
        yield from timeline.devices.values()


def faster_gemms(devices: Iterable[str]) -> str:
    """Return what to do about GEMMs that run in fp32; "" where these GPUs have nothing faster.

    Args:
        devices: names of the GPUs.
    """
    types = _faster_types(devices)
    if types is None:
        return f"train in bf16 (fp16 before Ampere), or {_USE_TF32}"
    train = next((f"train in {kind}" for kind in ("bf16", "fp16") if kind in types), "")
    return f"{train}, or {_USE_TF32}" if "tf32" in types else train


def fp32_share(timelines: Sequence[Timeline]) -> float:
    """Return the share of the GEMMs' time that runs in fp32, by what names and shapes tell; 0 where nothing does."""
    times = gemm_time_by_precision(timelines)
    total = sum(times.values())
    return times.get("fp32", 0) / total if total else 0.0
