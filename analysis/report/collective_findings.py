"""What a benchmark of collectives says: how fast the links are, from which size on, and what a small one costs."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from analysis.findings import Finding
from analysis.metrics.links import alpha_beta
from analysis.summary import Summary

if TYPE_CHECKING:
    import pandas as pd


def collective_findings(summary: Summary) -> Iterator[Finding]:
    """Yield the summary of a test by placement, and its sizes, the largest first."""
    import pandas as pd

    table = summary.table
    rows = [_row(summary, str(key), part) for key, part in table.groupby("placement", sort=False)]
    frame = pd.DataFrame(rows)
    yield Finding("collective_bandwidth", f"{summary.title}: bandwidth", frame, _sentence(frame, summary))
    unsaid = [name for name, value in (("root", -1), ("wrong", -1), ("redop", "")) if (table[name] == value).all()]
    sizes = table.drop(columns=unsaid).sort_values(
        ["size_bytes", "placement"], ascending=False, kind="stable", ignore_index=True
    )
    sentence = (
        "algbw is size / time; busbw is what each link carries, so that it compares with the link's rate whatever the "
        "number of ranks."
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
        return f"{wrong} rows have wrong results: no time counts before that is repaired (driver, NCCL, a bad link)."
    best = frame.iloc[int(frame["peak_busbw_gb_s"].to_numpy().argmax())]
    if not best["peak_busbw_gb_s"]:
        return (
            "Every bandwidth is 0: only messages were measured that are too small to tell; measure up to 1 GB (-e 1G)."
        )
    half = int(best["half_peak_from_bytes"])
    ranks = summary.facts.get("ranks")
    between = f" between {ranks} ranks" if ranks else ""
    return (
        f"The links carry up to {best['peak_busbw_gb_s']:.4g} GB/s{between} and half of it from {_size(half)} on, "
        f"while the smallest messages cost {best['shortest_us']:.3g} us: gradient buckets well above {_size(half)} "
        "use them, smaller ones pay latency."
    )


def _size(number: int) -> str:
    for unit, factor in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if number >= 1 << factor:
            return f"{number / (1 << factor):.4g} {unit}"
    return f"{number} B"
