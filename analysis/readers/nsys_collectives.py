"""Communication in an nsys export: NCCL's kernels with the facts from NCCL's own ranges, or calls of MPI and gloo.

NCCL marks its calls in the domain NCCL, with the message size of one rank; newer versions with the communicator too,
and the number of its ranks where it is set up. A kernel belongs to the call in which it was launched.
Source of the names: NCCL's src/include/nvtx_payload_schemas.h and src/collectives.cc.
"""

import bisect
import json
import re
from typing import TYPE_CHECKING, NamedTuple

from analysis.names import collective, kernel_collective
from analysis.timeline import COLLECTIVE_COLUMNS

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


class _Call(NamedTuple):
    start: int = 0
    end: int = 0
    collective: str = ""
    size: int = -1
    group: str = ""


def collectives(kernels: "pd.DataFrame", api: "pd.DataFrame", ranges: "pd.DataFrame") -> "pd.DataFrame":
    """Return the communication of one process, see COLLECTIVE_COLUMNS."""
    kinds = {name: kind for name in map(str, kernels["name"].unique()) if (kind := kernel_collective(name))}
    of_gpu = kernels[kernels["name"].isin(list(kinds)) & (kernels["kind"] == "kernel")]
    if not len(of_gpu):
        names = filter(_ON_CPU.search, map(str, ranges["name"].unique()))
        kinds = {name: kind for name in names if (kind := collective(name))}
        on_cpu = ranges[ranges["name"].isin(list(kinds))]
        unknown = dict.fromkeys(("device", "stream", "bytes", "group_size", "seq", "correlation_id"), -1)
        return _table(on_cpu.assign(collective=on_cpu["name"].map(kinds), dtype="", group="", **unknown))
    calls, ranks = _nccl_calls(ranges)
    launched = of_gpu["correlation_id"]
    tied = api[api["correlation_id"].isin(launched[launched >= 0])].drop_duplicates("correlation_id", keep="last")
    tied = tied.set_index("correlation_id").reindex(launched)
    threads, starts = tied["thread"], tied["start"].fillna(-1).astype("int64")
    about = []
    for name, thread, start in zip(of_gpu["name"], threads, starts, strict=True):
        kind = kinds[str(name)]
        call = _call_of(calls.get(thread, []), start, kind)
        # An all-to-all is sends and receives, and RCCL's kernels are all of one name: the call says which it was.
        kind = call.collective or kind if kind in _UNNAMED else kind
        # A process with one communicator needs no name for it.
        count = ranks.get(call.group, -1) if call.group or len(ranks) != 1 else next(iter(ranks.values()))
        size = call.size
        if kind in _TIMES_RANKS and size >= 0:
            size = size * count if count > 0 else -1
        dtype = match[1] if (match := _DTYPE.search(str(name))) else ""
        about.append((kind, size, dtype, call.group, count))
    columns = dict(zip(("collective", "bytes", "dtype", "group", "group_size"), zip(*about, strict=True), strict=True))
    return _table(of_gpu.assign(**columns, seq=-1))


def _table(rows: "pd.DataFrame") -> "pd.DataFrame":
    return rows[list(COLLECTIVE_COLUMNS)].astype(COLLECTIVE_COLUMNS).reset_index(drop=True)


def _nccl_calls(ranges: "pd.DataFrame") -> tuple[dict[str, list[_Call]], dict[str, int]]:
    """Return NCCL's calls by thread, in order of start, and ranks by communicator."""
    marked = ranges[ranges["name"].str.contains("nccl", case=False, regex=False)]
    calls: dict[str, list[_Call]] = {}
    ranks: dict[str, int] = {}
    columns = (marked[name].tolist() for name in ("name", "thread", "start", "end", "json", "payload"))
    for name, thread, start, end, text, payload in zip(*columns, strict=True):
        fields = json.loads(text) if text.startswith("{") else {}
        group = next((str(fields[key]) for key in _GROUP if key in fields), "")
        if isinstance(count := fields.get(_RANKS), int):
            ranks[group] = count
        if kind := collective(str(name).rpartition(":")[2]):
            # An export may give a payload of one number as that number.
            size = fields.get(_SIZE) if fields else payload
            calls.setdefault(thread, []).append(_Call(start, end, kind, size if isinstance(size, int) else -1, group))
    return calls, ranks


def _call_of(calls: list[_Call], launch: int, kind: str) -> _Call:
    """Return the innermost call during which a thread launched: of this kind, or of any where the kernel has none."""
    last = bisect.bisect_right(calls, launch, key=lambda call: call.start)
    inside = (call for call in reversed(calls[max(0, last - _DEPTH) : last]) if call.end >= launch)
    return next((call for call in inside if call.collective == kind or kind in _UNNAMED), _Call())
