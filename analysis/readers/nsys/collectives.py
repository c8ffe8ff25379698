"""Communication in an nsys export: NCCL's kernels with the facts from NCCL's own ranges, or calls of MPI and gloo.

NCCL marks its calls in the domain NCCL, with the message size of one rank; newer versions with the communicator too,
and the number of its ranks where it is set up. A kernel belongs to the call in which it was launched.
Source of the names: NCCL's src/include/nvtx_payload_schemas.h and src/collectives.cc.
"""

import bisect
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.names import collective, kernel_collective
from analysis.timeline import COLLECTIVE_COLUMNS, empty

if TYPE_CHECKING:
    import pandas as pd

_SIZE, _GROUP, _RANKS = "Message size [bytes]", ("NCCL communicator ID", "Communicator"), "No. of ranks"
# NCCL gives what one rank puts in or, of a scatter, takes out, and of an all-to-all what goes to one rank; the whole is
# so many times that.
_TIMES_RANKS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
_DTYPE = re.compile(r"_(bf16|[fiu]\d{1,2}(?:e\dm\d)?)(?=_|\(|$)")
_ON_CPU = re.compile(r"\bmpi|gloo", re.IGNORECASE)
_DEPTH = 16
_UNNAMED = ("other", "send_recv")


@dataclass(frozen=True, slots=True)
class _Call:
    start: int
    end: int
    collective: str
    size: int
    group: str


def collectives(kernels: "pd.DataFrame", api: "pd.DataFrame", ranges: "pd.DataFrame") -> "pd.DataFrame":
    """Return the communication of one process, see COLLECTIVE_COLUMNS.

    Args:
        kernels: the table of a timeline with correlation_id.
        api: its calls of CUDA.
        ranges: its ranges with domain and json.
    """
    kinds = {str(name): kernel_collective(str(name)) for name in kernels["name"].unique()}
    wanted = [name for name, kind in kinds.items() if kind]
    found = kernels[kernels["name"].isin(wanted) & (kernels["kind"] == "kernel")] if wanted else kernels[:0]
    if not len(found):
        return _on_cpu(ranges)
    calls, ranks = _nccl_calls(ranges)
    launches = _launches(api, found["correlation_id"].to_numpy()) if calls else {}
    sizes, groups, members, named = [], [], [], []
    names = [str(name) for name in found["name"].tolist()]
    for name, correlation in zip(names, found["correlation_id"].tolist(), strict=True):
        kind = kinds[name] or ""
        call = _call_of(calls, launches.get(correlation), kind)
        # An all-to-all is sends and receives, and RCCL's kernels are all of one name: the call says which it was.
        named.append(call.collective if call and kind in _UNNAMED else kind)
        kind = named[-1]
        group = call.group if call else ""
        # A process with one communicator needs no name for it.
        count = ranks.get(group, -1) if group or len(ranks) != 1 else next(iter(ranks.values()))
        size = call.size if call else -1
        if kind in _TIMES_RANKS and size >= 0:
            size = size * count if count > 0 else -1
        sizes.append(size)
        groups.append(group)
        members.append(count)
    dtypes = [match[1] if (match := _DTYPE.search(name)) else "" for name in names]
    own: dict[str, Any] = {"bytes": sizes, "dtype": dtypes, "group": groups, "group_size": members, "seq": -1}
    table = found[["start", "end", "device", "stream", "correlation_id"]].assign(name=names, collective=named, **own)
    return table[list(COLLECTIVE_COLUMNS)].astype(COLLECTIVE_COLUMNS).reset_index(drop=True)


def _on_cpu(ranges: "pd.DataFrame") -> "pd.DataFrame":
    kinds = {name: collective(name) if _ON_CPU.search(name) else None for name in map(str, ranges["name"].unique())}
    found = ranges[ranges["name"].isin([name for name, kind in kinds.items() if kind])]
    if not len(found):
        return empty(COLLECTIVE_COLUMNS)
    kind = [kinds[str(name)] or "" for name in found["name"].tolist()]
    unknown = dict.fromkeys(("device", "stream", "bytes", "group_size", "seq", "correlation_id"), -1)
    table = found[["name", "start", "end"]].assign(collective=kind, dtype="", group="", **unknown)
    return table[list(COLLECTIVE_COLUMNS)].astype(COLLECTIVE_COLUMNS).reset_index(drop=True)


def _nccl_calls(ranges: "pd.DataFrame") -> tuple[dict[str, list[_Call]], dict[str, int]]:
    said = ranges[ranges["name"].str.contains("nccl", case=False, regex=False)]
    calls: dict[str, list[_Call]] = {}
    ranks: dict[str, int] = {}
    columns = (said[name].tolist() for name in ("name", "thread", "start", "end", "json", "payload"))
    for name, thread, start, end, text, payload in zip(*columns, strict=True):
        fields = _fields(text)
        group = next((str(fields[key]) for key in _GROUP if key in fields), "")
        members = _whole(fields.get(_RANKS))
        if members > 0:
            ranks[group] = members
        kind = collective(str(name).rpartition(":")[2])
        if kind:
            size = _whole(fields.get(_SIZE))
            # An export may give a payload of one number as that number.
            if size < 0 and not fields and isinstance(payload, int):
                size = _whole(payload)
            calls.setdefault(str(thread), []).append(_Call(start, end, kind, size, group))
    return calls, ranks


@lru_cache(maxsize=4096)
def _fields(text: Any) -> dict[str, Any]:
    try:
        found = json.loads(text) if text and len(text) < 10_000 else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _whole(value: Any) -> int:
    good = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**50
    return value if good else -1


def _launches(api: "pd.DataFrame", correlations: Any) -> dict[int, tuple[str, int]]:
    known = api[np.isin(api["correlation_id"].to_numpy(), correlations[correlations >= 0])]
    columns = (known[name].tolist() for name in ("correlation_id", "thread", "start"))
    return {number: (str(thread), start) for number, thread, start in zip(*columns, strict=True)}


def _call_of(calls: dict[str, list[_Call]], launch: tuple[str, int] | None, kind: str) -> _Call | None:
    """The innermost call during which a thread launched: of this kind, or of any where the kernel does not say it."""
    if launch is None or not (own := calls.get(launch[0])):
        return None
    last = bisect.bisect_right(own, launch[1], key=lambda call: call.start)
    inside = (call for call in reversed(own[max(0, last - _DEPTH) : last]) if call.end >= launch[1])
    return next((call for call in inside if call.collective == kind or kind in _UNNAMED), None)
