"""Which files are Nsight Compute's: the real CSVs of ../shared/traces/ncu, damaged and foreign ones."""

import csv
import gzip
from functools import partial
from pathlib import Path

import pytest
from support import ncu_csv, shared_files
from support.mutate import count_from_environment, mutations
from support.refusals import refused
from test_ncu_reader import LONG, PIPE, RAW, long_row, table

from analysis.counters import IDENTITY
from analysis.diagnose import cores as core_findings
from analysis.readers.ncu.reader import FORM, read, recognises
from analysis.readers.ncu.table import base_unit
from analysis.readers.registry import FORMS, read_head
from common.errors import Code, InputError

TRACES = shared_files.TRACES / "ncu"
REAL = {
    "attention_5-9__bert_flashattn_nsight.csv.gz": (10, None),
    "attention_5-9__bert_torch_nsight.csv.gz": (26, None),
    "kernel_0001__ncu.details.csv": (1, (12, 0)),
    "kernel_0001__ncu.metrics.csv": (1, (12, 0)),
    "tests__copy_blocked.csv": (1, (7, 5)),
}

# ---- which files are ncu's ----


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (ncu_csv.details().encode(), True),
        (ncu_csv.raw().encode("utf-16"), True),
        (gzip.compress(ncu_csv.raw().encode(), mtime=0), True),
        (b"==ERROR== Option did not match\n", True),
        (b'"Process ID","Kernel Name","Invocations","Metric Name"\n', True),
        (b"NVR\x00\x01\x02", True),
        (b"chatter\n" * 20_000 + ncu_csv.raw().encode(), True),
        (b"chatter\n" * 20_000 + ncu_csv.raw().split("\n", 1)[1].encode(), True),
        (b"chatter\n" * 20_000, False),
        (b"hello\n", False),
        (b'{"traceEvents": [{"name": "Kernel Name", "ID": 1}]}', False),
        (b"==1234== NVPROF is profiling process 1234\n", False),
        (b'"Time(%)","Total Time","Instances","Name"\n', False),
        (b"SQLite format 3\x00" + bytes(70_000), False),
    ],
)
def test_a_file_is_known_by_its_content(tmp_path: Path, content: bytes, expected: bool) -> None:
    path = tmp_path / "any.name"
    path.write_bytes(content)
    assert recognises(read_head(path)) is expected


@pytest.mark.parametrize("name", [*REAL, "ERROR_ONLY_raw.csv"])
def test_real_files_are_known_by_their_content(name: str) -> None:
    assert recognises(read_head(real(name))) and FORM in FORMS


# ---- hostile files ----


def test_damaged_files_give_a_table_or_an_input_error(tmp_path: Path) -> None:
    cells = [(ncu_csv.ranges("run", "forward"), ""), ("", ""), ("", ""), ("", ncu_csv.ranges("all-reduce"))]
    sources = [
        ncu_csv.details().encode(),
        ncu_csv.raw(cells).encode("utf-8-sig"),
        gzip.compress(ncu_csv.raw().encode()),
    ]
    path = tmp_path / "a.csv"
    read_well = 0
    for number_, source in enumerate(sources):
        for data in mutations(source, max(1, count_from_environment() // len(sources)), seed=number_):
            path.write_bytes(data)
            try:
                recognises(read_head(path))
                found = read(path)
            except InputError:
                continue
            assert tuple(found.kernels.columns[: len(IDENTITY)]) == IDENTITY
            read_well += 1
            if read_well % 5 == 0:
                core_findings.findings(found, window_ns=1e4)
    assert read_well > 0


def test_a_table_of_many_names_and_many_kernels_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    rows = [long_row(kernel, f"a__m{kernel}.sum", "inst", "1") for kernel in range(2000)]
    with refused("file-limit", "kernels", "metrics"):
        read(table(tmp_path, LONG, *rows))


def test_numbers_beyond_any_count_are_left_out(tmp_path: Path) -> None:
    huge = long_row(0, "a__b.sum", "Gbyte", "1e300")
    found = read(
        table(tmp_path, LONG, huge, long_row(1, "a__b.sum", "byte", "7"), long_row(10**30, "a__b.sum", "", "1"))
    )
    assert found.kernels["a__b.sum"].tolist()[1] == 7.0 and len(found.kernels) == 2
    assert any("which nothing counts" in problem for problem in found.problems)


def test_a_line_without_end_and_a_field_beyond_the_limit_of_csv_are_survived(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # The limit is of the process: a test before this one may have raised it.
    request.addfinalizer(partial(csv.field_size_limit, csv.field_size_limit(131_072)))
    long_name = "x" * 200_000
    found = read(
        table(tmp_path, "y" * 5_000_000, LONG, long_row(0, PIPE, "%", "1", name=long_name), long_row(1, PIPE, "%", "2"))
    )
    assert found.kernels["kernel_id"].tolist() == [1]
    assert any("cannot be split into fields" in problem for problem in found.problems)


# ---- what is no table ----


@pytest.mark.parametrize(
    ("content", "code", "fact"),
    [
        (b"", "file-empty", ""),
        (b"hello\n", "file-format", "ncu --csv"),
        (b"NVR\x00 a report", "file-format", "ncu --import"),
        (b"==ERROR== Option '--section x' did not match any section.\n", "tool-failed", "Option '--section x'"),
        (b'"Process ID","Kernel Name","Invocations","Metric Name"\n', "file-format", "--print-summary"),
        (
            b'"Device","Kernel","Invocations","Metric Name","Metric Description","Min","Max","Avg"\n',
            "file-format",
            "nvprof",
        ),
        (b'"Device","Kernel","Invocations","Event Name","Min","Max","Avg","Total"\n', "file-format", "nvprof"),
        (b"==12== NVPROF is profiling process 12, command: ./a\nInvocations  Metric Name\n", "file-format", "nvprof"),
        (b"version https://git-lfs.github.com/spec/v1\n", "file-format", "git lfs pull"),
        (gzip.compress(b"x" * 1000, mtime=0)[:20], "file-truncated", ""),
    ],
)
def test_what_is_no_table_is_told(tmp_path: Path, content: bytes, code: Code, fact: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with refused(code, path, fact):
        read(path)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with refused("path-missing", tmp_path / "none.csv"):
        read(tmp_path / "none.csv")


def test_a_table_without_kernels_gives_an_empty_frame_with_its_columns(tmp_path: Path) -> None:
    found = read(table(tmp_path, RAW, '"","","","cycle","ns","byte"'))
    assert found.kernels.empty and tuple(found.kernels.columns) == IDENTITY
    assert any("holds no kernel" in problem for problem in found.problems)


# ---- real files ----


def real(name: str) -> Path:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"{path} is not here: real traces are not part of the project")
    return path


@pytest.mark.parametrize("name", REAL)
def test_real_files_give_their_kernels_and_every_number_in_them(name: str) -> None:
    path = real(name)
    found = read(path)
    count, capability = REAL[name]
    assert (len(found.kernels), found.compute_capability) == (count, capability)
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    by_kernel = found.kernels.set_index(["process", "kernel_id"])
    checked = 0
    for row in csv.DictReader(text.decode().splitlines()):
        metric, value = row["Metric Name"], (row["Metric Value"] or "").replace(",", "")
        try:
            expected = float(value)
        except ValueError:
            continue
        column = metric if metric in by_kernel else f"{row['Section Name']}: {metric}"
        factor = base_unit(row["Metric Unit"])[0]
        assert by_kernel.loc[(int(row["Process ID"]), int(row["ID"])), column] == pytest.approx(expected * factor)
        checked += 1
    assert checked == int(found.kernels[list(found.metrics)].notna().sum().sum()) > 0


def test_every_real_file_is_looked_at() -> None:
    real("ERROR_ONLY_raw.csv")
    assert {path.name for path in TRACES.iterdir()} == {*REAL, "ERROR_ONLY_raw.csv"}


def test_known_values_of_real_files() -> None:
    details = read(real("kernel_0001__ncu.details.csv"))
    (row,) = details.kernels.to_dict("records")
    assert (row["process"], row["device"], row["duration_ns"], row["cycles"]) == (1740670, 0, 6750.0, 13485.0)
    assert row["dram__bytes_read.sum"] == 2.33e6 and details.units["dram__bytes_read.sum"] == "byte"
    assert any("flop_count_hp.sum is n/a" in problem for problem in details.problems)
    (row,) = read(real("tests__copy_blocked.csv")).kernels.to_dict("records")
    assert (row["duration_ns"], row["cycles"]) == (21_058_944.0, 12_319_469.0)


def test_a_real_file_of_a_failed_run_is_told_in_the_words_of_ncu() -> None:
    with refused("tool-failed", "Option '--section ", "did not match any section"):
        read(real("ERROR_ONLY_raw.csv"))
