"""Ranges of an nsys export: NVTX push/pop and start/end ranges and MPI's calls."""

import json
from functools import lru_cache
from typing import TYPE_CHECKING

from analysis.readers.cupti import LAST_TIME, finish_ranges, labels, owners
from analysis.readers.sqlite_database import MISSING, Database
from analysis.readers.steps import CAPTURE, DOMAIN

if TYPE_CHECKING:
    import pandas as pd

_TABLE = "NVTX_EVENTS"
_MPI_TABLES = ("MPI_P2P_EVENTS", "MPI_COLLECTIVES_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")
_RANGE_TYPES = (59, 60, 70, 71)  # push/pop, start/end; the same two from NVTXT files
_DOMAIN_TYPE = 75
_PAYLOADS = ("int64Value", "uint64Value", "int32Value", "uint32Value")
_TIMES = {"start": MISSING, "end": MISSING, "globalTid": -1, "textId": -1}
_COLUMNS = {
    **_TIMES,
    "eventType": 59,  # a table without the column holds ranges alone
    "domainId": 0,
    "jsonTextId": -1,
    **dict.fromkeys(_PAYLOADS, MISSING),
}


def read_ranges(database: Database, recorded_until: set[int], problems: list[str]) -> "pd.DataFrame":
    """Read the ranges of all processes, see finish_ranges."""
    import pandas as pd

    rows = pd.DataFrame(database.integers(_TABLE, _COLUMNS))
    for column, inline in (("text", "text"), ("json", "jsonText")):
        # Texts are in the table, or in the table of texts.
        numbered = pd.Series(
            labels(rows[[f"{inline}Id"]], lambda number: database.strings.get(number, "")), dtype=object
        )
        written = pd.Series(database.texts(_TABLE, inline), dtype=object)
        rows[column] = written.where(written != "", numbered) if len(written) else numbered
    rows["process"], rows["thread_id"] = owners(rows["globalTid"])
    # A row without an end has MISSING there, and stays.
    timed = (rows["start"] > -LAST_TIME) & (rows["start"] < LAST_TIME) & (rows["end"] < LAST_TIME)
    domains = _domains(rows[timed], problems)
    rows = rows[timed & rows["eventType"].isin(_RANGE_TYPES)]
    keys = pd.MultiIndex.from_frame(rows[["process", "domainId"]])
    used = keys.unique()
    if unnamed := sum(number > 0 and not domains.get((process, number)) for process, number in used):
        problems.append(f"{unnamed} NVTX domains have no name in the export: their ranges are shown without one")
    names = pd.Series([domains.get(key, "") for key in used], dtype=object)
    rows = rows.assign(domain=names.to_numpy()[used.get_indexer(keys)], payload=_payloads(rows))
    return finish_ranges(pd.concat([rows, *_mpi_calls(database)], ignore_index=True), recorded_until, problems)


def _mpi_calls(database: Database) -> "list[pd.DataFrame]":
    """MPI's calls, which newer versions keep in tables of their own, as the ranges that older ones made of them."""
    import pandas as pd

    tables = []
    for table in _MPI_TABLES:
        rows = pd.DataFrame(database.integers(table, _TIMES))
        rows = rows[(rows["end"] >= rows["start"]) & (rows["start"] > -LAST_TIME) & (rows["end"] < LAST_TIME)]
        if len(rows):
            process, thread = owners(rows["globalTid"])
            text = labels(rows[["textId"]], lambda number: database.strings.get(number, "call")).astype(object)
            payload = pd.array([pd.NA] * len(rows), dtype="Int64")
            rows = rows.assign(process=process, thread_id=thread, text=text, domain="MPI", payload=payload, json="")
            tables.append(rows)
    return tables


def _domains(rows: "pd.DataFrame", problems: list[str]) -> dict[tuple[int, int], str]:
    """Names by process and id; ours is known by the range `bertbench:capture` where its creation was not recorded."""
    created = rows[rows["eventType"] == _DOMAIN_TYPE].sort_values("start", kind="stable")
    keys = ["process", "domainId"]
    domains = {}
    for process, number, text in created.drop_duplicates(keys)[[*keys, "text"]].itertuples(index=False, name=None):
        domains[process, number] = text
    captured = rows[(rows["text"] == CAPTURE) & (rows["eventType"] != _DOMAIN_TYPE)]
    for key in captured[keys].itertuples(index=False, name=None):
        domains[key] = domains.get(key) or DOMAIN
    return domains


def _payloads(rows: "pd.DataFrame") -> "pd.Series[int]":
    import pandas as pd

    # One of the columns is set; old versions write 0 into the others.
    values = rows[list(_PAYLOADS)].max(axis=1)
    payloads = values.astype("Int64").mask(values == MISSING)
    extended = rows["json"][payloads.isna() & (rows["json"] != "")]
    numbers = pd.Series([_json_number(text) for text in extended], index=extended.index, dtype="Int64")
    return payloads.fillna(numbers)


@lru_cache(maxsize=4096)
def _json_number(text: str) -> int | None:
    """Return the number in `7`, `[7]` or `{"any name": 7}`; None for every other payload."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    while isinstance(value, dict | list) and len(value) == 1:
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62 else None
