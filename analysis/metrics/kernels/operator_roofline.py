"""The roofline of GEMMs and attention from a trace alone, by the sizes and types of their inputs, and GEMMs by type.

The FLOPs and the least bytes of a call follow from its inputs; its time is that of the kernels that were launched in
it. docs/explanation/roofline.md derives them.
"""

import json
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.metrics.kernels.devices import device_of
from analysis.metrics.kernels.modules import launched_in
from analysis.metrics.time.window import in_window, is_kernel
from analysis.names import GEMMS, PRECISIONS, family, precision
from analysis.timeline import Timeline

_SHOWN = (
    "operator", "sizes", "dtype", "calls", "time_ms", "achieved_flops", "achieved_gb_s", "attainable_fraction", "bound",
    "time_share", "mean_us", "flop", "bytes",
)  # fmt: skip
# Place of is_causal among the inputs of _scaled_dot_product_..._attention and of its backward pass.
_CAUSAL = {"flash": (4, 11), "efficient": (6, 11), "cudnn": (6, 14)}
_SIZE_BYTES = {
    "double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
    "long": 8, "long int": 8, "int": 4, "unsigned char": 1, "signed char": 1, "bool": 1,
}  # fmt: skip


class Work(NamedTuple):
    """What one call has to do; NaN: not known."""

    sizes: str
    """Of its main inputs, such as "141x512 512x512"."""
    dtype: str
    """Of its main input, one of names.PRECISIONS."""
    flop: float
    """Multiplications and additions of its GEMMs."""
    bytes: float
    """Inputs read once and outputs written once."""


@lru_cache(maxsize=65536)
def work_of(name: str, inputs: str) -> Work | None:
    """Return the work of one call of an operator that names.has_roofline; None where its inputs are not as usual.

    Inputs are a JSON list of their sizes, types and values, as in Timeline.operators.
    """
    operator = name.removeprefix("aten::")
    backward = operator.endswith("_backward")
    try:
        sizes, types, values = json.loads(inputs)
        if operator in GEMMS:
            first = int(operator in ("addmm", "baddbmm"))
            main = sizes[first : first + 2]
            flop, out = _gemm(*main)
            if first and float("".join(values[3:4]) or 1) == 0:  # beta: nothing is added
                sizes[0] = []
        else:
            first = int(backward)
            main = sizes[first : first + 3]
            place = _CAUSAL[operator.split("_")[4]][backward]
            causal = values[place] if place < len(values) else ""
            query, key, value = main
            flop, out = _attention(query, key, value, backward, {"True": True, "False": False}.get(str(causal)))
        moved = sum(math.prod(size) * _SIZE_BYTES[kind] for size, kind in zip(sizes, types, strict=True) if size)
        written = out * _SIZE_BYTES[types[first]]
    except (ValueError, TypeError, KeyError, IndexError):
        return None
    return Work(
        " ".join("x".join(map(str, size)) for size in main), precision(types[first]), flop, float(moved + written)
    )


def _gemm(a: Sequence[int], b: Sequence[int]) -> tuple[float, int]:
    """Return FLOPs and elements of the result, of as many GEMMs as the first size of three says."""
    *batch, rows, inner = a
    *others, same, columns = b
    if same != inner or batch != others or len(batch) > 1:
        raise ValueError("sizes do not fit")
    out = math.prod(batch) * rows * columns
    return 2.0 * out * inner, out


def _attention(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], backward: bool, causal: bool | None
) -> tuple[float, int]:
    """Return the same of attention on sizes (batch, heads, length, dimension).

    The forward pass has the GEMMs QK' and PV; the backward pass repeats the first and has two for the gradients of
    each. Causal attention needs the pairs on and below the diagonal.
    """
    batch, heads, length, wide = query
    others, narrow = key[2], value[3]
    pairs = length * others
    if causal:
        full = min(length, others)
        pairs = full * (full + 1) // 2 + (length - full) * others
    per_pair = 3 * wide + 2 * narrow if backward else wide + narrow
    flop = math.nan if causal is None else 2.0 * batch * heads * pairs * per_pair
    return flop, sum(map(math.prod, (query, key, value))) if backward else batch * heads * length * narrow


def operator_roofline(timelines: Sequence[Timeline]) -> pd.DataFrame:
    """Return GEMMs and attention by operator, sizes and type, the longest first; none where the trace has no sizes.

    calls: over all ranks, those that launched kernels of the window. time_ms: of their kernels, mean over ranks;
    time_share: of all kernels. mean_us, flop and bytes: of a call. achieved_flops (FLOP/s) and achieved_gb_s: of the
    kernels' time. attainable_fraction: the least time by the peaks over this time; bound: "compute" or "memory", what
    takes that time, "" unknown. The peaks are published ones, of the GPU in the trace and of the type.
    """
    parts = [_calls(timeline) for timeline in timelines if "inputs" in timeline.operators.columns]
    if not any(len(calls) for calls in parts):
        return pd.DataFrame()
    keys = ["operator", "inputs", "tf32", "device"]
    rows = pd.concat(parts).groupby(keys, sort=False)["ns"].agg(["size", "sum"]).reset_index()
    works = [work_of(*key) for key in zip(rows["operator"], rows["inputs"], strict=True)]
    table = pd.DataFrame([work or Work("", "", math.nan, math.nan) for work in works], columns=Work._fields)
    rows = rows[(table["sizes"] != "") & (rows["sum"] > 0)]
    table = table.loc[rows.index]
    table["operator"], table["calls"] = rows["operator"], rows["size"]
    table.loc[rows["tf32"] & (table["dtype"] == "fp32"), "dtype"] = "tf32"
    seconds = rows["sum"] / rows["size"] / 1e9
    everything = sum(
        int((one.work.end - one.work.start)[in_window(one)[0] & is_kernel(one)].sum()) for one in timelines
    )
    table["time_ms"], table["time_share"] = rows["sum"] / 1e6 / len(timelines), rows["sum"] / everything
    table["mean_us"] = seconds * 1e6
    table["achieved_flops"], table["achieved_gb_s"] = table["flop"] / seconds, table["bytes"] / seconds / 1e9
    peaks = []
    for name, dtype in zip(rows["device"], table["dtype"], strict=True):
        device, kind = device_of(name), dtype if dtype == "fp32" else f"tensor_{dtype}"
        peaks.append((device.flops.get(kind), device.bytes_per_second) if device else (None, None))
    flops, rates = pd.DataFrame(peaks, table.index, dtype=float).T.to_numpy()
    least = pd.DataFrame({"compute": table["flop"] / flops, "memory": table["bytes"] / rates})
    known = least.notna().all(axis=1)
    table["bound"] = least.fillna(0.0).idxmax(axis=1).where(known, "")
    table["attainable_fraction"] = least.max(axis=1).where(known) / seconds
    return table[[*_SHOWN]].sort_values("time_ms", ascending=False, kind="stable", ignore_index=True)


def _calls(timeline: Timeline) -> pd.DataFrame:
    """Return operator, inputs, tf32 (whether a kernel's name says it), device and ns of each call that has kernels."""
    work, table = timeline.work, timeline.operators[(timeline.operators["inputs"] != "").to_numpy()]
    rows = np.flatnonzero(in_window(timeline)[0] & is_kernel(timeline))
    owner = launched_in(timeline, table, rows)
    rows, owner = rows[owner >= 0], owner[owner >= 0]
    tf32 = np.array([precision(name) == "tf32" for name in work.names], dtype=bool)
    kernels = pd.DataFrame({"owner": owner, "tf32": tf32[work.name[rows]], "device": work.device[rows],
                            "ns": work.end[rows] - work.start[rows]})  # fmt: skip
    each = kernels.groupby("owner").agg({"tf32": "any", "device": "first", "ns": "sum"})
    each["device"] = [timeline.devices.get(int(device), "") for device in each["device"]]
    for column, source in (("operator", "name"), ("inputs", "inputs")):
        each[column] = table[source].astype(object).to_numpy()[each.index]
    return each


def gemm_time_by_precision(timelines: Sequence[Timeline]) -> dict[str, int]:
    """Return the ns of the window's GEMMs by type (of names.PRECISIONS), most time first.

    A kernel's name decides; where it does not tell, the input types of the operator that launched it, if the trace has
    those. On a trace without GPU work, the operators' own time by their inputs' types.
    """
    times = pd.Series(0, index=PRECISIONS)
    for timeline in timelines:
        work, operators = timeline.work, timeline.operators
        types = operators["precision"].astype(object).to_numpy() if "precision" in operators else None
        if len(timeline.kernels):
            rows = np.flatnonzero(in_window(timeline)[0] & work.is_kind("kernel") & work.is_named(_is_gemm))
            labels = np.array([precision(work.names[code]) for code in work.name[rows]], dtype=object)
            if types is not None and len(unknown := np.flatnonzero(labels == "")):
                typed = np.flatnonzero(types != "")
                owner = launched_in(timeline, operators.iloc[typed], rows[unknown])
                labels[unknown[owner >= 0]] = types[typed[owner[owner >= 0]]]
            length = (work.end - work.start)[rows]
        else:
            is_gemm = operators["name"].astype(str).map(_is_gemm).to_numpy(dtype=bool)
            rows = np.flatnonzero(is_gemm & timeline.inside(operators["start"].to_numpy(dtype=np.int64)))
            labels = np.full(len(rows), "") if types is None else types[rows]
            length = operators["self_ns"].to_numpy(dtype=np.int64)[rows]
        times = times.add(pd.Series(length).groupby(labels).sum(), fill_value=0)
    times = times.reindex(PRECISIONS).sort_values(ascending=False, kind="stable")
    return {str(label): int(time) for label, time in times.items() if time}


def _is_gemm(name: str) -> bool:
    return family(name) == "GEMM"
