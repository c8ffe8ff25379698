"""What ncu's own rules say of each kernel, with the time that they estimate could be saved."""

import math
import textwrap
from typing import Any

from analysis.counters import GLOBAL, KernelCounters, KernelRule
from analysis.diagnose.advice import Advice
from analysis.diagnose.finding import OF_KERNELS, Finding, short_name
from analysis.wording import percent

_SUGGESTS = ("optimization", "warning")
_KINDS = (*_SUGGESTS, "information", "error")
_LONGEST_REMEDY = 300


def rules(counters: KernelCounters) -> Finding:
    """Return kernel_rules: a row per kernel name and message of a rule, the largest estimated saving first.

    estimate_share is the mean over the launches with an estimate, by their time; saves_share, of global estimates
    alone, is the time that the kernel's launches would save of all kernels' time. Estimates do not add up.
    """
    import pandas as pd

    frame, title = counters.kernels, "Rules of Nsight Compute"
    lengths = frame["duration_ns" if frame["duration_ns"].notna().any() else "cycles"].fillna(0.0)
    shares = (lengths / total if (total := float(lengths.sum())) > 0 else lengths * math.nan).tolist()
    names = frame["name"].tolist()
    groups: dict[tuple[str, str, int], list[KernelRule]] = {}
    places: dict[tuple[int, str], int] = {}
    for one in counters.rules:
        if one.kind in _KINDS:
            place = places[one.row, one.rule] = places.get((one.row, one.rule), -1) + 1
            groups.setdefault((names[one.row], one.rule, place), []).append(one)
    rows: list[dict[str, Any]] = []
    for (name, rule, _), messages in groups.items():
        estimated = [one for one in messages if one.speedup is not None]
        weight = sum(shares[one.row] for one in estimated)
        saved = sum(shares[one.row] * (one.speedup or 0.0) for one in estimated)
        estimate = estimated[0].estimate if estimated else ""
        longest = max(messages, key=lambda one: shares[one.row])
        rows.append(
            {
                "rule": rule,
                "name": name,
                "launches": len(messages),
                "time_share": sum(shares[one.row] for one in messages),
                "estimate": estimate,
                "estimate_share": saved / weight if weight > 0 else math.nan,
                "saves_share": saved if estimate == GLOBAL else math.nan,
                "kind": longest.kind,
                "section": longest.section,
                "message": longest.text,
            }
        )
    if not rows:
        return Finding("kernel_rules", title, pd.DataFrame())
    table = pd.DataFrame(rows)
    table["suggests"] = table["kind"].isin(_SUGGESTS)
    order = ["saves_share", "estimate_share", "suggests", "time_share"]
    table = table.sort_values(order, ascending=False, ignore_index=True).drop(columns="suggests")
    first = table.iloc[0]
    if not (table["estimate"] != "").any():
        table = table.drop(columns=["estimate", "estimate_share", "saves_share"])
    if not math.isfinite(first["saves_share"]):
        suggestions = int(table["kind"].isin(_SUGGESTS).sum())
        sentence = f"{suggestions} of {len(rows)} messages suggest a change; none estimates the time it saves."
        return Finding("kernel_rules", title, table, sentence)
    seen = f"{first['rule']} estimates {percent(first['estimate_share'])} less time for {short_name(first['name'])}"
    advice = Advice(
        cause="rules",
        seen=f"ncu's rule {seen}",
        remedy=textwrap.shorten(first["message"], _LONGEST_REMEDY).rstrip("."),
        saves=min(1.0, first["saves_share"]),
        of=OF_KERNELS,
    )
    return Finding("kernel_rules", title, table, f"{seen}.", (advice,))
