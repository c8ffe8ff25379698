"""Reports of Nsight Systems (.nsys-rep, .qdrep): the nsys on PATH exports them to a temporary SQLite file."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from common.errors import InputError, StorageError
from common.tools import find_tool, run_program

REPORT_HEADER = b"NVIDIA Tegra Profiler"
"""What a report begins with."""
EXPORT_SECONDS = 900.0
"""Time limit of one export."""
_REMEDY = (
    "reports of Nsight Systems need it; install the version that recorded the report or a newer one, or give the "
    "file of `nsys export --type=sqlite FILE`"
)
_FULL = re.compile(r"disk is full|no space left|quota exceeded", re.IGNORECASE)
_SWITCH = re.compile(r"^\s+(?:-\w,\s+)?(--[a-z][a-z-]*)", re.MULTILINE)


def switches(help_text: str) -> frozenset[str]:
    """Return the long switches that the help of an nsys command names, such as "--cuda-graph-trace"."""
    return frozenset(_SWITCH.findall(help_text))


def export_arguments(help_text: str, report: Path, database: Path) -> list[str]:
    """Return the arguments of nsys that export a report: the switches that `nsys export --help` names."""
    known = switches(help_text) | {"--type", "--output"}
    wanted = {"--type": "sqlite", "--force-overwrite": "true", "--quiet": "true", "--output": str(database)}
    options = [f"{name}={value}" for name, value in wanted.items() if name in known]
    return ["export", *options, str(report.absolute())]  # a name may begin with a dash


@contextmanager
def exported(report: Path, given: Path) -> Iterator[Path]:
    """Give the SQLite export of a report as a temporary file. `given` is the file that the user gave, for messages."""
    nsys = str(find_tool("nsys", f"{given}: {_REMEDY}"))
    with tempfile.TemporaryDirectory(prefix="bertbench-") as folder:
        database = Path(folder) / "export.sqlite"
        help_text = run_program([nsys, "export", "--help"], 60).stdout
        done = run_program([nsys, *export_arguments(help_text, report, database)], EXPORT_SECONDS)
        # nsys 2022.4 exits with 0 after an export that a full disk has cut short.
        if _FULL.search(done.message):
            raise StorageError("disk-full", f"cannot export {given}: {folder} is full; set TMPDIR to another folder")
        if done.exit_code != 0 or not database.is_file():
            raise InputError(
                "trace-unsupported" if "newer" in done.message else "file-damaged",
                f"{nsys} cannot read {given} ({done.message}): copy it again, or use the version that recorded it",
            )
        yield database
