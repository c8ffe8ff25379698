"""Reading the CSVs of Nsight Compute, small hand-made ones: forms, values and both pages."""

import math
from pathlib import Path

import pytest
from support import ncu_csv

from analysis.counters import IDENTITY
from analysis.readers.ncu.reader import read
from analysis.readers.ncu.table import base_unit, number, ranges_of

LONG = '"ID","Process ID","Kernel Name","Context","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name"'
RAW = '"ID","Process ID","Kernel Name","gpc__cycles_elapsed.max","gpu__time_duration.sum","dram__bytes.sum"'
PIPE = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_elapsed"


def table(tmp_path: Path, *lines: str, ending: str = "\n", name: str = "a.csv") -> Path:
    path = tmp_path / name
    path.write_bytes((ending.join(lines) + ending).encode())
    return path


def long_row(kernel: int, metric: str, unit: str, value: str, process: int = 7, name: str = "gemm") -> str:
    return f'"{kernel}","{process}","{name}","1","s","{metric}","{unit}","{value}",'


# ---- forms ----


def test_the_details_page_gives_one_row_per_kernel(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        LONG,
        long_row(0, "gpu__time_duration.sum", "usecond", "2.50"),
        long_row(0, "gpc__cycles_elapsed.max", "cycle", "4,000"),
        long_row(0, PIPE, "%", "12.5"),
        long_row(1, "gpu__time_duration.sum", "nsecond", "1,500"),
        long_row(1, "gpc__cycles_elapsed.max", "cycle", "2,000.00"),
    )
    found = read(path)
    assert tuple(found.kernels.columns[: len(IDENTITY)]) == IDENTITY
    assert list(found.kernels["duration_ns"]) == [2500.0, 1500.0] and list(found.kernels["cycles"]) == [4000.0, 2000.0]
    assert found.kernels[PIPE][0] == 12.5 and math.isnan(found.kernels[PIPE][1])
    assert (found.units[PIPE], found.units["gpu__time_duration.sum"]) == ("%", "ns")
    assert found.metrics == ("gpu__time_duration.sum", "gpc__cycles_elapsed.max", PIPE)


def test_the_raw_page_is_read_with_its_units_row(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "step 1 done, it's \"fine",
        "==PROF== Connected to process 7",
        RAW,
        '"","","","cycle","msecond","Mbyte"',
        '"0","7","a","1,000","0.5","2.5"',
        '"1","7","b","3,000","1.5","1,000"',
        "==PROF== Disconnected from process 7",
        "42 samples",
    )
    found = read(path)
    assert list(found.kernels["name"]) == ["a", "b"]
    assert list(found.kernels["duration_ns"]) == [500_000.0, 1_500_000.0]
    assert list(found.kernels["dram__bytes.sum"]) == [2.5e6, 1e9] and found.units["dram__bytes.sum"] == "byte"
    assert found.problems == ()


def test_the_raw_page_names_the_device_and_its_attributes_are_no_metrics(tmp_path: Path) -> None:
    head = (
        RAW
        + ',"device__attribute_display_name","device__attribute_compute_capability_major"'
        + ',"device__attribute_compute_capability_minor","device__attribute_device_index"'
    )
    found = read(
        table(tmp_path, head, '"","","","","","","","","",""', '"0","7","a","1","2","3","NVIDIA H200","9","0","3"')
    )
    assert (found.device_name, found.compute_capability) == ("NVIDIA H200", (9, 0))
    assert list(found.kernels["device"]) == [3]
    assert not [name for name in found.metrics if name.startswith("device__")]


def test_the_same_ids_of_two_processes_are_two_kernels(tmp_path: Path) -> None:
    rows = [long_row(0, PIPE, "%", value, process) for process, value in ((7, "1"), (8, "2"))]
    found = read(table(tmp_path, LONG, *rows)).kernels
    assert list(zip(found["process"], found["kernel_id"], found[PIPE], strict=True)) == [(7, 0, 1.0), (8, 0, 2.0)]


def test_several_tables_in_one_file_are_joined(tmp_path: Path) -> None:
    first, second = ((RAW, '"","","","cycle","ns","byte"', f'"0","{process}","a","1","2","3"') for process in (7, 8))
    found = read(table(tmp_path, *first, "==PROF== more", *second))
    assert list(found.kernels["process"]) == [7, 8] and list(found.kernels["duration_ns"]) == [2.0, 2.0]


def test_rows_shorter_than_the_header_and_rows_of_rules_are_read(tmp_path: Path) -> None:
    rule = '"0","7","gemm","1","SpeedOfLight","","","","SOLBottleneck"'
    found = read(table(tmp_path, LONG, rule, '"0","7","gemm","1","s","a__b.sum","inst","5"'))
    assert list(found.kernels["a__b.sum"]) == [5.0] and found.metrics == ("a__b.sum",)


def test_a_row_that_is_cut_off_is_told(tmp_path: Path) -> None:
    found = read(table(tmp_path, LONG, long_row(0, "a__b.sum", "inst", "5"), '"0","7","gemm","1","s","c__d.sum","in'))
    assert any("line 3 ends before the value of c__d.sum" in problem for problem in found.problems)
    assert list(found.kernels["a__b.sum"]) == [5.0]


def test_a_row_longer_than_the_header_is_left_out_and_told(tmp_path: Path) -> None:
    unquoted = "1,7,f(int, int, int),1,s,a__b.sum,inst,12,319,469"
    found = read(table(tmp_path, LONG, long_row(0, "a__b.sum", "inst", "5"), unquoted))
    assert list(found.kernels["kernel_id"]) == [0]
    assert any("line 3 has 12 fields, the header has 9" in problem for problem in found.problems)


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_line_endings_do_not_matter(tmp_path: Path, ending: str) -> None:
    path = table(tmp_path, "x", LONG, long_row(0, PIPE, "%", "1"), long_row(1, PIPE, "%", "2"), ending=ending)
    assert list(read(path).kernels[PIPE]) == [1.0, 2.0]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp949", "utf-16"])
def test_encodings_are_told_apart(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("\n".join(["커널", LONG, long_row(0, PIPE, "%", "1", name="커널")]).encode(encoding))
    assert list(read(path).kernels["name"]) == ["커널"]


def test_bytes_of_no_encoding_do_not_stop_the_reading(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xff\x00\x80\xfe\n" + "\n".join([LONG, long_row(0, PIPE, "%", "1")]).encode())
    assert list(read(path).kernels[PIPE]) == [1.0]


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_save_by_a_spreadsheet_without_quotes_is_read(tmp_path: Path, delimiter: str) -> None:
    lines = [line.replace('"', "").replace(",", delimiter) for line in (LONG, long_row(0, PIPE, "%", "1.5"))]
    assert list(read(table(tmp_path, *lines)).kernels[PIPE]) == [1.5]


def test_a_field_with_a_line_break_stays_in_its_row(tmp_path: Path) -> None:
    rule = '"0","7","gemm","1","SpeedOfLight","","","","a rule that\nsays ""two"" lines"'
    broken = long_row(1, PIPE, "%", "2", name="lambda\n[with T = int]")
    found = read(table(tmp_path, LONG, long_row(0, PIPE, "%", "1"), rule, broken)).kernels
    assert list(found[PIPE]) == [1.0, 2.0] and found["name"][1] == "lambda\n[with T = int]"


# ---- values ----


def test_values_that_are_no_numbers_are_unknown_and_told(tmp_path: Path) -> None:
    values = ["n/a", "", "all", "CachePreferNone", "nan", "inf", "7"]
    rows = [long_row(kernel, "a__b.sum", "inst", value) for kernel, value in enumerate(values)]
    found = read(table(tmp_path, LONG, *rows))
    assert found.kernels["a__b.sum"].notna().tolist() == [False] * 6 + [True]
    assert any("a__b.sum is n/a for some kernels" in problem for problem in found.problems)


def test_a_metric_in_two_sections_is_one_column_and_a_label_in_two_sections_is_two(tmp_path: Path) -> None:
    def row(section: str, name: str, unit: str, value: str) -> str:
        return f'"0","7","k","1","{section}","{name}","{unit}","{value}",'

    path = table(
        tmp_path,
        LONG,
        row("one", "a__b.sum", "inst", "5"),
        row("two", "a__b.sum", "inst", "5"),
        row("one", "Memory Throughput", "%", "61"),
        row("two", "Memory Throughput", "Gbyte/s", "3"),
    )
    found = read(path)
    assert set(found.metrics) == {"a__b.sum", "one: Memory Throughput", "two: Memory Throughput"}
    assert found.units["two: Memory Throughput"] == "byte/s" and found.problems[0].startswith("duration_ns of 1")


def test_two_different_values_of_one_metric_are_told(tmp_path: Path) -> None:
    found = read(table(tmp_path, LONG, long_row(0, "a__b.sum", "inst", "5"), long_row(0, "a__b.sum", "inst", "9")))
    assert list(found.kernels["a__b.sum"]) == [5.0]
    assert any("two values for one kernel" in problem for problem in found.problems)


def test_units_that_differ_by_row_become_one(tmp_path: Path) -> None:
    rows = [long_row(i, "dram__bytes.sum", unit, "2") for i, unit in enumerate(["byte", "Kbyte", "Mbyte", "Gbyte"])]
    assert list(read(table(tmp_path, LONG, *rows)).kernels["dram__bytes.sum"]) == [2.0, 2e3, 2e6, 2e9]


@pytest.mark.parametrize(
    ("text", "value"),
    [("16,764,800,860,160.00", 16764800860160.0), (" 5 ", 5.0), ("-0.5", -0.5), ("1e3", 1000.0), (".5", 0.5),
     ("12 (3; 9)", 12.0), ("61.84%", 61.84), ("n/a", None), ("", None), ("all", None), ("5 kernels", None),
     ("12,5", None), ("1234,567", None), ("inf", None), ("nan", None), ("1e999", None), ("(32, 4, 1)", None)],
)  # fmt: skip
def test_numbers(text: str, value: float | None) -> None:
    assert number(text) == value


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


def test_a_value_with_a_decimal_comma_is_left_out_and_told(tmp_path: Path) -> None:
    lines = [line.replace('"', "").replace(",", ";") for line in (LONG, long_row(0, "a__b.sum", "inst", "9"))]
    found = read(table(tmp_path, lines[0], lines[1].replace(";9;", ";12,5;"), lines[1].replace("0;7", "1;7")))
    assert found.kernels["a__b.sum"].tolist()[1] == 9.0 and math.isnan(found.kernels["a__b.sum"][0])
    assert any("'12,5', which is no number" in problem for problem in found.problems)


def test_a_time_that_is_not_in_the_file_is_cycles_over_their_rate(tmp_path: Path) -> None:
    rows = [long_row(0, "sm__cycles_elapsed.avg", "cycle", "3,000"),
            long_row(0, "sm__cycles_elapsed.avg.per_second", "cycle/nsecond", "1.5")]  # fmt: skip
    assert list(read(table(tmp_path, LONG, *rows)).kernels["duration_ns"]) == [pytest.approx(2000.0)]
    rows.append(long_row(0, "gpu__time_duration.sum", "nsecond", "1,999"))
    assert list(read(table(tmp_path, LONG, *rows)).kernels["duration_ns"]) == [1999.0]


# ---- both pages ----


def test_both_pages_of_one_run_give_equal_tables(tmp_path: Path) -> None:
    pages = [read(table(tmp_path, text, name=name)) for name, text in (("d", ncu_csv.details()), ("r", ncu_csv.raw()))]
    left, right = (page.kernels[[*IDENTITY, *ncu_csv.METRICS]] for page in pages)
    assert left.equals(right)
    assert pages[0].units == pages[1].units
    assert left["kernel_id"].tolist() == [0, 1, 0, 1] and left["process"].tolist() == [7, 7, 8, 8]
    assert left["cycles"].sum() == 20_000 and left["duration_ns"].sum() == 10_000
    assert left[ncu_csv.METRICS[1]].isna().tolist() == [False, True, False, False]


@pytest.mark.parametrize("page", [ncu_csv.details, ncu_csv.raw])
def test_ranges_are_read_beside_the_kernels_and_are_no_metrics(tmp_path: Path, page: object) -> None:
    cells = [(ncu_csv.ranges("run", "step 3", "forward"), ""), ("", ""), ("", ncu_csv.ranges("all-reduce")), ("", "")]
    found = read(table(tmp_path, page(cells)))  # type: ignore[operator]
    assert found.kernels["push_pop_ranges"].tolist() == [
        ("bertbench@run", "bertbench@step 3", "bertbench@forward"), (), (), ()]  # fmt: skip
    assert found.kernels["start_stop_ranges"].tolist() == [(), (), ("bertbench@all-reduce",), ()]
    assert set(found.metrics) == {"gpc__cycles_elapsed.max", "gpu__time_duration.sum", *ncu_csv.METRICS}


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
