"""Output of nccl-tests and rccl-tests (all_reduce_perf and the others), anywhere in a log, several tests in one.

A row is recognized by its form, so NCCL's INFO lines and the prefixes of mpirun and srun between rows do no harm.
The columns are described in nccl-tests' doc/PERFORMANCE.md.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from analysis.counters import Summary
from analysis.names import bus_factor, collective
from analysis.readers.packed import log_lines
from analysis.readers.registry import Head
from common.errors import InputError

_COLUMNS = [
    *("size_bytes", "count", "dtype", "redop", "root", "placement"),
    *("time_us", "algbw_gb_s", "busbw_gb_s", "wrong"),
]
_VALUE = r"(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|N/A|nan|inf)"
_ROW = re.compile(
    r"(?:^|[\s:>\]|])(?P<size>\d+)\s+(?P<count>\d+)\s+(?P<dtype>[a-z]\w*)\s+(?:(?P<redop>[a-z]\w+)\s+)?"
    rf"(?:(?P<root>-?\d+)\s+)?(?P<values>(?:{_VALUE}\s+){{3}}{_VALUE}(?:(?:\s+{_VALUE}){{4}})?)\s*$"
)
_BEGIN = re.compile(r"#\s*nThread\s+\d+\s+nGpus\s+\d+\s+minBytes")
_HEADER = re.compile(r"#\s+size\s+count\b.*\btime\b.*\balgbw\b")
_RANK = re.compile(r"#\s+Rank\s+(\d+)\b.*\bdevice\s+\d+\s+\[")
_PROGRAM = re.compile(r"\b([a-z_]+)_perf", re.IGNORECASE)


def recognises(head: Head) -> bool:
    """Return whether a file is a log with output of nccl-tests."""
    return any(_BEGIN.search(line) or _HEADER.search(line) for line in head.text.splitlines() if "#" in line)


def read(path: Path) -> list[Summary]:
    """Read one log, plain or gzip-compressed: one summary per test in it that has rows.

    Returns:
        what "collectives": collective and _COLUMNS, a row per size and placement ("out_of_place" | "in_place") in the
        file's order. collective is one of names.COLLECTIVES, "" where neither the file nor the numbers name it; redop
        is "" where the test has none; root and wrong are -1 where the file has none (validation off). Bandwidths are in
        1e9 bytes/s, as printed. Facts: ranks (None unknown).

    Raises:
        InputError: the log holds no result; the message says why, as far as it is known.
    """
    tests: list[tuple[str, list[str]]] = []  # collective and lines
    program, header_follows = "", False
    for line in log_lines(path):
        if match := _PROGRAM.search(line):
            program = collective(f"nccl:{match[1]}") or ""
        begins = _BEGIN.search(line) is not None
        if begins or (_HEADER.search(line) and not header_follows):
            tests.append((program, []))
            program = ""
        header_follows = begins or (header_follows and not _ROW.search(line))
        if tests:
            tests[-1][1].append(line)
    summaries = [one for name, lines in tests if (one := _summary(name, lines)) is not None]
    if not summaries:
        raise InputError(
            "tool-failed",
            f"{path} starts like nccl-tests but has no result: the test failed or stopped early; read what it "
            "printed, then run it again",
        )
    return summaries


def _summary(name: str, lines: Sequence[str]) -> Summary | None:
    import pandas as pd

    rows = [row for line in lines if (match := _ROW.search(line)) for row in _rows(match)]
    ranks, problems = len({match[1] for line in lines if (match := _RANK.search(line))}), []
    if not rows:
        return None
    if not name:
        # Only an all-reduce has its ratio of busbw to algbw, and more than two ranks tell it from the others.
        factor = bus_factor("all_reduce", ranks) or 0.0
        ratios = [row[8] / row[7] for row in rows if row[7] > 1]
        guessed = ranks > 2 and bool(ratios) and all(abs(ratio / factor - 1) < 0.02 for ratio in ratios)
        name = "all_reduce" if guessed else ""
        which = f"all_reduce, as busbw / algbw is 2(n-1)/n for {ranks} ranks" if guessed else "unknown"
        problems.append(f"the log does not name the test; its collective is {which}")
    table = pd.DataFrame(rows, columns=_COLUMNS)
    table.insert(0, "collective", name)
    if not ranks:
        problems.append("the log does not list the ranks: busbw depends on their number and cannot be checked")
    if not any("# Avg bus bandwidth" in line for line in lines):
        problems.append("the log has no average bus bandwidth at its end: the test may have stopped early")
    if wrong := int((table["wrong"] > 0).sum()):
        problems.append(f"{wrong} rows have wrong elements: the collective gave wrong results")
    title = f"nccl-tests {name}".strip()
    return Summary("collectives", title, table, "nccl-tests", {"ranks": ranks or None}, tuple(problems))


def _rows(match: re.Match[str]) -> Iterator[tuple[Any, ...]]:
    about = (int(match["size"]), int(match["count"]), match["dtype"], match["redop"] or "", int(match["root"] or -1))
    values = [None if text == "N/A" else float(text) for text in match["values"].split()]
    for placement, part in (("out_of_place", values[:4]), ("in_place", values[4:])):
        if part and None not in part[:3]:
            # The older "error" column is a difference, which is no count unless it is 0.
            wrong = -1 if part[3] is None else int(part[3]) if part[3] == int(part[3]) else 1
            yield *about, placement, *part[:3], wrong
