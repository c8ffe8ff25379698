"""Parts of sentences that several findings share: numbers, names, the types of GEMMs."""

from collections.abc import Iterable, Iterator, Sequence

from analysis.metrics.kernels.devices import faster_types
from analysis.metrics.kernels.gemm_precision import gemm_time_by_precision
from analysis.timeline import Timeline

_LONGEST_NAME = 60
OF_KERNELS = "kernels' time"
"""What shares of tables of counters are of."""


def number(value: float) -> str:
    """Four significant digits, whole and separated from 1000 on: 0.4, 116.9, 1,230."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def short_name(name: str) -> str:
    """Return the name of a kernel as a sentence has room for it."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


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
