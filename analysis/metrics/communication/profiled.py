"""What communication is of the steps of a training that were profiled."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.metrics.communication.exposure import communication_by_kind, communication_by_rank

if TYPE_CHECKING:
    from analysis.timeline import Timeline


def all_reduce(timelines: Sequence["Timeline"]) -> dict[str, Any]:
    """Return what communication, and all-reduces, are of the profiled steps, as means over the ranks.

    all_reduce_share is the time in which at least one runs over the time of the steps, of which
    all_reduce_exposed_share is spent without computation beside it, waiting for other ranks included, and
    all_reduce_hidden_share under computation. all_reduce_ms is per step. The names with communication_ say the same of
    all collectives together. profiled_step_ms is what a step took with the profiler, the base of all shares. All are
    missing where no rank has marked steps.

    Args:
        timelines: what readers returned, one per rank.
    """
    ranks = communication_by_rank(timelines)
    ranks = ranks[ranks["steps"] > 0]
    if not len(ranks):
        return {"profile_problem": "the profile marks no steps"}
    kinds = communication_by_kind(timelines)
    kinds = kinds[kinds["collective"] == "all_reduce"]
    shares, exposed, times = [], [], []
    for rank, window_ms, steps in zip(ranks["rank"], ranks["window_ms"], ranks["steps"], strict=True):
        own = kinds[kinds["rank"] == rank]
        shares.append(float(own["total_ms"].sum()) / window_ms)
        exposed.append(float(own["exposed_ms"].sum()) / window_ms)
        times.append(float(own["total_ms"].sum()) / steps)
    share, bare = float(np.mean(shares)), float(np.mean(exposed))
    return {
        "communication_share": float(ranks["communication_share"].mean()),
        "communication_exposed_share": float(ranks["exposed_share"].mean()),
        "communication_exposed_ms": float((ranks["exposed_ms"] / ranks["steps"]).mean()),
        "all_reduce_share": share,
        "all_reduce_exposed_share": bare,
        "all_reduce_hidden_share": share - bare,
        "all_reduce_ms": float(np.mean(times)),
        "profiled_step_ms": float((ranks["window_ms"] / ranks["steps"]).mean()),
        "profiled_steps": int(ranks["steps"].max()),
    }
