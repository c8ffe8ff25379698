"""GPU work, CUDA calls and NVTX ranges of the SQLite files of nsys and nvprof, and timelines of them: one column map.

Both keep CUPTI's activity records in tables of one name (cupti_activity.h); columns that only one of them has read as
unknown for the other. Processes are nsys's globalPid without its lowest 24 bits, or nvprof's processId; -1 unknown.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from analysis.intervals import Integers
from analysis.readers.nsys_collectives import collectives
from analysis.readers.sqlite_database import Database
from analysis.readers.steps import CAPTURE, captured_rank, empty_steps, launch_moments, take_steps
from analysis.timeline import MISSING, Timeline, clip_overlaps

if TYPE_CHECKING:
    import pandas as pd

PREFIX = "CUPTI_ACTIVITY_KIND_"
CALLS = (f"{PREFIX}RUNTIME", f"{PREFIX}DRIVER")
WORK = {
    f"{PREFIX}CONCURRENT_KERNEL": "kernel",  # nvprof's, where kernels may overlap
    f"{PREFIX}KERNEL": "kernel",
    f"{PREFIX}MEMCPY": "memcpy",
    f"{PREFIX}MEMCPY2": "memcpy",
    f"{PREFIX}MEMSET": "memset",
    f"{PREFIX}GRAPH_TRACE": "graph",
}
UNNAMED = "(name not recorded)"
PROCESS = 1 << 24
"""globalPid and globalTid hold the process above these bits, the thread in them."""
# As nsys numbers them, from 0; CUPTI and nvprof count from 1.
_MEMORY_KINDS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH"}
_COPY_KINDS |= {10: "PtoP", 11: "HtoD (managed)", 12: "DtoH (managed)", 13: "DtoD (managed)"}
_OVERHEAD = "PROFILER_OVERHEAD"
_VERSION_OF_CALL = re.compile(r"_v\d{4,}$")
# Numbers of the calls that matter for launching and waiting (nvprof); all others are shown by number.
_RUNTIME = {13: "cudaLaunch", 20: "cudaMalloc", 22: "cudaFree", 31: "cudaMemcpy", 41: "cudaMemcpyAsync"}
_RUNTIME |= {49: "cudaMemset", 51: "cudaMemsetAsync", 131: "cudaStreamSynchronize", 135: "cudaEventRecord"}
_RUNTIME |= {137: "cudaEventSynchronize", 147: "cudaStreamWaitEvent", 165: "cudaDeviceSynchronize"}
_NUMBERED_CALLS = {CALLS[0]: {**_RUNTIME, 211: "cudaLaunchKernel"}, CALLS[1]: {307: "cuLaunchKernel"}}

_TIMES = {"start": ("start", MISSING), "end": ("end", MISSING), "correlation_id": ("correlationId", -1)}
_WORK = {**_TIMES, "device": ("deviceId", -1), "stream": ("streamId", -1), "process": ("globalPid", -1)}
_WORK |= {"bytes": ("bytes", 0), "grid_x": ("gridX", 0), "grid_y": ("gridY", 0), "grid_z": ("gridZ", 0)}
_OWNER = {"global_tid": ("globalTid", -1), "process_id": ("processId", -1), "thread_id": ("threadId", -1)}
_CALL = {"text": ("nameId", -1), "number": ("cbid", -1)}
_NAMED_BY = {
    "kernel": {"demangled": ("demangledName", -1), "short": ("shortName", -1), "plain": ("name", -1)},
    "memcpy": {"copy": ("copyKind", -1), "source": ("srcKind", -1), "target": ("dstKind", -1)},
    "memset": {"none": ("", 0)},
    "graph": {"graph": ("graphId", -1)},
}


def labels(label: Callable[..., str], *columns: npt.ArrayLike) -> "pd.Categorical":
    """Return a text per row of columns of one length: `label` of its values, computed once for each distinct row."""
    import pandas as pd

    frame = pd.DataFrame(dict(enumerate(columns)), copy=False)
    codes = frame.groupby([*frame], sort=False).ngroup().to_numpy()
    rows = frame.drop_duplicates().itertuples(index=False, name=None)
    places, texts = pd.factorize(np.array([label(*row) for row in rows], dtype=object))
    return pd.Categorical.from_codes(places[codes], categories=pd.Index(texts, dtype="str"))


def read_work(database: Database, first_memory_kind: int, problems: list[str]) -> "pd.DataFrame":
    """Read kernels, copies, memsets and whole CUDA graphs of all processes, in order of start: name, kind, device,
    stream, start, end, correlation_id, bytes, grid_x, grid_y, grid_z, process. `first_memory_kind` is the number of the
    first of _MEMORY_KINDS."""
    import pandas as pd

    memories = dict(enumerate(_MEMORY_KINDS, first_memory_kind))

    def copy(kind: int, *ends: int) -> str:
        direction = f"Memcpy {_COPY_KINDS.get(kind, f'of kind {kind}')}"
        source, target = (memories.get(number) for number in ends)
        return f"{direction} ({source} -> {target})" if source and target else direction

    names: dict[str, Callable[..., str]] = {
        "kernel": lambda *ids: next((database.strings[one] for one in ids if one in database.strings), UNNAMED),
        "memcpy": copy,
        "memset": lambda _: "Memset",
        "graph": lambda number: "CUDA graph" if number < 0 else f"CUDA graph {number}",
    }
    tables = []
    for table, kind in WORK.items():
        rows = _timed(database.integers(table, {**_WORK, **_NAMED_BY[kind]}), f"of kind {kind}", problems)
        rows["name"] = labels(names[kind], *(rows.pop(name) for name in _NAMED_BY[kind]))
        rows["kind"] = pd.Categorical([kind]).repeat(len(rows["name"]))
        rows["process"] = np.maximum(-1, rows["process"] // PROCESS)
        tables.append(rows)
    return _together(tables)


def read_calls(
    database: Database, tables: Sequence[str], problems: list[str], shortest_ns: int | None = None
) -> "pd.DataFrame":
    """Read calls of all processes that last `shortest_ns` at least, in order of start: name, thread "process/thread",
    start, end, correlation_id, process."""
    calls = []
    for table in tables:

        def name(text: int, number: int, table: str = table) -> str:
            if number >= 0:
                return _NUMBERED_CALLS[table].get(number, f"{table.removeprefix(PREFIX).lower()} call {number}")
            called = _VERSION_OF_CALL.sub("", database.strings.get(text, UNNAMED))
            return f"profiler: {called}" if table == _OVERHEAD and not called.startswith("dlopen") else called

        what = "of CUDA's calls" if shortest_ns is None else "of calls of the system"
        rows = _timed(database.integers(table, {**_TIMES, **_OWNER, **_CALL}), what, problems)
        if shortest_ns is not None:
            long = rows["end"] - rows["start"] >= shortest_ns
            rows = {column: values[long] for column, values in rows.items()}
        rows["process"], thread = owners(*(rows.pop(column) for column in _OWNER))
        rows["thread"] = labels(thread_name, rows["process"], thread)
        rows["name"] = labels(name, *(rows.pop(column) for column in _CALL))
        calls.append(rows)
    return _together(calls)


def owners(
    global_tid: Integers, process: Integers | int = -1, thread: Integers | int = -1
) -> tuple[Integers, Integers]:
    """Return process and thread of n records: of their globalTid, or, where it was not recorded, as they say them."""
    known = global_tid >= 0
    return np.where(known, global_tid // PROCESS, process), np.where(known, global_tid % PROCESS, thread)


def thread_name(process: int, thread: int) -> str:
    """Return a thread as tables name it: "process/thread", "" where the process is unknown."""
    return f"{process % PROCESS}/{thread % 2**32}" if process >= 0 else ""


def finish_ranges(rows: "pd.DataFrame", problems: list[str], recorded_until: Collection[int] = ()) -> "pd.DataFrame":
    """Return ranges by start, outer ones first: name ("domain:text", the text alone in the default domain), thread,
    start, end, domain ("" the default one), payload (Int64), json (an extended payload as nsys exports it, "" for
    none), cut (it ends with the recording, or its end was not recorded), process.

    `rows` have text and thread_id for name and thread, and an end below the start where it was not recorded.
    `recorded_until`: times, ns, at which the recording was ended.
    """

    def full_name(domain: str, text: str) -> str:
        return text if not domain or text.startswith(f"{domain}:") else f"{domain}:{text}"

    unended = rows["end"] < rows["start"]
    if unended.any():
        problems.append(f"{unended.sum():,} ranges have no end: they last until the end of the recording")
    last = max([*recorded_until, rows[["start", "end"]].to_numpy().max(initial=0)])
    end = rows["end"].mask(unended, last)
    rows = rows.assign(
        name=labels(full_name, rows["domain"], rows["text"]).astype(object),
        thread=labels(thread_name, rows["process"], rows["thread_id"]).astype(object),
        end=end,
        cut=unended | (end.isin(list(recorded_until)) & (rows["text"] != CAPTURE)),
    )
    order = np.lexsort((-rows["end"], rows["start"]))
    columns = ["name", "thread", "start", "end", "domain", "payload", "json", "cut", "process"]
    return rows[columns].iloc[order].reset_index(drop=True)


def by_process(
    work: "pd.DataFrame",
    calls: "pd.DataFrame",
    host: "pd.DataFrame",
    ranges: "pd.DataFrame",
    *,
    source: str,
    problems: list[str],
    gpus: Callable[[int | None, Sequence[int]], Mapping[str, Any]],
) -> list[Timeline]:
    """Return one timeline per process with ranges or work, by rank, then by process.

    Steps are among the ranges, collectives among the kernels. Records that do not name their process are the only
    one's; beside several they form a timeline of their own. `gpus` takes a process and the devices that it used, and
    returns the fields devices and sm_counts.
    """
    tables = [work, calls, ranges]
    known = {owner for table in tables for owner in table["process"].unique().tolist() if owner >= 0}
    lost = sum(int((table["process"] < 0).sum()) for table in tables)
    if lost and len(known) == 1:
        tables = [table.assign(process=next(iter(known))) for table in tables]
    elif lost and known:
        problems.append(f"{lost:,} records do not name their process: they form a separate timeline")
    timelines = []
    for key in sorted({*tables[0]["process"].unique().tolist(), *tables[2]["process"].unique().tolist()}):
        kernels, api, marked = (_of_process(table, key) for table in tables)
        steps, others, cut = take_steps(marked)
        number, start, end = (steps[name].to_numpy(dtype=np.int64) for name in ("step", "start", "end"))
        none, left_out = empty_steps(number, start, end, partial(_launches, kernels, api))
        steps = steps[~none].reset_index(drop=True)
        cut_off = [f"steps cut off by the end of the recording were skipped: {cut}"] if cut else []
        ends, clipped = clip_overlaps(*(kernels[name].to_numpy() for name in ("device", "stream", "start", "end")))
        kernels = kernels.assign(end=ends)
        process = key % PROCESS if key >= 0 else None
        timelines.append(
            Timeline(
                rank=captured_rank(others),
                steps=steps,
                kernels=kernels,
                ranges=others,
                api=api,
                host=_of_process(host, key).drop(columns="correlation_id"),
                collectives=collectives(kernels, api, others),
                source=source,
                process=process,
                problems=tuple(dict.fromkeys([*problems, *cut_off, *left_out, *clipped])),
                **gpus(process, kernels["device"].unique().tolist()),
            )
        )
    return sorted(timelines, key=lambda one: (one.rank is None, one.rank or 0, one.process or 0))


def _launches(kernels: "pd.DataFrame", api: "pd.DataFrame") -> Integers:
    """Return the starts of calls that are tied to work, or, where none is, the starts of work."""
    columns = (kernels["correlation_id"], api["correlation_id"], api["start"])
    moments = launch_moments(*(column.to_numpy(dtype=np.int64) for column in columns))
    return moments if len(moments) else kernels["start"].to_numpy(dtype=np.int64)


def _of_process(frame: "pd.DataFrame", process: int) -> "pd.DataFrame":
    chosen = frame["process"] == process
    rows = frame if chosen.all() else frame[chosen].reset_index(drop=True)
    return rows.drop(columns="process")


def _together(tables: Sequence[dict[str, Any]]) -> "pd.DataFrame":
    """Return tables as one, in order of start; they are emptied column by column, as they may be large."""
    import pandas as pd

    order = np.argsort(np.concatenate([table["start"] for table in tables]), kind="stable")
    columns = {}
    for name in [*tables[0]]:
        parts = [table.pop(name) for table in tables]
        is_text = isinstance(parts[0], pd.Categorical)
        columns[name] = (pd.api.types.union_categoricals(parts) if is_text else np.concatenate(parts))[order]
    return pd.DataFrame(columns, copy=False)


def _timed(rows: Mapping[str, Any], what: str, problems: list[str]) -> dict[str, Any]:
    good = (rows["end"] >= rows["start"]) & (rows["start"] != MISSING)
    if good.all():
        return {**rows}
    problems.append(f"{(~good).sum():,} records {what} without start or end were skipped")
    return {name: values[good] for name, values in rows.items()}
