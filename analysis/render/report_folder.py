"""The folder that a report is written into."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from common.atomic import remove_left_overs
from common.locks import locked

_LOCK = ".report.lock"


@contextmanager
def report_folder(folder: Path) -> Iterator[None]:
    """Hold the folder while its files are written, and first remove what killed processes left half written.

    Another report into the same folder waits. A folder that nothing came of is not left behind.

    Raises:
        StorageError: it cannot be made or written.
    """
    try:
        with locked(folder, "another report", "wait for it, or give another --out", wait=True, name=_LOCK, remove=True):
            for place in (folder, *folder.glob("profiles/*")):
                remove_left_overs(place)
            yield
    finally:
        with suppress(OSError):
            folder.rmdir()
