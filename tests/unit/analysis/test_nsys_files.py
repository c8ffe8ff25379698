"""Exports of nsys as files: read alone, cut short."""

import sqlite3
from pathlib import Path

from support.nsys_export import KERNEL_2022, NVTX_2022, Export, kernel, nvtx
from support.refusals import refused
from test_nsys_reader import only

from analysis.readers.nsys import read


def big(path: Path, rows: int) -> Path:
    export = Export(path).strings(i3="gemm")
    export.table("NVTX_EVENTS", NVTX_2022, [nvtx(1, 2, text="a")])
    return export.table(
        "CUPTI_ACTIVITY_KIND_KERNEL", KERNEL_2022, [kernel(n, n + 1, 3) for n in range(1, rows + 1)]
    ).done()


def test_the_file_is_only_read(tmp_path: Path) -> None:
    path = big(tmp_path / "a.sqlite", 100)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")  # SQLite writes files beside such a database on reading it
    connection.close()
    before = path.read_bytes()
    (tmp_path / "folder").mkdir()
    path = path.rename(tmp_path / "folder" / "with ?#% in it.sqlite")
    path.parent.chmod(0o500)
    try:
        assert len(only(read(path)).kernels) == 100
    finally:
        path.parent.chmod(0o700)
    assert path.read_bytes() == before and [item.name for item in path.parent.iterdir()] == [path.name]


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 200)
    with refused("file-truncated", path, "216"):
        read(path)
