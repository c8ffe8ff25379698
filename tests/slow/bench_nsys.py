"""How long the reader of nsys exports takes for millions of kernels, and how much memory: a generated export.

    python tests/slow/bench_nsys.py [--kernels 5000000] [--api] [--out FILE.json]

The export has the kernel table of nsys 2024 (30 columns), 200 kernel names, one process, four streams; `--api` adds one
call of the CUDA runtime for every kernel. It is generated, not recorded. The file is read by a fresh process, after one
pass over the file that puts it into the page cache. Everything is written into a temporary folder and removed.
"""

import argparse
import json
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
_KERNEL = """start end deviceId contextId greenContextId streamId correlationId globalPid demangledName shortName
mangledName launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory
dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted graphNodeId
sharedMemoryLimitConfig clusterX clusterY"""
KERNEL_COLUMNS = _KERNEL.split()
RUNTIME_COLUMNS = ["start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue", "callchainId"]
_OPTIONAL = ("greenContextId", "mangledName", "cacheConfig", "graphNodeId", "callchainId", "clusterX", "clusterY")
_NAMES = 200
_PID = 7 << 48 | 4711 << 24
_FIRST = 5_000_000_000


def generate(path: Path, kernels: int, api: bool) -> None:
    """Write an export: kernel i starts 2,000 ns after kernel i-1 and lasts 1,000 + (i * 7919 mod 997) ns."""
    connection = sqlite3.connect(path)
    connection.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-200000;")
    connection.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    texts = [(number, f"void kernel_{number}<float, (int){number % 7}>(float *, int)") for number in range(_NAMES)]
    texts += [(1000 + number, f"kernel_{number}") for number in range(_NAMES)]
    texts += [(2000, "cudaLaunchKernel_v7000")]
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", texts)
    counter = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {kernels})"
    kernel = {
        "start": f"{_FIRST} + i * 2000",
        "end": f"{_FIRST} + i * 2000 + 1000 + i * 7919 % 997",
        "contextId": "1",
        "streamId": "7 + i % 4",
        "correlationId": "100 + i",
        "globalPid": str(_PID),
        "demangledName": f"i * 7919 % {_NAMES}",
        "shortName": f"1000 + i * 7919 % {_NAMES}",
        "registersPerThread": "32 + i % 200",
        "gridX": "1 + i * 31 % 4096",
        "blockX": "256",
        "localMemoryTotal": "67633152",
        "gridId": "i + 1",
        "sharedMemoryExecuted": "16384",
    }
    _fill(connection, "CUPTI_ACTIVITY_KIND_KERNEL", KERNEL_COLUMNS, kernel, counter)
    if api:
        runtime = {
            "start": f"{_FIRST - 9000} + i * 2000",
            "end": f"{_FIRST - 9000} + i * 2000 + 900 + i * 31 % 613",
            "globalTid": str(_PID | 4711),
            "correlationId": "100 + i",
            "nameId": "2000",
        }
        _fill(connection, "CUPTI_ACTIVITY_KIND_RUNTIME", RUNTIME_COLUMNS, runtime, counter)
    connection.commit()
    connection.close()


def _fill(connection: sqlite3.Connection, table: str, columns: list[str], values: dict[str, str], counter: str) -> None:
    declared = ", ".join(f'"{name}" INTEGER' + ("" if name in _OPTIONAL else " NOT NULL") for name in columns)
    connection.execute(f"CREATE TABLE {table} ({declared})")
    default = {
        name: "NULL" if name in _OPTIONAL else "1" if name[:-1] in ("grid", "block") else "0" for name in columns
    }
    taken = ", ".join({**default, **values}[name] for name in columns)
    connection.execute(f"INSERT INTO {table} {counter} SELECT {taken} FROM n")


def read_once(path: Path) -> dict[str, Any]:
    """Read an export in this process; return seconds (imports apart), peak memory and what was read.

    cpu_seconds is the same on a machine that is busy with other work; seconds is not.
    """
    import pandas as pd  # noqa: F401 (its import is timed apart)

    from analysis.readers.nsys import reader as nsys

    begin, cpu = time.perf_counter(), time.process_time()
    found = nsys.read(path)
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    total = sum(int((item.kernels["end"] - item.kernels["start"]).sum()) for item in found)
    return {
        "seconds": seconds,
        "cpu_seconds": cpu,
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "kernels": sum(len(item.kernels) for item in found),
        "api_calls": sum(len(item.api) for item in found),
        "kernel_ns": total,
    }


def measure(kernels: int, api: bool, folder: Path) -> dict[str, Any]:
    """Generate an export of this many kernels, read it in a fresh process, check the sums; return the figures.

    Returns:
        seconds and cpu_seconds (reading alone), process_seconds (with Python's start and imports), peak_rss_mb,
        kernels, api_calls, kernel_ns, file_mb, generate_seconds.

    Raises:
        RuntimeError: the reader failed, or read other sums than were written.
    """
    path = folder / "generated.sqlite"
    begin = time.perf_counter()
    generate(path, kernels, api)
    generated = time.perf_counter() - begin
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "--read", str(path)], capture_output=True, text=True, cwd=REPOSITORY, check=False
    )
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise RuntimeError(f"reading failed: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    expected = sum(1000 + number * 7919 % 997 for number in range(kernels))
    if (found["kernels"], found["api_calls"], found["kernel_ns"]) != (kernels, kernels if api else 0, expected):
        raise RuntimeError(f"read {found}, wrote {kernels} kernels of {expected} ns")
    found |= {"process_seconds": seconds, "file_mb": path.stat().st_size / 2**20, "generate_seconds": generated}
    path.unlink()
    return found


def main() -> int:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kernels", type=int, default=5_000_000)
    parser.add_argument("--api", action="store_true", help="as many calls of the CUDA runtime too")
    parser.add_argument("--out", type=Path, help="file for the figures")
    parser.add_argument("--read", type=Path, help="read this export in this process and print the figures")
    given = parser.parse_args()
    if given.read:
        sys.path.insert(0, str(REPOSITORY))
        print(json.dumps(read_once(given.read)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps(measure(given.kernels, given.api, Path(folder)), indent=2)
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
