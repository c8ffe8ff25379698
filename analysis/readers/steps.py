"""Which ranges mark iterations, and which marked iterations are none: opened when a recording ended, they would put
every figure per step off.

PyTorch's profiler opens the next `ProfilerStep` as the last one ends, and closes it when it is stopped microseconds
later. Such a step has launched nothing. One that is merely idle has a length, and stays.
"""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.intervals import Integers
from analysis.timeline import Mask, empty

if TYPE_CHECKING:
    import pandas as pd

DOMAIN = "bertbench"
CAPTURE = "bertbench:capture"
NEGLIGIBLE = 0.01
"""A step shorter than this share of the median of those that launched something, and empty, is none."""
_PROFILER_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,18})")
_STEP = re.compile(r"(ProfilerStep|(?:train\w*[ _-])?(?:step|iteration|iter))(?:[ _#:=-]*(\d{1,18}))?", re.IGNORECASE)
_STEP_TYPES = {"step": "int64", "start": "int64", "end": "int64", "thread": "str"}


def marked_steps(names: Sequence[str]) -> Integers:
    """Return the number of the step of PyTorch's profiler that each of n names marks, -1 for none."""
    return np.array([int(match[1]) if (match := _PROFILER_STEP.match(name)) else -1 for name in names], dtype=np.int64)


def empty_steps(
    number: Integers, start: Integers, end: Integers, launches: Callable[[], Integers]
) -> tuple[Mask, list[str]]:
    """Return which of n steps launched nothing and are negligibly short beside those that did, shape (n,), and a note.

    `launches` returns the moments of launches, ns, in any order; it is called only where a step is short.
    """
    length = end - start
    none: Mask = np.zeros(len(length), dtype=bool)
    if len(length) < 2 or length.min() >= NEGLIGIBLE * length.max():
        return none, []
    moments = np.sort(launches())
    filled = np.searchsorted(moments, end) > np.searchsorted(moments, start)
    if not filled.any():
        return none, []
    none = ~filled & (length < NEGLIGIBLE * float(np.median(length[filled])))
    named = ", ".join(f"step {n} ({ns / 1e6:.3g} ms)" for n, ns in zip(number[none], length[none], strict=True))
    return none, [f"left out, opened when the recording ended, without work: {named}"] if named else []


def launch_moments(work: Integers, calls: Integers, called: Integers) -> Integers:
    """Return the starts of the calls that launched work, ns, by the correlation ids of work and calls."""
    return np.asarray(called[np.isin(calls, work[work > 0])])


def take_steps(ranges: "pd.DataFrame") -> tuple["pd.DataFrame", "pd.DataFrame", str]:
    """Take the iterations out of one process's ranges.

    They are the ranges `step <n>` of the domain bertbench, or else those of the name and thread with most of them among
    "step 3", "iteration 3", "iter_3", "ProfilerStep#3" and the like. Where the name has no number ("step"), it is the
    payload.

    Returns:
        steps, the other ranges (a step that the recording cut among them), and the numbers of the cut steps as text.
    """
    import pandas as pd

    codes, names = pd.factorize(ranges["name"])
    split = [name.rpartition(":") for name in names]
    matches = [(domain, _STEP.fullmatch(text.strip())) for domain, _, text in split]
    prefixes = [f"{domain}:{match[1].lower()}" if match else None for domain, match in matches]
    numbers = [int(match[2]) if match and match[2] else None for _, match in matches]
    marks = ranges.assign(
        step=pd.Series(pd.array(numbers, dtype="Int64")[codes], index=ranges.index).fillna(ranges["payload"]),
        prefix=np.array(prefixes, dtype=object)[codes],
        ours=ranges["domain"] == DOMAIN,
        length=ranges["end"] - ranges["start"],
    ).dropna(subset=["prefix", "step"])
    if not len(marks):
        return empty(_STEP_TYPES), ranges, ""
    keys = ["ours", "prefix", "thread"]
    groups = marks.groupby(keys).agg(count=("step", "size"), length=("length", "sum")).reset_index()
    best = groups.sort_values(["ours", "count", "length"], kind="stable").iloc[-1]
    chosen = marks[(marks[keys] == best[keys]).all(axis=1)]
    whole = chosen[~chosen["cut"]]
    cut = ", ".join(map(str, chosen.loc[chosen["cut"], "step"]))
    steps = whole[list(_STEP_TYPES)].reset_index(drop=True).astype(_STEP_TYPES)
    return steps, ranges.drop(index=whole.index).reset_index(drop=True), cut


def captured_rank(ranges: "pd.DataFrame") -> int | None:
    """Return the payload of the range `bertbench:capture`, None where there is none."""
    payloads = ranges.loc[(ranges["name"] == CAPTURE) & ranges["payload"].notna(), "payload"]
    return int(payloads.iloc[0]) if len(payloads) else None
