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


def test_a_damaged_page_is_refused_in_the_words_of_sqlite(tmp_path: Path) -> None:
    path = big(tmp_path / "a.sqlite", 2000)
    content = bytearray(path.read_bytes())
    page = int.from_bytes(content[16:18], "big")
    middle = len(content) // page // 2 * page
    content[middle : middle + page] = b"\xff" * page
    path.write_bytes(content)
    with refused("file-damaged", path, "database disk image is malformed"):
        read(path)


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
        ("a.sqlite", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "file-format", "git lfs pull"),
        ("a.sqlite", b"", "file-empty", ""),
        ("a.sqlite", b"Start (ns),Duration\n1,2\n", "file-format", "SQLite"),
        (
            "run.nsys-rep",
            b"something else",
            "file-format",
            "nsys export --type=sqlite --output=run.sqlite run.nsys",
        ),
        ("old.qdrep", b"whatever", "file-format", "nsys export --type=sqlite"),
        ("a.sqlite.gz", b"\x1f\x8bgarbage", "file-truncated", ""),
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


def test_databases_of_others_are_refused(tmp_path: Path) -> None:
    with refused("file-format", "a.sqlite", "nsys export"):
        read(Export(tmp_path / "a.sqlite").done())
    nvprof = sqlite3.connect(tmp_path / "b.nvvp")
    nvprof.executescript("CREATE TABLE StringTable(_id_, value); CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start, end)")
    nvprof.close()
    with refused("file-format", "b.nvvp", "nvprof"):
        read(tmp_path / "b.nvvp")


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with refused("path-missing", "gone.sqlite"):
        read(tmp_path / "gone.sqlite")
    with refused("path-kind", tmp_path):
        read(tmp_path)


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


@pytest.mark.public
def test_a_domain_of_a_public_export_names_its_ranges() -> None:
    found = only(read(TRACES / "pipit__tests__data__saxpy-mpi-cuda_nsys_perlmutter0.sqlite.gz"))
    counts = found.ranges["name"].value_counts().to_dict()
    assert counts == {"MPI:MPI_Send": 10, "MPI:MPI_Recv": 5, "MPI:MPI_Init": 1, "MPI:MPI_Finalize": 1, "saxpy": 5}
