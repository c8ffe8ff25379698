"""The roofline of operators of known work, by the sizes and types of their inputs, from a trace alone.

The FLOPs and the least bytes of a call follow from the sizes of its inputs; its time is that of the kernels that were
launched in it. docs/explanation/roofline.md derives them.
"""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.metrics.kernels.ceilings import device_peaks
from analysis.metrics.time.launches import in_window, launching_calls
from analysis.names import ROOFLINES, precision
from analysis.spans import Nested
from analysis.timeline import Timeline, empty, name_codes

if TYPE_CHECKING:
    import pandas as pd

Numbers = npt.NDArray[np.int64]

OPERATOR_ROOFLINE_COLUMNS = {
    "operator": "str",
    "sizes": "str",
    "dtype": "str",
    "calls": "int64",
    "time_ms": "float64",
    "achieved_flops": "float64",
    "achieved_gb_s": "float64",
    "attainable_fraction": "float64",
    "bound": "str",
    "time_share": "float64",
    "mean_us": "float64",
    "flop": "float64",
    "bytes": "float64",
    "peak_flops": "float64",
    "peak_gb_s": "float64",
    "peak_of": "str",
}
# Place of is_causal among the inputs, by operator.
_CAUSAL = {
    "_scaled_dot_product_flash_attention": 4,
    "_scaled_dot_product_efficient_attention": 6,
    "_scaled_dot_product_cudnn_attention": 6,
    "_scaled_dot_product_flash_attention_backward": 11,
    "_scaled_dot_product_efficient_attention_backward": 11,
    "_scaled_dot_product_cudnn_attention_backward": 14,
}
_BYTES = {
    "double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
    "long": 8, "long int": 8, "int": 4, "unsigned char": 1, "signed char": 1, "bool": 1,
}  # fmt: skip
_OUTSIDE_TENSOR_CORES = ("fp32",)


@dataclass(frozen=True, slots=True)
class Work:
    """What one call has to do. NaN: not known."""

    sizes: str
    """Of its main inputs, such as "141x512 512x512"."""
    dtype: str
    """Of its main input, one of names.PRECISIONS."""
    flop: float
    """Multiplications and additions of its GEMMs; NaN for norms, which memory limits."""
    bytes: float
    """Inputs read once and outputs written once."""


@lru_cache(maxsize=65536)
def work_of(name: str, inputs: str) -> Work | None:
    """Return the work of one call; None where the inputs are not those of such an operator.

    Args:
        name: an operator that names.has_roofline.
        inputs: as in Timeline.operators: a JSON list of the inputs' sizes, types and values.
    """
    own = name.removeprefix("aten::")
    try:
        sizes, types, values = json.loads(inputs)
        kind, backward = ROOFLINES[own], own.endswith("_backward")
        first = {"addmm": 1, "baddbmm": 1}.get(own, 1 if backward and kind == "attention" else 0)
        if kind == "GEMM":
            main = sizes[first : first + 2]
            flop, out = _product(*main)
        elif kind == "attention":
            main = sizes[first : first + 3]
            flop, out = _attention(main[0], main[1], main[2], backward, _causal(values, _CAUSAL[own]))
        else:
            main = sizes[:1]
            flop, out = math.nan, math.prod(sizes[0])
        if own in ("addmm", "baddbmm") and float("".join(values[3:4]) or 1) == 0:  # beta: nothing is added
            sizes[0] = []
        moved = sum(math.prod(size) * _BYTES[kind_of] for size, kind_of in zip(sizes, types, strict=True) if size)
        moved = math.nan if own == "_scaled_mm" else moved + out * _BYTES[types[first]]  # its output has another type
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, OverflowError):
        return None
    return Work(" ".join("x".join(map(str, size)) for size in main), precision(types[first]), flop, float(moved))


def _product(a: Sequence[int], b: Sequence[int]) -> tuple[float, int]:
    """FLOPs of a product of matrices, or of as many as the first size says, and the elements of the result."""
    *batch, rows, inner = a
    *others, same, columns = b
    if same != inner or batch != others or len(batch) > 1:
        raise ValueError("sizes do not fit")
    out = math.prod(batch) * rows * columns
    return 2.0 * out * inner, out


def _attention(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], backward: bool, causal: bool | None
) -> tuple[float, int]:
    """The same of attention on sizes (batch, heads, length, dimension).

    The forward pass has the GEMMs QK' and PV; the backward pass repeats the first and has two for the gradients of
    each. Causal attention needs the pairs on and below the diagonal.
    """
    batch, heads, length, wide = query
    _, _, others, _ = key
    narrow = value[3]
    pairs = length * others
    if causal:
        full = min(length, others)
        pairs = full * (full + 1) // 2 + (length - full) * others
    per_pair = 3 * wide + 2 * narrow if backward else wide + narrow
    flop = math.nan if causal is None else 2.0 * batch * heads * pairs * per_pair
    return flop, sum(map(math.prod, (query, key, value))) if backward else batch * heads * length * narrow


def _causal(values: Sequence[Any], place: int) -> bool | None:
    return {"True": True, "False": False}.get(str(values[place])) if place < len(values) else None


@dataclass(slots=True)
class _Sum:
    calls: int = 0
    ns: int = 0


def operator_roofline(timelines: Sequence[Timeline]) -> "pd.DataFrame":
    """Return GEMMs, attention and norms by operator, sizes and type, the longest first.

    Returns:
        OPERATOR_ROOFLINE_COLUMNS. calls: over all ranks, those that launched kernels of the window. time_ms: of their
        kernels, mean over ranks; time_share: of all kernels. mean_us, flop and bytes: of a call. achieved_flops
        (FLOP/s) and achieved_gb_s: of the kernels' time. attainable_fraction: the least time by the peaks over this
        time; bound: "compute" or "memory", what takes that time, "" unknown. peak_flops (of this type) and peak_gb_s:
        the published peaks of peak_of, "" for a GPU that is not in the table. No row where the trace has no sizes.
    """
    import pandas as pd

    sums: dict[tuple[str, str, str, str], _Sum] = defaultdict(_Sum)
    everything = 0
    if not any("inputs" in timeline.operators.columns for timeline in timelines):
        return empty(OPERATOR_ROOFLINE_COLUMNS)
    for timeline in timelines:
        everything += _add(timeline, sums)
    rows = [_row(*key, found, everything, len(timelines)) for key, found in sums.items()]
    rows = [row for row in rows if row is not None]
    if not rows:
        return empty(OPERATOR_ROOFLINE_COLUMNS)
    table = pd.DataFrame(rows).astype(OPERATOR_ROOFLINE_COLUMNS)[list(OPERATOR_ROOFLINE_COLUMNS)]
    return table.sort_values("time_ms", ascending=False, kind="stable", ignore_index=True)


def _add(timeline: Timeline, sums: "dict[tuple[str, str, str, str], _Sum]") -> int:
    """Add the calls of one rank by operator, inputs, type (of fp32 what the kernels used) and GPU; return all ns."""
    operators, work = timeline.operators, timeline.work
    if not len(work):
        return 0
    kept = in_window(timeline)[0] & ~work.is_kind("memcpy", "memset")
    everything = int(work.end[kept].sum() - work.start[kept].sum())
    calls = launching_calls(timeline) if "inputs" in operators.columns else None
    if calls is None:
        return everything
    lengths = work.end - work.start
    sized = operators[(operators["inputs"] != "").to_numpy()]
    rows = np.flatnonzero(kept & (calls >= 0))
    threads: dict[str, int] = {}
    thread, asked = (_numbered(table, threads) for table in (sized, timeline.api))
    spans = Nested(thread, *(sized[name].to_numpy(dtype=np.int64) for name in ("start", "end")))
    call = calls[rows]
    owner = spans.around(asked[call], timeline.api["start"].to_numpy(dtype=np.int64)[call])
    rows, owner = rows[owner >= 0], owner[owner >= 0]
    narrow = np.array([precision(name) == "tf32" for name in work.names], dtype=bool)[work.name[rows]]
    names, inputs = (sized[name].astype(object).to_numpy() for name in ("name", "inputs"))
    order = np.argsort(owner, kind="stable")
    for part in np.split(order, np.flatnonzero(np.diff(owner[order])) + 1):
        if not len(part):
            continue
        operator = int(owner[part[0]])
        device = timeline.devices.get(int(work.device[rows[part[0]]]), "")
        key = (str(names[operator]), str(inputs[operator]), "tf32" if narrow[part].any() else "", device)
        sums[key].calls += 1
        sums[key].ns += int(lengths[rows[part]].sum())
    return everything


def _numbered(table: "pd.DataFrame", threads: dict[str, int]) -> Numbers:
    codes, labels = name_codes(table["thread"])
    found: Numbers = np.array([threads.setdefault(label, len(threads)) for label in labels], dtype=np.int64)[codes]
    return found


def _row(
    name: str, inputs: str, narrowed: str, device: str, found: _Sum, everything: int, ranks: int
) -> dict[str, Any] | None:
    work = work_of(name, inputs)
    if work is None or not found.ns:
        return None
    dtype = narrowed if narrowed and work.dtype == "fp32" else work.dtype
    peaks = device_peaks(device)
    kind = dtype if dtype in _OUTSIDE_TENSOR_CORES else f"tensor_{dtype}"
    peak = peaks.flops.get(kind, math.nan) if peaks else math.nan
    bandwidth = peaks.bytes_per_second if peaks else math.nan
    seconds = found.ns / found.calls / 1e9
    least = {"compute": work.flop / peak, "memory": work.bytes / bandwidth}
    if math.isnan(work.flop):  # of a norm memory is the only limit; of other work nothing is known
        known = {"memory": least["memory"]} if ROOFLINES[name.removeprefix("aten::")] == "norm" else {}
    else:
        known = least
    known = {} if any(map(math.isnan, known.values())) else known
    bound = max(known, key=lambda one: known[one]) if known else ""
    return {
        "operator": name,
        "sizes": work.sizes,
        "dtype": dtype,
        "calls": found.calls,
        "time_ms": found.ns / 1e6 / ranks,
        "time_share": found.ns / everything,
        "mean_us": seconds * 1e6,
        "flop": work.flop,
        "bytes": work.bytes,
        "achieved_flops": work.flop / seconds,
        "achieved_gb_s": work.bytes / seconds / 1e9,
        "attainable_fraction": known[bound] / seconds if bound else math.nan,
        "bound": bound,
        "peak_flops": peak,
        "peak_gb_s": bandwidth / 1e9,
        "peak_of": peaks.name if peaks else "",
    }
