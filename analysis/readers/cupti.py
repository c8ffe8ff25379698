"""GPU work and CUDA calls from the tables of CUPTI's activity records, which nsys and nvprof keep in SQLite files."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.readers.columns import MISSING, distinct_rows
from analysis.readers.sqlite_database import Database, Numbers

if TYPE_CHECKING:
    import pandas as pd

LAST_TIME = 1 << 62
"""Times from here on are damage, ns."""
PROCESS = 1 << 24
"""globalPid and globalTid hold the process above these bits, the thread in them."""

_COPY_KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH"}
_COPY_KINDS |= {10: "PtoP", 11: "HtoD (managed)", 12: "DtoH (managed)", 13: "DtoD (managed)"}
_SIZES = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_PLACE = {
    "start": MISSING,
    "end": MISSING,
    "globalPid": -1,
    "deviceId": -1,
    "streamId": -1,
    "correlationId": -1,
    "graphNodeId": 0,
}
_OWN: Mapping[str, Mapping[str, int]] = {
    "kernel": dict.fromkeys(_SIZES, 0),
    "memcpy": {"copyKind": 0, "srcKind": -1, "dstKind": -1, "bytes": 0},
    "memset": {"bytes": 0},
    "graph": {"graphId": -1},
}
_CALL = {"start": MISSING, "end": MISSING, "correlationId": -1}
UNNAMED = "(name not recorded)"

Ids = list[list[int]]
"""Distinct rows, as columns."""
KernelNames = Callable[[Ids], list[str]]
Caller = Callable[[str, Ids], tuple[list[str], list[str], list[int]]]


def read_work(
    database: Database,
    tables: Mapping[str, str],
    named_by: Sequence[str],
    kernel_names: KernelNames,
    memory_kinds: Sequence[str],
    problems: list[str],
) -> "pd.DataFrame":
    """Read kernels, copies, memsets and whole CUDA graphs of all processes, in order of start: name, kind, device,
    stream, start, end, correlation_id, bytes, graph_node, grid_x to block_z, process (-1 unknown).

    Args:
        database: an open database.
        tables: kind of work by table.
        named_by: columns that name a kernel.
        kernel_names: takes the distinct rows of these columns, and gives the name of each.
        memory_kinds: what the numbers of memory kinds mean, from 0, as Kineto writes them: "Pageable"; "" unknown.
        problems: takes what could not be read, one sentence each.
    """
    import pandas as pd

    frames = []
    for table, kind in tables.items():
        wanted = {**_PLACE, **_OWN[kind], **dict.fromkeys(named_by if kind == "kernel" else (), -1)}
        columns = _timed(database.integers(table, wanted), f"of kind {kind}", problems)
        if kind == "kernel":
            ids, place = _distinct(*(columns[name] for name in named_by))
            names = kernel_names(ids)
        else:
            names, place = _copy_names(kind, columns, memory_kinds)
        nothing = np.zeros(len(place), dtype=np.int64)
        about: dict[str, Any] = {
            "name": _texts(names, place),
            "kind": _texts([kind], np.zeros_like(place)),
            "device": columns["deviceId"],
            "stream": columns["streamId"],
            "start": columns["start"],
            "end": columns["end"],
            "correlation_id": columns["correlationId"],
            "bytes": columns.get("bytes", nothing),
            "graph_node": columns["graphNodeId"],
            **{f"{size[:-1]}_{size[-1].lower()}": columns.get(size, nothing) for size in _SIZES},
            "process": np.maximum(-1, columns["globalPid"] // PROCESS),
        }
        frames.append(pd.DataFrame(about))
    return _together(frames, "name", "kind")


def read_api(
    database: Database,
    tables: Sequence[str],
    told_by: Sequence[str],
    caller: Caller,
    problems: list[str],
    shortest_ns: int = 0,
) -> "pd.DataFrame":
    """Read the calls of CUDA's runtime and driver of all processes, in order of start: name, thread "process/thread",
    start, end, correlation_id, process (-1 unknown).

    Args:
        database: an open database.
        tables: of the calls.
        told_by: columns that tell name and thread.
        caller: takes a table and the distinct rows of these columns, and gives name, thread and process of each.
        problems: takes what could not be read, one sentence each.
        shortest_ns: calls that are shorter are left out.
    """
    import pandas as pd

    frames = []
    for table in tables:
        wanted = {**_CALL, **dict.fromkeys(told_by, -1)}
        what = "of calls of the system" if shortest_ns else "of CUDA's calls"
        columns = _timed(database.integers(table, wanted), what, problems)
        lasting = columns["end"] - columns["start"] >= shortest_ns
        columns = {name: values[lasting] for name, values in columns.items()}
        ids, place = _distinct(*(columns[name] for name in told_by))
        names, threads, owners = caller(table, ids)
        about = {
            "name": _texts(names, place),
            "thread": _texts(threads, place),
            "start": columns["start"],
            "end": columns["end"],
            "correlation_id": columns["correlationId"],
            "process": np.array(owners, dtype=np.int64)[place],
        }
        frames.append(pd.DataFrame(about))
    return _together(frames, "name", "thread")


def of_process(frame: "pd.DataFrame", process: int) -> "pd.DataFrame":
    """Return the rows of a process in a table of `read_work` or `read_api`."""
    rows = frame[frame["process"] == process].drop(columns="process").reset_index(drop=True)
    for name in rows.select_dtypes("category"):
        rows[name] = rows[name].cat.remove_unused_categories()
    return rows


def _texts(texts: Sequence[str], place: Numbers) -> "pd.Categorical":
    import pandas as pd

    codes, labels = pd.factorize(np.array(texts, dtype=object))
    return pd.Categorical.from_codes(codes[place], categories=pd.Index(labels, dtype="str"))


def _together(frames: "Sequence[pd.DataFrame]", *texts: str) -> "pd.DataFrame":
    """Return tables as one, in order of start; `texts` are their first columns, categories."""
    import pandas as pd

    labels = {name: pd.api.types.union_categoricals([frame[name] for frame in frames]) for name in texts}
    numbers = pd.concat([frame.drop(columns=[*texts]) for frame in frames], ignore_index=True)
    frame = pd.concat([pd.DataFrame(labels), numbers], axis=1)
    return frame.sort_values("start", kind="stable", ignore_index=True)


def _timed(columns: dict[str, Any], what: str, problems: list[str]) -> dict[str, Any]:
    start, end = columns["start"], columns["end"]
    good = (end >= start) & (start > -LAST_TIME) & (end < LAST_TIME)
    if good.all():
        return columns
    problems.append(f"{int((~good).sum()):,} records {what} without start or end were skipped")
    return {name: values[good] for name, values in columns.items()}


def _copy_names(kind: str, columns: dict[str, Any], memory_kinds: Sequence[str]) -> tuple[list[str], Numbers]:
    if kind == "memcpy":
        rows, place = _distinct(*(columns[name] for name in ("copyKind", "srcKind", "dstKind")))
        return [_copy(direction, ends, memory_kinds) for direction, *ends in zip(*rows, strict=True)], place
    if kind == "graph":
        (numbers,), place = _distinct(columns["graphId"])
        return ["CUDA graph" if number < 0 else f"CUDA graph {number}" for number in numbers], place
    return ["Memset"], np.zeros(len(columns["start"]), dtype=np.int32)


def _copy(kind: int, ends: Sequence[int], memory_kinds: Sequence[str]) -> str:
    name = f"Memcpy {_COPY_KINDS.get(kind, f'of kind {kind}')}"
    memories = [memory_kinds[end] if 0 <= end < len(memory_kinds) else "" for end in ends]
    return f"{name} ({' -> '.join(memories)})" if all(memories) else name


def _distinct(*columns: Numbers) -> tuple[list[list[int]], Numbers]:
    rows, place = distinct_rows(*columns)
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in columns], place
