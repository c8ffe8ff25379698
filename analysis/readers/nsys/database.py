"""Opens SQLite exports of Nsight Systems, and says of other files what they are instead."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.readers.sqlite_database import SQLITE_HEADER, Database, open_database, unpacked
from common.errors import InputError

if TYPE_CHECKING:
    from analysis.readers.registry import Head

_REPORT_SUFFIXES = (".nsys-rep", ".qdrep", ".qdstrm")
_OWN_TABLES = ("NVTX_EVENTS", "OSRT_API", "ANALYSIS_DETAILS", "META_DATA_EXPORT", "EXPORT_META_DATA")


@contextmanager
def open_export(path: Path) -> Iterator[Database]:
    """Open an export, plain or gzip-compressed, for reading alone.

    Raises:
        InputError: the file cannot be read, is cut short, or is no SQLite export of nsys; the message says what it
            seems to be and what to give instead.
    """
    with unpacked(path) as plain:
        check_header(path, plain, "`nsys export --type=sqlite`")
        with open_database(plain, path) as database:
            _check_tables(path, database)
            yield database


def is_of_nvprof(head: "Head") -> bool:
    """Return whether an SQLite database is nvprof's, by its tables."""
    if b"StringIds" in head.data:
        return False
    if b"StringTable" in head.data or not head.path.is_file():
        return b"StringTable" in head.data
    try:
        with head.path.open("rb") as file:
            plain = file.read(2) != b"\x1f\x8b"
        if not plain:
            return False
        with open_database(head.path) as database:
            return "StringTable" in database.tables and "StringIds" not in database.tables
    except (OSError, InputError):
        return False


def check_header(path: Path, plain: Path, writer: str) -> None:
    """Look at a database's header. Raises InputError where it is none, or is cut short.

    Args:
        path: the file that was given.
        plain: the same, unpacked.
        writer: what writes such a file, for the message.
    """
    with plain.open("rb") as file:
        head = file.read(128)
        size = file.seek(0, os.SEEK_END)
    if head.startswith(b"version https://git-lfs"):
        raise InputError(
            "file-format", f"{path} is a Git LFS pointer, not the export itself: run `git lfs pull`, then try again"
        )
    suffixes = path.suffixes[-2:]
    if head.startswith(b"NVIDIA Tegra Profiler") or any(suffix in _REPORT_SUFFIXES for suffix in suffixes):
        raise InputError(
            "file-format",
            f"{path} is a report of nsys, not an export of it: run `nsys export --type=sqlite --output="
            f"{path.name.split('.')[0]}.sqlite {path.name}` with the nsys that recorded it or a newer one, and give "
            "that file",
        )
    if not head.startswith(SQLITE_HEADER):
        what = "is empty" if not size else "is no SQLite database"
        raise InputError("file-format" if size else "file-empty", f"{path} {what}: give what {writer} wrote")
    page_size = int.from_bytes(head[16:18], "big")
    pages = int.from_bytes(head[28:32], "big")
    expected = pages * (65536 if page_size == 1 else page_size)
    if size < expected:
        raise InputError(
            "file-truncated", f"{path} is cut short: {size:,} of {expected:,} bytes; copy it or export it again"
        )


def _check_tables(path: Path, database: Database) -> None:
    if "StringTable" in database.tables and "StringIds" not in database.tables:
        raise InputError(
            "file-format", f"{path} is a database of nvprof, not an export of nsys: the reader nvvp takes it"
        )
    known = [name for name in database.tables if name in _OWN_TABLES or name.startswith(("CUPTI_", "TARGET_INFO_"))]
    if not known:
        raise InputError(
            "file-format",
            f"{path} is an SQLite database without any table of nsys (NVTX_EVENTS, CUPTI_ACTIVITY_KIND_...): "
            "give what `nsys export --type=sqlite` wrote",
        )
