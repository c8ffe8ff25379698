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
_REMEDY = "install Nsight Systems, or give the file of `nsys export --type=sqlite FILE`"
_FULL = re.compile(r"disk is full|no space left|quota exceeded", re.IGNORECASE)


def export_arguments(report: Path, database: Path) -> list[str]:
    """Return the arguments of nsys that export a report."""
    # A name may begin with a dash.
    return ["export", "--type=sqlite", "--force-overwrite=true", f"--output={database}", str(report.absolute())]


@contextmanager
def exported(report: Path, given: Path) -> Iterator[Path]:
    """Give the SQLite export of a report as a temporary file. `given` is the file that the user gave, for messages."""
    nsys = str(find_tool("nsys", f"{given}: {_REMEDY}"))
    with tempfile.TemporaryDirectory(prefix="bertbench-") as folder:
        database = Path(folder) / "export.sqlite"
        done = run_program([nsys, *export_arguments(report, database)], EXPORT_SECONDS)
        # nsys 2022.4 exits with 0 after an export that a full disk has cut short.
        if _FULL.search(done.message):
            raise StorageError("disk-full", f"cannot export {given}: {folder} is full; set TMPDIR to another folder")
        if done.exit_code != 0 or not database.is_file():
            raise InputError(
                "tool-version" if "newer" in done.message else "file-damaged",
                f"{nsys} cannot read {given} ({done.message}): copy it again, or use the version that recorded it",
            )
        yield database
