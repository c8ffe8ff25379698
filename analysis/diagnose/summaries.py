"""Findings from tables of totals, sensor readings and logs, each with its meaning and what to try."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.counters import Summary
from analysis.diagnose.advice import LEAST, Advice
from analysis.diagnose.finding import Finding, distinct
from analysis.diagnose.sentences import number
from analysis.metrics.communication.links import alpha_beta
from analysis.metrics.telemetry import COUNTERS, POWER_CAP, SLOWED_DOWN, reason_names
from analysis.names import COMMUNICATION, MOVES_MEMORY, family
from analysis.wording import percent, short

if TYPE_CHECKING:
    import pandas as pd


_RISING = 1.1
"""If the largest size has more than this times the bandwidth of every smaller one, the peak was not reached."""


def collective_findings(summary: Summary) -> Iterator[Finding]:
    """Yield the summary of a test by placement, and its sizes, the largest first."""
    import pandas as pd

    table = summary.table
    rows = [_row(summary, str(key), part) for key, part in table.groupby("placement", sort=False)]
    frame = pd.DataFrame(rows)
    wrong = int(frame["wrong_rows"].sum())
    advice: tuple[Advice, ...] = ()
    if wrong:
        seen, remedy = f"{wrong} rows have wrong results", "fix that first (driver, NCCL, a bad link)"
        advice = (Advice(cause="machine", seen=seen, remedy=remedy, unknown="until then no time counts"),)
    yield Finding("collective_bandwidth", f"{summary.title}: bandwidth", frame, _sentence(frame, summary), advice)
    unsaid = [name for name, value in (("root", -1), ("wrong", -1), ("redop", "")) if (table[name] == value).all()]
    sizes = table.drop(columns=unsaid).sort_values(
        ["size_bytes", "placement"], ascending=False, kind="stable", ignore_index=True
    )
    sentence = (
        "algbw is size / time; busbw is the rate per link, which compares with the link's rate for any number of ranks."
    )
    yield Finding("collective_sizes", f"{summary.title}: by size", sizes, sentence)


def _row(summary: Summary, placement: str, part: "pd.DataFrame") -> dict[str, object]:
    best = part.iloc[int(part["busbw_gb_s"].to_numpy().argmax())]
    half = part.loc[part["busbw_gb_s"] >= best["busbw_gb_s"] / 2, "size_bytes"].min() if best["busbw_gb_s"] else None
    fit = alpha_beta(part["size_bytes"].to_numpy(np.float64), part["time_us"].to_numpy(np.float64))
    return {
        "collective": best["collective"],
        "placement": placement,
        "ranks": summary.facts.get("ranks"),
        "sizes": len(part),
        "peak_busbw_gb_s": best["busbw_gb_s"],
        "peak_at_bytes": int(best["size_bytes"]),
        "half_peak_from_bytes": None if half is None else int(half),
        "shortest_us": part["time_us"].min(),
        "latency_us": None if fit is None else fit[0],
        "fitted_algbw_gb_s": None if fit is None else fit[1],
        "fit_median_error": None if fit is None else fit[2],
        "wrong_rows": int((part["wrong"] > 0).sum()),
    }


def _sentence(frame: "pd.DataFrame", summary: Summary) -> str:
    wrong = int(frame["wrong_rows"].sum())
    if wrong:
        return f"{wrong} rows have wrong results: fix that first (driver, NCCL, a bad link); until then no time counts."
    best = frame.iloc[int(frame["peak_busbw_gb_s"].to_numpy().argmax())]
    if not best["peak_busbw_gb_s"]:
        return "Every bandwidth is 0: all messages are too small; measure up to 1 GB (-e 1G)."
    half = int(best["half_peak_from_bytes"])
    ranks = summary.facts.get("ranks")
    between = f" between {ranks} ranks" if ranks else ""
    own = summary.table[summary.table["placement"] == best["placement"]]
    largest = int(own["size_bytes"].max())
    if not best["peak_busbw_gb_s"] <= _RISING * own.loc[own["size_bytes"] < largest, "busbw_gb_s"].max():
        return (
            f"The largest size, {_size(largest)}, has by far the highest bandwidth, {best['peak_busbw_gb_s']:.4g} GB/s"
            f"{between}, so what the links carry is unknown: measure up to 1 GB (-e 1G). The smallest messages take "
            f"{short(best['shortest_us'])} µs."
        )
    return (
        f"The links carry up to {best['peak_busbw_gb_s']:.4g} GB/s{between} and half of it from {_size(half)} on, "
        f"and the smallest messages take {short(best['shortest_us'])} µs: use gradient buckets well above "
        f"{_size(half)}; latency dominates smaller ones."
    )


def _size(number: int) -> str:
    for unit, factor in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if number >= 1 << factor:
            return f"{number / (1 << factor):.4g} {unit}"
    return f"{number} B"


_ADVICE = {
    COMMUNICATION: "check with a trace how much of it is exposed (`bertbench allreduce`)",
    "GEMM": "check whether they use the tensor cores (`bertbench core-util`)",
    "attention": "compare fused attention (SDPA, FlashAttention) on the same shapes",
    "optimizer": "use a fused optimizer, which reads every parameter once",
    "elementwise": "fuse them with adjacent kernels (torch.compile, fused GELU and dropout)",
    "norm": "use a fused layer normalization",
    "copy": "look for casts, and for copies from the host that pinned memory would overlap",
}


def findings(summaries: Sequence[Summary]) -> list[Finding]:
    """Return the findings of all summaries, in their order; a name that comes again ends in _2, _3, ..."""
    return distinct([found for summary in summaries for found in _MAKERS.get(summary.what, _anything)(summary)])


def _kernels(summary: Summary) -> Iterator[Finding]:
    table = _by_name(summary.table, "family")
    total = table["total_ms"].sum()
    if not len(table) or not total:
        yield _anything_empty(summary, "kernel_totals")
        return
    first = table.iloc[0]
    sentence = (
        f"{_short(first['name'])} takes {percent(first['share'])} of the kernels' {number(total)} ms; "
        f"{int((table['cumulative_share'] < 0.9).sum()) + 1} of {len(table)} kernels make up 90 %: start with these."
    )
    yield Finding("kernel_totals", summary.title, table, sentence)
    families = table.groupby("family", sort=False).agg(
        kernels=("name", "count"), count=("count", "sum"), total_ms=("total_ms", "sum"), share=("share", "sum")
    )
    families = families.sort_values("total_ms", ascending=False, kind="stable").reset_index()
    top = families.iloc[0]
    advice = _ADVICE.get(str(top["family"]), "start with the largest of them")
    family = str(top["family"])
    sentence = f"{family[:1].upper()}{family[1:]} kernels take {percent(top['share'])} of the kernel time: {advice}."
    yield Finding("kernel_families", f"{summary.title}: by family", families, sentence, tuple(_fusing(families)))


def _fusing(families: "pd.DataFrame") -> Iterator[Advice]:
    """Yield what fusing could save: at most the time of the kernels that only move memory."""
    small = families[families["family"].isin(MOVES_MEMORY)]
    saves = float(small["share"].sum())
    if saves >= LEAST:
        seen = f"kernels that only move memory take {percent(saves)} of the kernels' time"
        remedy = "fuse them (torch.compile, fused optimizer and norms)"
        yield Advice(cause="fusion", seen=seen, remedy=remedy, saves=saves, of="kernels' time")


def _by_name(table: "pd.DataFrame", label: str = "") -> "pd.DataFrame":
    """Rows of one name added up, largest first: name, [label,] count, total_ms, average_us, share, cumulative_share."""
    import pandas as pd

    if "total_ns" not in table:
        return pd.DataFrame(columns=["name", "count", "total_ms"]).astype({"total_ms": "float64"})
    sums = table.groupby("name", sort=False, observed=True)[["count", "total_ns"]].sum().reset_index()
    sums = sums.sort_values("total_ns", ascending=False, kind="stable", ignore_index=True)
    frame = pd.DataFrame({"name": sums["name"].astype(str)})
    if label:
        frame[label] = [family(name) for name in frame["name"]]
    frame["count"] = sums["count"]
    frame["total_ms"] = sums["total_ns"] / 1e6
    frame["average_us"] = (sums["total_ns"] / 1e3 / sums["count"]).where(sums["count"] > 0)
    whole = float(frame["total_ms"].sum())
    frame["share"] = frame["total_ms"] / whole if whole else float("nan")
    frame["cumulative_share"] = frame["share"].cumsum()
    return frame


def _copies(summary: Summary) -> Iterator[Finding]:
    table = summary.table
    if "total_ns" in table:
        frame = _by_name(table)
        if "total_bytes" in table:
            sizes = table.groupby("name", sort=False, observed=True)["total_bytes"].sum(min_count=1)
            frame["total_bytes"] = frame["name"].map(sizes)
            frame["gb_per_second"] = (frame["total_bytes"] / frame["total_ms"] / 1e6).where(frame["total_ms"] > 0)
    else:
        frame = (
            table.sort_values("total_bytes", ascending=False, ignore_index=True) if "total_bytes" in table else table
        )
    if not len(frame):
        yield _anything_empty(summary, "copy_totals")
        return
    sentence = (
        f"{_short(frame['name'].iloc[0])} is the largest of {len(frame)} kinds of copies: copy between host and GPU "
        "from pinned memory, overlapped with computation."
    )
    yield Finding("copy_totals", summary.title, frame, sentence)


def _api(summary: Summary) -> Iterator[Finding]:
    frame = _by_name(summary.table)
    if not len(frame):
        yield _anything_empty(summary, "api_totals")
        return
    name, share = str(frame["name"].iloc[0]), frame["share"].iloc[0]
    waits = "synchronize" in name.lower() or "memcpy" in name.lower()
    means = "the host waits for the GPU or for copies" if waits else "the host spends its time there"
    advice = "look for .item(), .cpu() and prints in the loop" if waits else "check whether the GPU is idle meanwhile"
    yield Finding(
        "api_totals",
        summary.title,
        frame,
        f"{_short(name)} takes {percent(share)} of the calls' time: {means}; {advice}.",
    )


def _ranges(summary: Summary) -> Iterator[Finding]:
    frame = _by_name(summary.table)
    if not len(frame):
        yield _anything_empty(summary, "range_totals")
        return
    sentence = (
        f"{_short(frame['name'].iloc[0])} is the longest of {len(frame)} ranges; totals include nested ranges, so "
        "they do not add up, and a launch may return before its kernels end."
    )
    yield Finding("range_totals", summary.title, frame.drop(columns=["share", "cumulative_share"]), sentence)


def _metrics(summary: Summary) -> Iterator[Finding]:
    table = summary.table
    kernels = table["kernel"].nunique() if "kernel" in table else 0
    metrics = table["metric"].nunique() if "metric" in table else 0
    sentence = (
        f"{metrics} metrics of {kernels} kernels, averaged over the invocations of each: weight them with the kernels' "
        "times before you compare kernels; for newer GPUs use Nsight Compute (`bertbench core-util`)."
    )
    yield Finding("profiler_metrics", summary.title, table, sentence if len(table) else "The table has no metric.")


def _anything(summary: Summary) -> Iterator[Finding]:
    name = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in summary.what.lower())
    yield Finding(name.strip("_") or "table", summary.title, summary.table)


def _anything_empty(summary: Summary, name: str) -> Finding:
    sentence = "The table has no row with a time: nothing of this kind was recorded."
    return Finding(name, summary.title, summary.table, sentence)


def _short(name: Any) -> str:
    text = str(name)
    return text if len(text) <= 60 else f"{text[:57]}..."


_ORDER = ("power_watts", "sm_clock_mhz", "temperature_celsius", "gpu_utilization_percent", "gpu_memory_used_bytes")
_BUSY_PERCENT = 80
_LONG = 0.1  # share of the samples


def sensor_findings(summary: Summary) -> Iterator[Finding]:
    """Yield one table: a row per quantity and device, "all" first where there are several."""
    import pandas as pd

    table = summary.table
    kept = table[~table["quantity"].isin(COUNTERS | {"throttle_reasons"})]
    rows: list[dict[str, Any]] = []
    quantities = sorted(kept["quantity"].unique(), key=lambda name: (name not in _ORDER, _place(str(name)), str(name)))
    devices = sorted(map(str, table["device"].unique()), key=lambda name: (len(name), name))
    for quantity in quantities:
        part = kept[kept["quantity"] == quantity]
        if len(devices) > 1:
            rows.append(_sensor_row(str(quantity), "all", part))
        rows += [_sensor_row(str(quantity), device, part[part["device"] == device]) for device in devices]
    columns = ["quantity", "device", "samples", "mean", "p95", "min", "max"]
    frame = pd.DataFrame([row for row in rows if row["samples"]], columns=columns)
    yield Finding("sensors", summary.title, frame, _sensor_sentence(table), tuple(_throttling(table)))


def _throttling(table: "pd.DataFrame") -> Iterator[Advice]:
    """Yield what to do about GPUs that slow themselves down; how much faster they could be is in no log."""
    seen = "; ".join(_suspicions(table))
    if seen:
        remedy = "cool the GPUs or raise the power limit, then measure again"
        why = "the log does not contain the speed at full clocks"
        yield Advice(cause="machine", seen=seen, remedy=remedy, unknown=why)


def _place(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else 0


def _sensor_row(quantity: str, device: str, part: "pd.DataFrame") -> dict[str, Any]:
    values = part["value"].to_numpy()
    found: dict[str, Any] = {"quantity": quantity, "device": device, "samples": len(values)}
    if len(values):
        found |= {"mean": values.mean(), "p95": np.percentile(values, 95), "min": values.min(), "max": values.max()}
    return found


def _sensor_sentence(table: "pd.DataFrame") -> str:
    if not len(table):
        return "The log has no readings."
    suspicions = list(_suspicions(table))
    parts = [f"Mean power is {power:.4g} W per GPU" for power in _means(table, "power_watts")]
    parts += [f"utilization {use:.3g} %" for use in _means(table, "gpu_utilization_percent")]
    said = ", ".join(parts) if parts else "The log has neither power nor utilization"
    energy = _joules(table)
    if energy is not None:
        said += f" ({number(energy / 1000)} kJ over the log)"
    if suspicions:
        why = "; ".join(suspicions)
        return f"{said}; throttling is likely ({why}): cool the GPUs or raise the limit, then measure again."
    if not {"throttle_reasons", "sm_clock_mhz"} & set(table["quantity"].unique()):
        return f"{said}; throttling cannot be detected without clocks and clocks_event_reasons.active: query these too."
    return f"{said}; the log shows no sign of throttling."


def _means(table: "pd.DataFrame", quantity: str) -> list[float]:
    values = table.loc[table["quantity"] == quantity, "value"]
    return [float(values.mean())] if len(values) else []


def _suspicions(table: "pd.DataFrame") -> Iterator[str]:
    masks = table.loc[table["quantity"] == "throttle_reasons", "value"].to_numpy().astype(np.int64)
    for bits, text in ((SLOWED_DOWN, "slowed down"), (POWER_CAP, "held at the power limit")):
        share = float(np.mean((masks & bits) != 0)) if len(masks) else 0.0
        if share > 0 and (bits == SLOWED_DOWN or share >= _LONG):
            named = int(np.bitwise_or.reduce(masks)) & bits
            yield f"GPUs were {text} in {percent(share)} of the samples ({', '.join(reason_names(named))})"
    for device, part in table.groupby("device", observed=True):
        yield from _of_device(str(device), part)


def _of_device(device: str, part: "pd.DataFrame") -> Iterator[str]:
    """Clocks fall while the GPU works, or power is at its limit; samples of one time belong together."""
    series = {str(name): rows["value"].to_numpy() for name, rows in part.groupby("quantity", observed=True)}
    clocks, use = series.get("sm_clock_mhz"), series.get("gpu_utilization_percent")
    if clocks is not None and use is not None and len(clocks) == len(use):
        busy = clocks[use >= _BUSY_PERCENT]
        if len(busy) >= 10 and np.percentile(busy, 5) < 0.85 * np.percentile(busy, 95):
            yield (
                f"GPU {device}'s SM clock falls from {np.percentile(busy, 95):.0f} to {np.percentile(busy, 5):.0f} MHz "
                "while it is busy"
            )
    power, limit = series.get("power_watts"), series.get("power_limit_watts")
    if power is not None and limit is not None and len(power) == len(limit) and len(power):
        share = float(np.mean(power >= 0.97 * limit))
        if share >= _LONG:
            yield f"GPU {device} is at its power limit of {limit.max():.0f} W in {percent(share)} of the samples"


def _joules(table: "pd.DataFrame") -> float | None:
    """Trapezoid rule over each device's power; None without times or with fewer than two samples."""
    power = table[(table["quantity"] == "power_watts") & (table["time_ns"] >= 0)]
    total = 0.0
    for _, part in power.groupby("device", observed=True):
        order = np.argsort(part["time_ns"].to_numpy(), kind="stable")
        times, values = part["time_ns"].to_numpy()[order] / 1e9, part["value"].to_numpy()[order]
        total += float(np.sum(np.diff(times) * (values[1:] + values[:-1]) / 2))
    return total or None


_MAKERS: dict[str, Callable[[Summary], Iterator[Finding]]] = {
    "kernels": _kernels,
    "copies": _copies,
    "api": _api,
    "ranges": _ranges,
    "metrics": _metrics,
    "sensors": sensor_findings,
    "collectives": collective_findings,
}
