"""Puts the tables of a tool that records no operators together: steps are among its ranges, collectives its kernels."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.readers.nsys.collectives import collectives
from analysis.readers.steps import captured_rank, take_steps, without_empty
from analysis.timeline import OPERATOR_COLUMNS, SPAN_COLUMNS, Timeline, empty

if TYPE_CHECKING:
    import pandas as pd

RANGE_COLUMNS = {**SPAN_COLUMNS, "domain": "str", "payload": "Int64", "json": "str", "cut": "bool"}


def assembled(
    kernels: "pd.DataFrame",
    api: "pd.DataFrame",
    marked: "pd.DataFrame | None",
    *,
    source: str,
    problems: Sequence[str],
    rank: int | None = None,
    **others: Any,
) -> Timeline:
    """Return a timeline.

    Args:
        kernels: GPU work, as in Timeline.
        api: calls, as in Timeline.
        marked: ranges with RANGE_COLUMNS, steps among them; None: the tool records none.
        source: name of the tool.
        problems: what could not be read, one sentence each; repeated ones are kept once.
        rank: None: what the ranges say.
        others: further fields of the timeline.
    """
    steps, ranges, cut = take_steps(empty(RANGE_COLUMNS) if marked is None else marked)
    steps, left_out = without_empty(steps, kernels, api)
    said = [f"steps cut off by the end of the recording were skipped: {cut}"] if cut else []
    return Timeline(
        rank=captured_rank(ranges) if rank is None else rank,
        steps=steps,
        operators=empty(OPERATOR_COLUMNS),
        kernels=kernels,
        ranges=ranges,
        api=api,
        collectives=collectives(kernels, api, ranges),
        source=source,
        problems=tuple(dict.fromkeys([*problems, *said, *left_out])),
        **others,
    )
