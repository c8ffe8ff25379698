"""Output of nccl-tests and rccl-tests (all_reduce_perf and the others), anywhere in a log, several tests in one.

A row is recognized by its form, so NCCL's INFO lines and the prefixes of mpirun and srun between rows do no harm.
The columns are described in nccl-tests' doc/PERFORMANCE.md.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.counters import Summary
from analysis.names import bus_factor
from analysis.readers.packed import log_lines
from analysis.readers.registry import Head
from common.errors import InputError

FORM = "summaries"
COLUMNS = {
    "collective": "str", "size_bytes": "int64", "count": "int64", "dtype": "str", "redop": "str", "root": "int64",
    "placement": "str", "time_us": "float64", "algbw_gb_s": "float64", "busbw_gb_s": "float64", "wrong": "int64",
}  # fmt: skip

_TYPES = ("int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "bfloat16", "fp8_e4m3",
          "fp8_e5m2", "f8e4m3", "f8e5m2", "char", "int", "uint64_t")  # fmt: skip
_VALUE = r"(?:\d{1,15}(?:\.\d{1,12})?(?:e[-+]?\d{1,2})?|N/A|nan|inf)"
_ROW = re.compile(
    rf"(?:^|[\s:>\]|])(?P<size>\d{{1,19}})\s+(?P<count>\d{{1,19}})\s+(?P<dtype>{'|'.join(_TYPES)})\s+"
    rf"(?:(?P<redop>[a-z]\w{{1,20}})\s+)?(?:(?P<root>-?\d{{1,6}})\s+)?"
    rf"(?P<values>(?:{_VALUE}\s+){{3}}{_VALUE}(?:(?:\s+{_VALUE}){{4}})?)\s*$"
)
_BEGIN = re.compile(r"#\s*nThread\s+\d+\s+nGpus\s+(\d+)\s+minBytes")
_HEADER = re.compile(r"#\s+size\s+count\b.*\btime\b.*\balgbw\b")
_RANK = re.compile(
    r"#\s+Rank\s+(\d{1,6})\b.*?\bon\s+(\S+)\s+device\s+(\d{1,4})\s+\[(?:0x)?[0-9a-fA-F:.]*\]\s*([^\n]{0,120})$"
)
_STARTING = re.compile(r"#\s*Collective test starting:\s*(\S{1,80})")
_PROGRAM = re.compile(r"\b(all_?reduce|all_?gather|reduce_?scatter|all_?to_?allv?|broadcast|reduce|gather|scatter|"
                      r"sendrecv|hypercube)_perf\w*", re.IGNORECASE)  # fmt: skip
_AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:\s*([\d.]{1,20})")
_OUT_OF_BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*(\d{1,18})")
_VERSION = re.compile(r"\b(NCCL|RCCL) version\s*:?\s*([\d.]{3,20}(?:\+[\w.]{1,20})?)|nccl-library=(\d{4,6})\b")
_NAMES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "sendrecv": "send_recv",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
}

_LONGEST_LINE = 4000  # characters; a command line may be long, rows are not


def recognises(head: Head) -> bool:
    """Tell whether a file is a log with output of nccl-tests."""
    return any(_BEGIN.search(line) or _HEADER.search(line) for line in head.text.splitlines() if "#" in line[:400])


def read(path: Path) -> list[Summary]:
    """Read one log, plain or gzip-compressed: one summary per test in it that has rows.

    Returns:
        what "collectives": COLUMNS, a row per size and placement ("out_of_place" | "in_place") in the file's order.
        collective is one of names.COLLECTIVES, "" where neither the file nor the numbers name it; redop is "" where the
        test has none; root and wrong are -1 where the file has none (validation off). Bandwidths are in 1e9 bytes/s, as
        printed. Facts: ranks (None unknown), devices (their names), hosts, nccl (version, "" unknown),
        avg_busbw_gb_s (None where the test did not end), out_of_bounds.

    Raises:
        InputError: the log holds no result; the message says why, as far as it is known.
    """
    tests: list[_Test] = []
    program = version = ""
    current = _Test()
    begun = False
    for line in log_lines(path):
        line = line[:_LONGEST_LINE]
        if match := _VERSION.search(line):
            version = match[2] or _dotted(int(match[3]))
        if match := _STARTING.search(line):
            program, begun = match[1], True
            current = _begin(tests, match[1])
        elif _BEGIN.search(line):
            if not begun:
                current = _begin(tests, program)
            begun, program = False, ""
        elif current.rows and _HEADER.search(line):  # a log without the lines that begin a test
            current = _begin(tests, program)
            program = ""
        elif match := _PROGRAM.search(line):
            program = match[0]  # the command line, before the test begins
        _take(current, line, tests)
        current.version = version or current.version
    filled = [test for test in tests if test.rows]
    if not filled:
        raise InputError(
            "tool-failed",
            f"{path} starts like nccl-tests but has no result: the test failed or stopped early; read what it "
            "printed, then run it again",
        )
    return [test.summary() for test in filled]


@dataclass(slots=True)
class _Test:
    """One test of a log."""

    program: str = ""
    version: str = ""
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    ranks: dict[int, str] = field(default_factory=dict)
    hosts: dict[str, None] = field(default_factory=dict)
    average: float | None = None
    out_of_bounds: int | None = None

    def summary(self) -> Summary:
        import pandas as pd

        ranks = len(self.ranks) or None
        found = _named(self.program)
        problems = []
        if not found and ranks:
            found, reason = _guessed(self.rows, ranks)
            problems.append(reason)
        table = pd.DataFrame([(found, *row) for row in self.rows], columns=list(COLUMNS)).astype(
            {name: kind for name, kind in COLUMNS.items() if kind != "str"}
        )
        facts = {
            "ranks": ranks, "devices": tuple(dict.fromkeys(self.ranks.values())), "hosts": len(self.hosts) or None,
            "nccl": self.version, "avg_busbw_gb_s": self.average, "out_of_bounds": self.out_of_bounds,
        }  # fmt: skip
        problems += _problems(self, table, found)
        return Summary("collectives", f"nccl-tests {found}".strip(), table, "nccl-tests", facts, tuple(problems))


def _begin(tests: list[_Test], program: str) -> _Test:
    tests.append(_Test(program))
    return tests[-1]


def _take(test: _Test, line: str, tests: list[_Test]) -> None:
    if match := _ROW.search(line):
        if not tests:
            tests.append(test)
        test.rows.extend(_rows(match))
    elif match := _RANK.search(line):
        test.ranks[int(match[1])] = match[4].strip()
        test.hosts[match[2]] = None
    elif match := _AVERAGE.search(line):
        test.average = _number(match[1])
    elif match := _OUT_OF_BOUNDS.search(line):
        test.out_of_bounds = int(match[1])


def _rows(match: re.Match[str]) -> Iterator[tuple[Any, ...]]:
    size, count = min(int(match["size"]), 2**63 - 1), min(int(match["count"]), 2**63 - 1)
    about = (size, count, match["dtype"], match["redop"] or "", int(match["root"] or -1))
    values = [_number(text) for text in match["values"].split()]
    for placement, (time, algorithm, bus, wrong) in zip(
        ("out_of_place", "in_place"), (values[:4], values[4:] or [None] * 4), strict=True
    ):
        if time is not None and algorithm is not None and bus is not None:
            yield *about, placement, time, algorithm, bus, _whole(wrong)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < 1e300 else None  # false for NaN too


def _whole(value: float | None) -> int:
    """Wrong elements; the older "error" column is a difference, which is no count unless it is 0."""
    return int(value) if value is not None and value == int(value) and value < 2**62 else -1 if value is None else 1


def _named(program: str) -> str:
    match = _PROGRAM.search(program)
    if match is None:
        return ""
    name = match[1].lower()
    return _NAMES.get(name.replace("_", ""), name if bus_factor(name, 2) else "")


def _guessed(rows: list[tuple[Any, ...]], ranks: int) -> tuple[str, str]:
    """Only an all-reduce has its ratio of busbw to algbw, and more than two ranks tell it from the others."""
    ratios = [row[8] / row[7] for row in rows if row[7] > 1]
    expected = bus_factor("all_reduce", ranks) or 0.0
    if ratios and ranks > 2 and all(abs(ratio / expected - 1) < 0.02 for ratio in ratios):
        return (
            "all_reduce",
            f"the log does not name the test; all_reduce, as busbw / algbw is 2(n-1)/n for {ranks} ranks",
        )
    return "", "the log does not name the test, so the collective is unknown"


def _problems(test: _Test, table: Any, collective: str) -> Iterator[str]:
    if not test.ranks:
        yield "the log does not list the ranks: busbw depends on their number and cannot be checked"
    if test.average is None:
        yield "the log has no average bus bandwidth at its end: the test may have stopped early"
    if test.out_of_bounds:
        yield f"{test.out_of_bounds} results were out of bounds: the collective gave wrong results"
    wrong = int((table["wrong"] > 0).sum())
    if wrong:
        yield f"{wrong} rows have wrong elements: the collective gave wrong results"
    odd = _inconsistent(table, collective, len(test.ranks))
    if odd:
        yield (
            f"{odd} of {len(table)} rows contradict algbw = size / time or busbw = algbw x its factor: the log was "
            "edited, or does not list all ranks"
        )


def _inconsistent(table: Any, collective: str, ranks: int) -> int:
    """Rows whose numbers disagree by more than their rounding: bandwidths to 0.01, times to four or five digits."""
    time = table["time_us"].where(table["time_us"] > 0)
    expected = table["size_bytes"] / time / 1e3
    odd = (expected - table["algbw_gb_s"]).abs() > 0.011 + 0.005 * expected
    factor = bus_factor(collective, ranks) if ranks else None
    if factor is not None:
        bus = table["algbw_gb_s"] * factor
        odd |= (bus - table["busbw_gb_s"]).abs() > 0.021 + 0.005 * bus
    return int(odd.sum())


def _dotted(code: int) -> str:
    """NCCL_VERSION_CODE: 22805 is 2.28.5, and before 2.9 2804 is 2.8.4."""
    if code >= 10_000:
        return f"{code // 10_000}.{code // 100 % 100}.{code % 100}"
    return f"{code // 1000}.{code // 100 % 10}.{code % 100}"
