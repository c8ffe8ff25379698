"""Parts of sentences that several findings share: numbers, names, the types of GEMMs."""

from collections.abc import Sequence

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


def faster_gemms(devices: Sequence[str]) -> str:
    """Return what to do about GEMMs that run in fp32; "" where these GPUs have nothing faster.

    Args:
        devices: names of the GPUs.
    """
    each = [faster_types(name) for name in devices]
    known = [set(types) for types in each if types is not None]
    if not each or len(known) < len(each):
        return f"train in bf16 (fp16 before Ampere), or {_USE_TF32}"
    types = set.intersection(*known)
    train = next((f"train in {kind}" for kind in ("bf16", "fp16") if kind in types), "")
    return f"{train}, or {_USE_TF32}" if "tf32" in types else train


def fp32_share(timelines: Sequence[Timeline]) -> float:
    """Return the share of the GEMMs' time that runs in fp32, by what names and shapes tell; 0 where nothing does."""
    times = gemm_time_by_precision(timelines)
    total = sum(times.values())
    return times.get("fp32", 0) / total if total else 0.0
