"""Reports of Nsight Systems (.nsys-rep, .qdrep): the nsys on PATH exports them to SQLite, once, into a cache."""

import contextlib
import hashlib
import os
import re
import shutil
import sqlite3
import tempfile
from pathlib import Path

from analysis.readers.sqlite_database import open_database
from common.atomic import storage_errors
from common.errors import InputError, MissingToolError, StorageError
from common.locks import locked
from common.tools import dotted, find_tool, run_program, version_in

REPORT_HEADER = b"NVIDIA Tegra Profiler"
"""What a report begins with."""
EXPORT_SECONDS = 900.0
"""Time limit of one export."""
_REMEDY = (
    "only nsys reads its reports; install Nsight Systems, of the version that recorded the report or newer, or run "
    "`nsys export --type=sqlite FILE` where it is installed and give that file"
)
_FULL = re.compile(r"disk is full|no space left|quota exceeded", re.IGNORECASE)
_NEWER = re.compile(r"\bnewer\b|unsupported\s+(?:\w+\s+){0,2}version|version\b.{0,60}\bnot supported", re.IGNORECASE)
_SWITCH = re.compile(r"^\s+(?:-\w,\s+)?(--[a-z][a-z-]*)", re.MULTILINE)


def switches(help_text: str) -> frozenset[str]:
    """Return the long switches that the help of an nsys command names, such as "--cuda-graph-trace"."""
    return frozenset(_SWITCH.findall(help_text))


def export_arguments(help_text: str, report: Path, database: Path) -> list[str]:
    """Return the arguments of nsys that export a report: the switches that `nsys export --help` names."""
    known = switches(help_text)
    wanted = {"--type": "sqlite", "--force-overwrite": "true", "--quiet": "true", "--output": str(database)}
    options = [f"{name}={value}" for name, value in wanted.items() if name in known or name in ("--type", "--output")]
    return ["export", *options, str(report.absolute())]  # a name may begin with a dash


def exported(report: Path, given: Path) -> Path:
    """Return the SQLite export of a report, from the cache where this version of nsys has exported it before.

    The cache is $XDG_CACHE_HOME/bertbench/nsys (default ~/.cache/bertbench/nsys). An export has the name of the
    report's SHA-256 and nsys's version, and is there as a whole or not at all. Two processes export a report once:
    the second waits for the first. `given` is the file that the user gave, for messages.
    """
    try:
        nsys = find_tool("nsys", _REMEDY)
    except MissingToolError as error:
        raise MissingToolError(error.code, f"{given} is a report of Nsight Systems, but {error}") from error
    printed = run_program([str(nsys), "--version"], 60).message
    version = version_in(printed)
    if version is None:
        raise MissingToolError("tool-version", f"{nsys} --version prints no version ({printed!r}): reinstall it")
    with report.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bertbench" / "nsys"
    database = cache / f"{digest[:40]}-{dotted(version)}" / "export.sqlite"
    if database.is_file():
        return database
    try:
        with locked(database.parent, "another export of this report", "wait for it", wait=True):
            if not database.is_file():
                _export(nsys, dotted(version), report, given, database)
    except StorageError as error:
        raise StorageError(
            error.code, f"cannot keep the export of {given}: {error}; XDG_CACHE_HOME selects another folder"
        ) from error
    return database


def _export(nsys: Path, version: str, report: Path, given: Path, target: Path) -> None:
    """Export into a folder of its own, then move the database to `target`; the caller holds the lock of its folder."""
    for left_over in target.parent.glob(".export-*"):  # of a process that was killed
        shutil.rmtree(left_over, ignore_errors=True)
    with storage_errors(target), tempfile.TemporaryDirectory(prefix=".export-", dir=target.parent) as scratch:
        database = Path(scratch) / target.name
        help_text = run_program([str(nsys), "export", "--help"], 60).stdout
        done = run_program([str(nsys), *export_arguments(help_text, report, database)], EXPORT_SECONDS)
        # nsys 2022.4 exits with 0 after an export that a full disk has cut short.
        if _FULL.search(done.stderr + done.stdout):
            raise StorageError("disk-full", f"cannot write {target}: the disk is full: free some space, then run again")
        if done.exit_code != 0 or not database.is_file():
            newer = bool(_NEWER.search(done.message))
            why = "a newer nsys recorded it" if newer else "it is damaged or truncated, or a newer nsys recorded it"
            raise InputError(
                "trace-unsupported" if newer else "file-damaged",
                f"nsys {version} cannot read {given} (nsys says: {done.message}): {why}; give an SQLite export by the "
                "version that recorded it, or copy the report again",
            )
        with open_database(database, given):
            pass
        forget_environment(database)
        database.replace(target)


def forget_environment(database: Path) -> None:
    """Remove the environment variables of the program from an export.

    Raises:
        InputError: it is damaged.
        StorageError: the disk is full.
    """
    try:
        with contextlib.closing(sqlite3.connect(database)) as connection:
            connection.execute("DROP TABLE IF EXISTS TARGET_INFO_SYSTEM_ENV")
            connection.commit()
            connection.execute("VACUUM")
    except sqlite3.Error as error:
        if _FULL.search(str(error)):
            raise StorageError(
                "disk-full", f"cannot write {database}: the disk is full: free some space, then run again"
            ) from error
        raise InputError("file-damaged", f"{database} is not a valid SQLite export ({error}): record again") from error
