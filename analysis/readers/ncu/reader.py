"""CSV output of Nsight Compute (`ncu --csv`), the details page (a row per metric) and the raw page (a row per kernel),
and its reports (.ncu-rep), see ncu.report.

The table may stand anywhere in a log: what the program printed before, and ncu's own ==PROF== lines, are passed over.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from analysis.counters import KernelCounters, rules_file
from analysis.readers.ncu.blocks import MAGIC
from analysis.readers.ncu.report import read_report
from analysis.readers.ncu.table import Header, Table
from analysis.readers.packed import UNENDED, unpacked_stream
from analysis.readers.registry import Head
from analysis.readers.sqlite_database import SQLITE_HEADER, unpacked
from common.errors import InputError

MOST_BYTES = 4 << 30
"""Unpacked; a larger file is refused: no session of ncu writes one, a zip bomb does."""
_LONGEST_LINE = 1 << 22


def read_lines(path: Path, unended: Callable[[str], None] | None = None) -> Iterator[str]:
    """Yield the lines, without their ends, holding one at a time; `unended` as of `packed.log_lines`.

    Text is UTF-8, with or without a mark, UTF-16 with its mark (a redirect in PowerShell), or CP949; bytes of none of
    them become replacement characters. A line of more than 4 million characters comes in pieces.
    """
    stream = unpacked_stream(path, "table", most_bytes=MOST_BYTES, remedy="give the table of one run of ncu")
    head = stream.peek(64)[:64]
    if head.startswith(SQLITE_HEADER):
        raise InputError(
            "file-format",
            f"{path} is an SQLite database, as of nsys and nvprof, and has no counters of cores: give "
            "the output of `ncu --csv`; `bertbench analyze` reads the database",
        )
    wide = head[:2] in (b"\xff\xfe", b"\xfe\xff")
    # latin-1 keeps every byte, so that each line's own encoding can be found; the ends of lines are the same in all.
    text = io.TextIOWrapper(stream, "utf-16" if wide else "latin-1", errors="replace")
    while line := text.readline(_LONGEST_LINE):
        if unended is not None and len(line) < _LONGEST_LINE and not line.endswith("\n"):
            unended(UNENDED)
        line = line.removesuffix("\n")
        yield line if wide or line.isascii() else _decoded(line)


def _decoded(line: str) -> str:
    raw = line.encode("latin-1")
    for encoding in ("utf-8-sig", "cp949"):
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError:
            continue
    return raw.decode("utf-8-sig", errors="replace")


FORM = "counters"
"""What `read` returns: KernelCounters."""

_RECORD = re.compile(r'^\s*"?\d+"?\s*[,;\t]')
_UNITS = re.compile(r'^(?:""|)[,;\t]')
_NVPROF_HEADER = re.compile(r'"?Invocations"?,"?(?:Metric|Event) Name"?.*"?\bMin"?,"?Max"?,"?Avg\b')
_TOOL_LINE = re.compile(r"^==(?:ERROR|WARNING|PROF)== *(.*)")
_HEADER_LINE = re.compile(rb'^(?=[^\r\n]*\bID\b)[^\r\n]*"?Kernel Name"?[,;\t]', re.MULTILINE)
_MOST_LINES_OF_A_RECORD = 50
_SEARCHED_BYTES = 16 << 20
_FIRST_BYTES_OF_OTHERS = (b"{", b"[", b"<", b"SQLite", b"PK")


def recognises(head: Head) -> bool:
    """Whether a file is ncu's: a report, or a table by ncu's ==PROF== lines or the columns ID and Kernel Name.

    A program may print much before the table, so a text that shows neither at once is searched for 16 MiB.
    """
    data = head.data
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        data = data.decode("utf-16", errors="replace").encode()
    if data.startswith(MAGIC) or re.search(rb"^==(?:PROF|ERROR|WARNING)== ", data, re.MULTILINE):
        return True
    if _has_header(data):
        return True
    if len(head.data) < 1 << 16 or b"\x00" in data or data.lstrip().startswith(_FIRST_BYTES_OF_OTHERS):
        return False
    searched = 0
    for line in read_lines(head.path):
        if "Kernel Name" in line and _has_header(line.encode()):
            return True
        searched += len(line)
        if searched > _SEARCHED_BYTES:
            break
    return False


def _has_header(data: bytes) -> bool:
    for found in _HEADER_LINE.finditer(data):
        line = data[found.start() :].splitlines()[0].decode("utf-8", errors="replace")
        fields = _fields(line, _delimiter(line)) or []
        if _is_header(fields) or ("Kernel Name" in fields and "Invocations" in fields):
            return True
    return False


def read(path: Path) -> KernelCounters:
    """Read one file, plain or gzip-compressed: a report, or tables, which are joined.

    Values are brought to base units (ns, byte, byte/s, hz). A metric of the details page is named
    "<section>: <metric>", unless its name is ncu's own ("dram__bytes.sum"), which is the same in every section. A time
    that is not in the file is computed from cycles and their rate, where those are.

    Raises:
        InputError: the file is damaged, too large, or holds no table of ncu; the message says what it seems to be.
        MissingToolError: it is a report, and the package ncu-report is not installed.
    """
    stream = unpacked_stream(path, "table", most_bytes=MOST_BYTES, remedy="give the table of one run of ncu")
    if stream.peek(len(MAGIC))[: len(MAGIC)] == MAGIC:
        with unpacked(path) as report:
            return read_report(report, path)
    table = Table()
    _add(table, path)
    with suppress(OSError):  # its name may be too long
        if (rules := rules_file(path)).is_file():
            try:
                _add(table, rules)
            except InputError as error:
                table.problem(str(error))
    return table.counters()


def _add(table: Table, path: Path) -> None:
    """Add the tables of one file. Raises InputError where it has none."""
    seen = _Seen()
    header: Header | None = None
    for line, record in _records(seen.watch(read_lines(path, table.problem))):
        if record is None:
            table.problem(f"line {line} cannot be split into fields and was skipped")
        elif _is_header(record):
            header = Header.of(record)
        elif header is not None:
            if header.wide and not record[0].strip():
                header.set_units(record)
            elif len(record) > len(header.names):
                table.problem(f"line {line} has {len(record)} fields instead of {len(header.names)} and was skipped")
            elif _RECORD.match(record[0] + ","):
                table.add(header, record, line)
    if header is None:
        raise seen.no_table(path)


class _Seen:
    """What the text holds besides a table, for the message when there is none."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.summary = self.text = self.nvprof = False

    def watch(self, lines: Iterator[str]) -> Iterator[str]:
        for line in lines:
            if line.startswith("=="):
                match = _TOOL_LINE.match(line)
                if match and len(self.said) < 10 and not line.startswith("==PROF=="):
                    self.said.append(match[1])
            if "Invocations" in line:
                self.summary = True
                self.nvprof = self.nvprof or bool(_NVPROF_HEADER.search(line))
            self.nvprof = self.nvprof or "NVPROF is profiling" in line
            self.text = self.text or bool(line.strip())
            yield line

    def no_table(self, path: Path) -> InputError:
        """Return what is wrong with a file without a table."""
        if self.said:
            return InputError("tool-failed", f"{path} has no table, because ncu failed: {' '.join(self.said)[:600]}")
        if self.nvprof:
            return InputError(
                "file-format",
                f"{path} was written by nvprof, not by ncu: `bertbench analyze` shows it; core utilization needs "
                "the output of `ncu --csv`",
            )
        if self.summary:
            return InputError(
                "file-format",
                f"{path} is a summary of ncu without single kernels: export it without --print-summary",
            )
        if not self.text:
            return InputError(
                "file-empty", f"{path} is empty: nothing was profiled, or the disk was full; record again"
            )
        return InputError(
            "file-format",
            f"{path} has no table of ncu (no line with the columns ID and Kernel Name): give the output of `ncu --csv`",
        )


def _records(lines: Iterator[str]) -> Iterator[tuple[int, list[str] | None]]:
    """Yield (line number, fields) of every row that can belong to a table; None for what csv cannot split.

    Rows are distinguished from a program's output by their beginning, so a lone quote in the output does no harm.
    """
    delimiter = ","
    wait_for_units = False
    count = 0
    held: str | None = None
    while (line := held if held is not None else next(lines, None)) is not None:
        count += held is None
        held, start = None, count
        if _RECORD.match(line):
            wait_for_units = False
            parts = [line]
            quotes, torn = line.count('"'), False
            while quotes % 2 and len(parts) < _MOST_LINES_OF_A_RECORD:
                held = next(lines, None)
                if held is None:
                    torn = True
                    break
                count += 1
                if _RECORD.match(held) or "Kernel Name" in held:
                    break
                parts.append(held)
                quotes += held.count('"')
                held = None
            fields = _fields("\n".join(parts), delimiter)
            yield start, fields[:-1] if fields and torn else fields  # what ends inside quotes may be a part of a value
        elif "Kernel Name" in line:
            delimiter = _delimiter(line)
            fields = _fields(line, delimiter) or []
            wait_for_units = _is_header(fields)
            if wait_for_units:
                yield start, fields
        elif wait_for_units and _UNITS.match(line):
            wait_for_units = False
            yield start, _fields(line, delimiter)


def _delimiter(line: str) -> str:
    return max(",;\t", key=line.count)


def _fields(line: str, delimiter: str) -> list[str] | None:
    try:
        return next(csv.reader([line], delimiter=delimiter), None)
    except csv.Error:
        return None


def _is_header(fields: list[str]) -> bool:
    return "ID" in fields and "Kernel Name" in fields
