"""Ranges of an nsys export: NVTX push/pop and start/end ranges and MPI's calls.

Columns of the ranges: name ("domain:text" as nsys writes it, the text alone in the default domain), thread, start, end,
domain ("" the default one), payload (Int64, NA where the range has no whole number), json (an extended payload as nsys
exports it, "" where there is none), cut (its end is the end of the recording, or was not recorded), process.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.readers.columns import MISSING, Integers, distinct_rows
from analysis.readers.cupti import LAST_TIME, PROCESS
from analysis.readers.sqlite_database import Database
from analysis.readers.steps import CAPTURE, DOMAIN

if TYPE_CHECKING:
    import pandas as pd


_TABLE = "NVTX_EVENTS"
_MPI_TABLES = ("MPI_P2P_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")
_RANGE_TYPES = (59, 60, 70, 71)  # push/pop, start/end; the same two from NVTXT files
_DOMAIN_TYPE = 75
_PAYLOADS = ("int64Value", "uint64Value", "int32Value", "uint32Value")
_COLUMNS = {
    "start": MISSING,
    "end": MISSING,
    "eventType": 59,  # a table without the column holds ranges alone
    "globalTid": -1,
    "domainId": 0,
    "textId": -1,
    "jsonTextId": -1,
    **dict.fromkeys(_PAYLOADS, MISSING),
}


@dataclass(frozen=True, slots=True)
class Ranges:
    """The ranges of all processes."""

    frame: "pd.DataFrame"
    """One row per range, in order of start; see the module."""
    problems: tuple[str, ...]
    """What was missing: one sentence each."""


def read_ranges(database: Database, recorded_until: set[int]) -> Ranges:
    """Read the ranges.

    Args:
        database: an open export.
        recorded_until: times, ns, at which the recording was ended, as far as it says; a range with such an end was
            still open.
    """
    import pandas as pd

    columns = database.integers(_TABLE, _COLUMNS)
    kept = np.isin(columns["eventType"], [*_RANGE_TYPES, _DOMAIN_TYPE])
    # NULL reads as MISSING; a time beyond a century is none.
    kept &= (np.abs(columns["start"] // 2) < LAST_TIME // 2) & (columns["end"] < LAST_TIME)
    texts = _texts(database, columns["textId"], "text")[kept]
    extended = _texts(database, columns["jsonTextId"], "jsonText")[kept]
    columns = {name: values[kept] for name, values in columns.items()}
    process, thread = _owners(columns["globalTid"])
    is_range = columns["eventType"] != _DOMAIN_TYPE
    problems: list[str] = []
    domains = _domains(columns, texts, process, "domainId" in database.tables.get(_TABLE, ()), problems)

    columns = {name: values[is_range] for name, values in columns.items()}
    text, extended, process, thread = (values[is_range] for values in (texts, extended, process, thread))
    domain = _domain_names(process, columns["domainId"], domains, problems)
    end, cut = _ends(columns, text, recorded_until, problems)
    frame = pd.DataFrame(
        {
            "name": _qualified(domain, text),
            "thread": _thread_names(process, thread),
            "start": columns["start"],
            "end": end,
            "domain": domain,
            "payload": _payloads(columns, extended),
            "json": extended,
            "cut": cut,
            "process": process,
        }
    )
    if len(calls := _mpi_calls(database)):
        frame = pd.concat([frame, calls], ignore_index=True)
    # Outer ranges first where several begin at once.
    order = np.lexsort((-frame["end"].to_numpy(), frame["start"].to_numpy()))
    return Ranges(frame.iloc[order].reset_index(drop=True), tuple(problems))


def _mpi_calls(database: Database) -> "pd.DataFrame":
    """MPI's calls, which newer versions keep in tables of their own, as the ranges that older ones made of them."""
    import pandas as pd

    frames = []
    for table in _MPI_TABLES:
        columns = database.integers(table, {"start": MISSING, "end": MISSING, "globalTid": -1, "textId": -1})
        good = (columns["end"] >= columns["start"]) & (columns["start"] > -LAST_TIME) & (columns["end"] < LAST_TIME)
        columns = {name: values[good] for name, values in columns.items()}
        names = database.strings()
        ids, place = distinct_rows(columns["textId"])
        texts = np.array([f"MPI:{names.get(number, 'call')}" for (number,) in ids], dtype=object)[place]
        process, thread = _owners(columns["globalTid"])
        own = {
            "name": texts,
            "thread": _thread_names(process, thread),
            "start": columns["start"],
            "end": columns["end"],
            "domain": "MPI",
        }
        payload = pd.array([pd.NA] * len(texts), dtype="Int64")
        frames.append(pd.DataFrame({**own, "payload": payload, "json": "", "cut": False, "process": process}))
    return pd.concat(frames, ignore_index=True)


def _texts(database: Database, ids: Integers, column: str) -> Any:
    """Text of each row, inline in `column` or by id; "" where there is none."""
    names = database.strings()
    distinct, place = distinct_rows(ids)
    texts = np.array([names.get(value, "") for (value,) in distinct], dtype=object)[place]
    inline = np.array(database.texts(_TABLE, column), dtype=object)
    return np.where(inline != "", inline, texts) if len(inline) else texts


def _domains(
    columns: dict[str, Integers], texts: Any, process: Integers, has_domains: bool, problems: list[str]
) -> dict[tuple[int, int], str]:
    """Names by process and id; ours is known by the range `bertbench:capture` where its creation was not recorded."""
    found: dict[tuple[int, int], str] = {}
    created = np.flatnonzero(columns["eventType"] == _DOMAIN_TYPE)
    for row in created[np.argsort(columns["start"][created], kind="stable")]:
        found.setdefault((int(process[row]), int(columns["domainId"][row])), str(texts[row])[:256])
    for row in np.flatnonzero((texts == CAPTURE) & (columns["eventType"] != _DOMAIN_TYPE)):
        key = (int(process[row]), int(columns["domainId"][row]))
        if not found.get(key):
            found[key] = DOMAIN
            if not has_domains:
                problems.append("NVTX domains were not exported: all ranges of the run are assumed to be bertbench's")
    return found


def _domain_names(process: Integers, ids: Integers, domains: dict[tuple[int, int], str], problems: list[str]) -> Any:
    pairs, place = distinct_rows(process, ids)
    names = [domains.get(pair, "") for pair in pairs]
    unnamed = [pair for pair, name in zip(pairs, names, strict=True) if pair[1] > 0 and not name]
    if unnamed:
        problems.append(f"{len(unnamed)} NVTX domains have no name in the export: their ranges are shown without one")
    return np.array(names, dtype=object)[place]


def _ends(
    columns: dict[str, Integers], texts: Any, recorded_until: set[int], problems: list[str]
) -> tuple[Integers, Any]:
    start, end = columns["start"], columns["end"]
    open_ = end < start  # NULL reads as MISSING; old versions wrote 0
    if open_.any():
        last = max([*recorded_until, int(end.max()), int(start.max())])
        problems.append(
            f"{int(open_.sum()):,} ranges have no end: they are assumed to last until the end of the recording"
        )
        end = np.where(open_, last, end)
    cut = open_ | (np.isin(end, list(recorded_until)) & (texts != CAPTURE))
    return end, cut


def _payloads(columns: dict[str, Integers], extended: Any) -> "pd.Series[Any]":
    import pandas as pd

    values = np.full(len(columns["start"]), MISSING, dtype=np.int64)
    for name in _PAYLOADS:
        # Old versions write 0 into the columns of the other types.
        better = (columns[name] != MISSING) & ((values == MISSING) | (values == 0))
        values = np.where(better, columns[name], values)
    for row in np.flatnonzero((values == MISSING) & (extended != "")):
        number = _json_number(str(extended[row]))
        if number is not None:
            values[row] = number
    return pd.Series(values, dtype="Int64").mask(values == MISSING)


@lru_cache(maxsize=4096)
def _json_number(text: str) -> int | None:
    """The number in `7`, `[7]` or `{"any name": 7}`; None for every other payload."""
    if len(text) > 1000:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    while isinstance(value, dict | list) and len(value) == 1:
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and abs(value) < 2**62 else None


def _qualified(domain: Any, text: Any) -> Any:
    """nsys's own way of writing a range: domain, colon, text."""
    pairs, place = distinct_rows(domain, text)
    names = [name if not owner or name.startswith(f"{owner}:") else f"{owner}:{name}" for owner, name in pairs]
    return np.array(names, dtype=object)[place]


def _owners(ids: Integers) -> tuple[Integers, Integers]:
    """Process and thread of each globalTid, -1 where it was not recorded."""
    known = ids >= 0
    return np.where(known, ids // PROCESS, -1), np.where(known, ids % PROCESS, -1)


def _thread_names(process: Integers, thread: Integers) -> Any:
    pairs, place = distinct_rows(process, thread)
    names = [f"{owner % PROCESS}/{number}" if owner >= 0 else "" for owner, number in pairs]
    return np.array(names, dtype=object)[place]
