"""Bandwidths of collectives: output of nccl-tests and rccl-tests, and JSON lines of NCCL Inspector.

Output of nccl-tests (all_reduce_perf and the others) may be anywhere in a log, several tests in one. A row is
recognized by its form, so NCCL's INFO lines and the prefixes of mpirun and srun between rows do no harm. The columns
are described in nccl-tests' doc/PERFORMANCE.md.

NCCL Inspector (plugins/profiler/inspector of NCCL) writes a line per collective or transfer of one rank: `coll_perf`
and `p2p_perf` have its name, size, time and bandwidths, as nccl-tests counts them; of an all-gather and a
reduce-scatter the size is of one rank.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from analysis.counters import Summary
from analysis.names import bus_factor, collective
from analysis.readers.packed import log_lines, read_start
from common.errors import InputError

if TYPE_CHECKING:
    from analysis.readers.registry import Head

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
_RANK = re.compile(r"#\s+Rank\s+(\d+)\b.*\bdevice\s+\d+\s+\[")
_PROGRAM = re.compile(r"\b([a-z_]+)_perf", re.IGNORECASE)

_INSPECTOR = re.compile(rb'^\s*\{\s*"header"\s*:.*"(?:coll|p2p)_perf"', re.DOTALL)
_OF_ONE_RANK = ("all_gather", "reduce_scatter")
_FIELDS = ("msg_size_bytes", "exec_time_us", "algobw_gbs", "busbw_gbs")


def recognises(head: "Head") -> bool:
    """Return whether a file has output of nccl-tests, or lines of NCCL Inspector."""
    return bool(_INSPECTOR.match(head.data) or _BEGIN.search(head.text))


def read(path: Path) -> list[Summary]:
    """Read a file, plain or gzip-compressed: one summary per test that has rows, or per collective and ranks.

    Returns:
        what "collectives": collective, size_bytes, time_us, algbw_gb_s, busbw_gb_s, placement, redop, root, wrong; of
        nccl-tests count and dtype too, a row per size and placement ("out_of_place" | "in_place") in the file's order;
        of NCCL Inspector calls too, medians over these, a row per size. collective is one of names.COLLECTIVES, ""
        where neither the file nor the numbers name it; redop is "" where there is none; root and wrong are -1 unknown.
        Bandwidths are in 1e9 bytes/s. Facts: ranks (None unknown).

    Raises:
        InputError: the file cannot be read, or holds no result; the message says why, as far as it is known.
    """
    return _inspector(path) if _INSPECTOR.match(read_start(path, 1 << 16)) else _nccl_tests(path)


def _nccl_tests(path: Path) -> list[Summary]:
    tests: list[tuple[str, list[str]]] = []  # collective and lines
    program = ""
    for line in log_lines(path):
        if match := _PROGRAM.search(line):
            program = collective(f"nccl:{match[1]}") or ""
        if _BEGIN.search(line):
            tests.append((program, []))
            program = ""
        elif tests:
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
        problems.append(f"the log does not name the test: by busbw / algbw its collective is {name or 'unknown'}")
    table = pd.DataFrame(rows, columns=_COLUMNS)
    table.insert(0, "collective", name)
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


def _inspector(path: Path) -> list[Summary]:
    import pandas as pd

    columns = ["collective", "ranks", "size_bytes", "time_us", "algbw_gb_s", "busbw_gb_s"]
    calls = pd.DataFrame(_calls(path), columns=columns)
    groups = calls.groupby(columns[:3], as_index=False)
    by_size = groups[columns[3:]].median().assign(calls=groups.size()["size"])
    summaries = []
    for (name, _), rows in by_size.groupby(columns[:2]):
        facts = {"ranks": int(rows["ranks"].iloc[0])}
        table = rows.drop(columns="ranks").reset_index(drop=True)
        table = table.assign(placement="in the program", redop="", root=-1, wrong=-1)
        summaries.append(Summary("collectives", f"NCCL Inspector {name}", table, "NCCL Inspector", facts))
    return summaries


def _calls(path: Path) -> Iterator[tuple[object, ...]]:
    for line in filter(str.strip, log_lines(path)):
        record = msgspec.json.decode(line)
        kind = "coll" if "coll_perf" in record else "p2p"
        about, ranks = record[f"{kind}_perf"], record["header"]["n_ranks"]
        size, *values = (float(about[f"{kind}_{field}"]) for field in _FIELDS)
        name = collective(f"nccl:{about.get(kind)}".replace("2", "To")) or "other"
        yield name, ranks, int(size) * (ranks if name in _OF_ONE_RANK else 1), *values
