"""SQLite exports as versions of Nsight Systems write them."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VM = 7 << 48

PLACE = "start end deviceId contextId streamId correlationId globalPid"

KERNEL_2022 = (
    f"{PLACE} demangledName shortName launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY"
)

KERNEL_2022 += " blockZ staticSharedMemory dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId"

KERNEL_2022 += " mangledName sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig"

KERNEL_2026 = f"{KERNEL_2022} greenContextId " + " ".join(f"later{number}" for number in range(13))

COPY = f"{PLACE} bytes copyKind srcKind dstKind"

NVTX_2022 = "start end eventType rangeId category color text globalTid endGlobalTid textId"

NVTX_2022 += " domainId uint64Value int64Value doubleValue uint32Value int32Value floatValue jsonTextId jsonText"

NVTX_2026 = f"{NVTX_2022} binaryData"

GRAPH = f"{PLACE} graphId graphExecId"


def pid(process: int) -> int:
    """Return a process as exports number it."""
    return VM | process << 24


def tid(process: int, thread: int | None = None) -> int:
    """Return a thread as exports number it; by default the process's first one."""
    return pid(process) | (process if thread is None else thread)


class Export:
    """Writes an export with the tables that a test asks for; a value that a row leaves out is NULL."""

    def __init__(self, path: Path) -> None:
        """Begin."""
        self.path = path
        self._connection = sqlite3.connect(path)
        self.table("StringIds", "id value", [])

    def table(self, name: str, columns: str, rows: Sequence[dict[str, Any]]) -> "Export":
        """Add rows to a table, which is made where it is missing."""
        names = columns.split()
        texts = ("text", "jsonText", "value", "name")
        declared = ", ".join(f'"{column}" {"TEXT" if column in texts else "INTEGER"}' for column in names)
        self._connection.execute(f'CREATE TABLE IF NOT EXISTS "{name}" ({declared})')
        for row in rows:
            assert set(row) <= set(names), set(row) - set(names)
            values = [row.get(column) for column in names]
            self._connection.execute(f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(names))})', values)
        return self

    def strings(self, **ids: str) -> "Export":
        """Add texts: i3="gemm" has the number 3."""
        return self.table("StringIds", "id value", [{"id": int(key[1:]), "value": text} for key, text in ids.items()])

    def done(self) -> Path:
        """Close the file."""
        self._connection.commit()
        self._connection.close()
        return self.path


def kernel(start: int, end: int, name: int, process: int = 40, **more: Any) -> dict[str, Any]:
    """Return a row of a kernel."""
    place = {"deviceId": 0, "streamId": 7, "correlationId": 5, "globalPid": pid(process)}
    return {"start": start, "end": end, **place, "demangledName": name, "shortName": name, **more}


def nvtx(start: int, end: int | None, process: int = 40, thread: int | None = None, **more: Any) -> dict[str, Any]:
    """Return a row of a range."""
    return {"start": start, "end": end, "eventType": 59, "globalTid": tid(process, thread), **more}


def ours(process: int = 40, number: int = 1) -> dict[str, Any]:
    """Return the row that names the suite's domain."""
    return nvtx(-500, None, process, eventType=75, text="bertbench", domainId=number)


def kernel_place(start: int, end: int, process: int = 40) -> dict[str, Any]:
    """Return the columns that every kind of work has."""
    return {"start": start, "end": end, "deviceId": 0, "streamId": 7, "correlationId": 5, "globalPid": pid(process)}
