"""Exports of nsys as files: damaged, foreign, packed ones, and public ones in ../shared/traces/nsys."""

import gzip
import sqlite3
from pathlib import Path

import pytest
from support import shared_files
from support.nsys_export import KERNEL_2022, NVTX_2022, Export, kernel, nvtx
from support.refusals import refused
from test_nsys_reader import only

from analysis.readers.nsys.reader import read
from common.errors import Code

TRACES = shared_files.TRACES / "nsys"


def big(path: Path, rows: int) -> Path:
    export = Export(path).strings(i3="gemm")
    export.table("NVTX_EVENTS", NVTX_2022, [nvtx(1, 2, text="a")])
    return export.table(
        "CUPTI_ACTIVITY_KIND_KERNEL", KERNEL_2022, [kernel(n, n + 1, 3) for n in range(1, rows + 1)]
    ).done()


def test_gzip_is_read_and_its_temporary_file_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    path = tmp_path / "a.sqlite.gz"
    path.write_bytes(gzip.compress(big(tmp_path / "a.sqlite", 100).read_bytes()))
    assert len(only(read(path)).kernels) == 100
    path.write_bytes(path.read_bytes()[:-20])
    with refused("file-truncated", path):
        read(path)
    assert list((tmp_path / "temporary").iterdir()) == []


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


@pytest.mark.parametrize(
    ("name", "content", "code", "fact"),
    [
        ("a.sqlite", b"", "file-empty", ""),
        ("a.sqlite", b"Start (ns),Duration\n1,2\n", "file-format", "SQLite"),
        ("a.sqlite.gz", b"\x1f\x8bgarbage", "file-damaged", ""),
        ("a.sqlite", b"SQLite format 3\0" + b"\xff" * 200, "file-truncated", "216"),
    ],
)
def test_a_foreign_file_is_named_with_what_to_do(
    tmp_path: Path, name: str, content: bytes, code: Code, fact: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with refused(code, name, fact):
        read(path)


def test_a_database_that_is_cut_short_is_refused_with_its_sizes(tmp_path: Path) -> None:
    path = big(tmp_path / "a.sqlite", 500)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with refused("file-truncated", path, f"{len(content) // 2:,} of {len(content):,} bytes"):
        read(path)


REAL = {
    # kernels, their total ns, ranges, GPU, problems that must be stated
    "pipit__tests__data__saxpy-mpi-cuda_nsys_perlmutter0": (5, 88_573_480, 22, "NVIDIA A100-SXM4-40GB", ()),
    "poolformer": (0, 0, 1113, "NVIDIA TITAN RTX", ("no kernel or copy",)),
    "result_2_7B_nvtx": (7328, None, 516, "NVIDIA A100-SXM4-80GB", ("Not all NVTX",)),
    "tests__power_iteration__baseline": (3689, None, 786, "Tesla T4", ("Not all NVTX", "Not all CUDA")),
}


@pytest.mark.public
@pytest.mark.parametrize("name", REAL)
def test_public_exports_have_their_kernels_ranges_gpus_and_problems(name: str) -> None:
    count, total, ranges, gpu, problems = REAL[name]
    path = TRACES / f"{name}.sqlite.gz"
    found = only(read(path))
    kernels = found.kernels[found.kernels["kind"] == "kernel"]
    durations = kernels["end"] - kernels["start"]
    assert (len(kernels), len(found.ranges)) == (count, ranges) and found.devices == {0: gpu}
    assert total is None or durations.sum() == total
    assert len(found.problems) == len(problems)
    assert all(part in problem for part, problem in zip(problems, found.problems, strict=True))
    assert "REDACTED" not in repr(found)
