"""Puts the tables of a tool that records no operators together: steps are among its ranges, collectives its kernels."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.readers.nsys.collectives import collectives
from analysis.readers.steps import captured_rank, take_steps, without_empty
from analysis.timeline import OPERATOR_COLUMNS, Timeline, clip_overlaps, empty

if TYPE_CHECKING:
    import pandas as pd


def assembled(
    kernels: "pd.DataFrame",
    api: "pd.DataFrame",
    marked: "pd.DataFrame",
    *,
    source: str,
    problems: Sequence[str],
    **others: Any,
) -> Timeline:
    """Return a timeline.

    Args:
        kernels: GPU work, as in Timeline.
        api: calls, as in Timeline.
        marked: ranges, steps among them: the columns of a span, domain, payload, json and cut.
        source: name of the tool.
        problems: what could not be read, one sentence each; repeated ones are kept once.
        others: further fields of the timeline.
    """
    steps, ranges, cut = take_steps(marked)
    steps, left_out = without_empty(steps, kernels, api)
    cut_off = [f"steps cut off by the end of the recording were skipped: {cut}"] if cut else []
    ends, clipped = clip_overlaps(*(kernels[name].to_numpy() for name in ("device", "stream", "start", "end")))
    kernels = kernels.assign(end=ends)
    return Timeline(
        rank=captured_rank(ranges),
        steps=steps,
        operators=empty(OPERATOR_COLUMNS),
        kernels=kernels,
        ranges=ranges,
        api=api,
        collectives=collectives(kernels, api, ranges),
        source=source,
        problems=tuple(dict.fromkeys([*problems, *cut_off, *left_out, *clipped])),
        **others,
    )
