"""Reading the CSVs of Nsight Compute, small hand-made ones: forms, values and both pages."""

import csv
import math
from pathlib import Path

import pytest
from support import ncu_csv, shared_files
from support.refusals import refused
from support.shared_files import OWN, unpacked

from analysis.counters import IDENTITY
from analysis.readers.ncu import ranges_of, read
from analysis.readers.ncu_report import base_unit, number
from common.errors import Code

LONG = '"ID","Process ID","Kernel Name","Context","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name"'
RAW = '"ID","Process ID","Kernel Name","gpc__cycles_elapsed.max","gpu__time_duration.sum","dram__bytes.sum"'


def table(tmp_path: Path, *lines: str, ending: str = "\n", name: str = "a.csv") -> Path:
    path = tmp_path / name
    path.write_bytes((ending.join(lines) + ending).encode())
    return path


def test_the_raw_page_is_read_with_its_units_row_and_its_device(tmp_path: Path) -> None:
    names = ("display_name", "compute_capability_major", "compute_capability_minor", "device_index")
    path = table(
        tmp_path,
        "step 1 done, it's \"fine",
        "==PROF== Connected to process 7",
        RAW + "".join(f',"device__attribute_{name}"' for name in names),
        '"","","","cycle","msecond","Mbyte","","","",""',
        '"0","7","a","1,000","0.5","2.5","NVIDIA H200","9","0","3"',
        '"1","7","b","3,000","1.5","1,000","NVIDIA H200","9","0","3"',
        "==PROF== Disconnected from process 7",
        "42 samples",
    )
    found = read(path)
    assert list(found.kernels["name"]) == ["a", "b"] and list(found.kernels["device"]) == [3, 3]
    assert list(found.kernels["duration_ns"]) == [500_000.0, 1_500_000.0]
    assert list(found.kernels["dram__bytes.sum"]) == [2.5e6, 1e9] and found.units["dram__bytes.sum"] == "byte"
    assert (found.device_name, found.compute_capability) == ("NVIDIA H200", (9, 0)) and found.problems == ()
    assert not [name for name in found.metrics if name.startswith("device__")]


def test_a_metric_in_two_sections_is_one_column_and_a_label_in_two_sections_is_two(tmp_path: Path) -> None:
    cells = [("one", "a__b.sum", "inst", "5"), ("two", "a__b.sum", "inst", "5")]
    cells += [("one", "Memory Throughput", "%", "61"), ("two", "Memory Throughput", "Gbyte/s", "3")]
    found = read(table(tmp_path, LONG, *(f'"0","7","k","1","{s}","{n}","{u}","{v}",' for s, n, u, v in cells)))
    assert set(found.metrics) == {"a__b.sum", "one: Memory Throughput", "two: Memory Throughput"}
    assert found.units["two: Memory Throughput"] == "byte/s" and "duration_ns" in found.problems[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16,764,800,860,160.00", 16764800860160.0), (" 5 ", 5.0), ("-0.5", -0.5), ("1e3", 1000.0), (".5", 0.5),
        ("12 (3; 9)", 12.0), ("61.84%", 61.84),
        *((text, math.nan) for text in ("n/a", "", "5 kernels", "12,5", "1234,567", "inf", "nan", "1e999", "(32, 4)")),
    ],
)  # fmt: skip
def test_numbers(text: str, value: float) -> None:
    assert number(text) == pytest.approx(value, abs=0, nan_ok=True)


@pytest.mark.parametrize(
    ("unit", "factor", "base"),
    [("nsecond", 1, "ns"), ("usecond", 1e3, "ns"), ("ms", 1e6, "ns"), ("second", 1e9, "ns"), ("Mbyte", 1e6, "byte"),
     ("Gbyte/second", 1e9, "byte/s"), ("byte/nsecond", 1e9, "byte/s"), ("Gbyte/s", 1e9, "byte/s"), ("%", 1, "%"),
     ("Ghz", 1e9, "hz"), ("cycle/usecond", 1e6, "hz"), ("cycle/nsecond", 1e9, "hz"), ("inst/cycle", 1, "inst/cycle"),
     ("byte/block", 1, "byte/block"), ("", 1, ""), ("register/thread", 1, "register/thread"), ("Kinst", 1e3, "inst")],
)  # fmt: skip
def test_units(unit: str, factor: float, base: str) -> None:
    found = base_unit(unit)
    assert found[0] == pytest.approx(factor) and found[1] == base


def test_both_pages_of_one_run_give_equal_tables(tmp_path: Path) -> None:
    pages = [read(table(tmp_path, text, name=name)) for name, text in (("d", ncu_csv.details()), ("r", ncu_csv.raw()))]
    left, right = (page.kernels[[*IDENTITY, *ncu_csv.METRICS]] for page in pages)
    assert left.equals(right)
    assert pages[0].units == pages[1].units
    assert left["kernel_id"].tolist() == [0, 1, 0, 1] and left["process"].tolist() == [7, 7, 8, 8]
    assert left["cycles"].sum() == 20_000 and left["duration_ns"].sum() == 10_000
    assert left[ncu_csv.METRICS[1]].isna().tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("", ()),
        ('7  "<default domain>:a:none:none:none:none:none:none"', ("<default domain>@a",)),
        ('7  "d:a b:int64:3:ARGB:4278190335:ascii:a b" "d:bertbench:capture:none:none:none:none:none:none"',
         ("d@a b", "d@bertbench:capture")),
        ('"d:x:y:int64:3:ARGB:1:ascii:x:y"', ("d@x:y",)),
        ('3 "5:d:a:none:none:none:none:none:none"', ("d@a",)),
        ("d:a", ("d@a",)),
        ("nothing", ()),
    ],
)  # fmt: skip
def test_a_range_is_told_by_its_domain_and_name(cell: str, expected: tuple[str, ...]) -> None:
    assert ranges_of(cell) == expected


TRACES = shared_files.TRACES / "ncu"
DETAILS = (OWN / "ncu").glob("details*")
REAL = {
    "attention_5-9__bert_flashattn_nsight.csv.gz": (10, None),
    "attention_5-9__bert_torch_nsight.csv.gz": (26, None),
    "kernel_0001__ncu.details.csv": (1, (12, 0)),
    "kernel_0001__ncu.metrics.csv": (1, (12, 0)),
    "tests__copy_blocked.csv": (1, (7, 5)),
}


@pytest.mark.parametrize(
    ("content", "code", "fact"),
    [
        (b"hello\n", "file-format", "ncu --csv"),
        (b"==ERROR== Option '--section x' did not match any section.\n", "tool-failed", "Option '--section x'"),
        (b'"Process ID","Kernel Name","Invocations","Metric Name"\n', "file-format", "--print-summary"),
    ],
)
def test_what_is_no_table_is_told(tmp_path: Path, content: bytes, code: Code, fact: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with refused(code, path, fact):
        read(path)


@pytest.mark.parametrize(
    ("path", "count", "capability"),
    [(path, 4, (9, 0) if "20" in path.name or "21" in path.name else None) for path in sorted(DETAILS)]
    + [pytest.param(TRACES / name, *facts, marks=pytest.mark.public) for name, facts in REAL.items()],
)
def test_files_give_their_kernels_and_every_number_in_them(
    path: Path, count: int, capability: tuple[int, int] | None
) -> None:
    found = read(path)
    assert (len(found.kernels), found.compute_capability) == (count, capability)
    text = unpacked(path).decode(errors="replace")
    by_kernel = found.kernels.set_index(["process", "kernel_id"])
    checked = 0
    for row in csv.DictReader(line for line in text.splitlines() if line.startswith('"')):
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
