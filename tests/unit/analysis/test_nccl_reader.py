"""Output of nccl-tests: hand-made logs of old and new versions, and a real one; lines of NCCL Inspector."""

from pathlib import Path

import pytest
from support import shared_files
from support.refusals import refused
from support.shared_files import OWN

from analysis.diagnose.explain import explain
from analysis.names import bus_factor
from analysis.open import open_sources
from analysis.readers.nccl import read, recognises
from analysis.readers.registry import find_reader, read_head

LINES = OWN / "nccl" / "inspector.jsonl"
REAL = shared_files.TRACES / "misc/nccl-tests__nccl_allreduce.log"

BEGIN = "# nThread 1 nGpus 4 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1\n"
RANKS = "".join(
    f"#  Rank  {n} Group  0 Pid   69 on node{n // 2} device  {n % 2} [0000:04:00] NVIDIA H100\n" for n in range(4)
)
HEADER = """\
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
# 4 ranks: busbw = algbw x 2 x 3 / 4; 2 MB in 100 us is 20 GB/s.
NEW = f"""\
# nccl-tests version 2.17.6 nccl-headers=22805 nccl-library=22805
# Collective test starting: all_reduce_perf
{BEGIN}#
# Using devices
{RANKS}#
{HEADER}           0           0   float     sum      -1    10.00    0.00    0.00      0    11.00    0.00    0.00      0
node0:12:34 [0] NCCL INFO Channel 00/02 : 0 1 2 3
     2000000        500000     float     sum      -1    100.0   20.00   30.00      0    80.00   25.00   37.50      2
[1,0]<stdout>:  4000000   1000000   float   sum    -1   2.0e+02   20.00   30.00    N/A    80.00   25.00   37.50    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 16.875
#
"""
OLD_GATHER = f"""\
$ mpirun -np 4 ./build/all_gather_perf -b 8 -e 1M
NCCL version 2.4.7+cuda10.1
{BEGIN}{RANKS}
#       size         count    type     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)             (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     4000000        250000    half    100.0   40.00   30.00  1e-07    100.0   40.00   30.00  0e+00
# Avg bus bandwidth    : 30
"""


def log(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "nccl.log"
    path.write_text(text)
    return path


def test_both_placements_of_every_size_are_read_between_foreign_lines(tmp_path: Path) -> None:
    path = log(tmp_path, NEW)
    assert recognises(read_head(path))
    (found,) = read(path)
    table = found.table
    assert list(table["size_bytes"]) == [0, 0, 2_000_000, 2_000_000, 4_000_000, 4_000_000]
    assert list(table["placement"]) == ["out_of_place", "in_place"] * 3
    assert list(table["time_us"]) == [10, 11, 100, 80, 200, 80] and list(table["wrong"]) == [0, 0, 0, 2, -1, -1]
    assert set(table["collective"]) == {"all_reduce"} and set(table["redop"]) == {"sum"} and set(table["root"]) == {-1}
    assert found.facts == {"ranks": 4}
    assert any(problem.startswith("1 rows have wrong elements") for problem in found.problems)


def test_an_older_version_without_redop_and_root_is_read_with_its_name_from_the_command(tmp_path: Path) -> None:
    first, found = read(log(tmp_path, NEW + OLD_GATHER))
    assert set(first.table["collective"]) == {"all_reduce"}
    assert list(found.table["collective"]) == ["all_gather"] * 2 and list(found.table["redop"]) == ["", ""]
    assert list(found.table["busbw_gb_s"]) == [30.0, 30.0] and list(found.table["wrong"]) == [1, 0]


@pytest.mark.parametrize(
    ("collective", "ranks", "factor"),
    [
        ("all_reduce", 4, 1.5),
        ("reduce_scatter", 8, 0.875),
        ("all_gather", 2, 0.5),
        ("broadcast", 8, 1.0),
        ("", 4, None),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(collective: str, ranks: int, factor: float | None) -> None:
    assert bus_factor(collective, ranks) == factor


@pytest.mark.public
def test_the_real_log_of_eight_a100_is_read_whole() -> None:
    assert find_reader(read_head(REAL)) == "nccl"
    (found,) = read(REAL)
    rows = [line.split() for line in REAL.read_text().splitlines() if line.strip() and line.split()[0].isdigit()]
    for offset, placement in ((4, "out_of_place"), (8, "in_place")):
        part = found.table[found.table["placement"] == placement]
        for number, column in enumerate(("time_us", "algbw_gb_s", "busbw_gb_s")):
            assert list(part[column]) == [float(row[offset + number]) for row in rows]
    assert len(found.table) == 68 and found.facts["ranks"] == 8
    # nccl-tests' average is over every row of both placements.
    assert found.table["busbw_gb_s"].mean() == pytest.approx(68.4048, abs=0.01)
    assert set(found.table["collective"]) == {"all_reduce"}


def test_calls_are_medians_by_collective_ranks_and_size() -> None:
    source = open_sources(LINES)
    assert source.kinds == ("nccl",) and source.problems == ()
    rows = {
        (item.table["collective"][0], item.facts["ranks"]): item.table.to_dict("records") for item in source.summaries
    }
    assert set(rows) == {("all_reduce", 8), ("reduce_scatter", 8), ("send_recv", 2)}
    (row,) = rows["all_reduce", 8]
    # 8 MB in 100, 160 and 200 us: 80, 50 and 40 GB/s, x 2 x 7/8.
    assert (row["size_bytes"], row["calls"], row["time_us"]) == (8_000_000, 3, 160)
    assert (row["algbw_gb_s"], row["busbw_gb_s"]) == (50, 87.5)
    (row,) = rows["reduce_scatter", 8]  # 1 MB of each of 8 ranks
    assert (row["size_bytes"], row["algbw_gb_s"], row["busbw_gb_s"]) == (8_000_000, 80, 70)


def test_calls_are_shown_as_collectives() -> None:
    found = {one.name for one in explain(open_sources(LINES))}
    assert any(name.startswith("collective_bandwidth") for name in found)


def test_a_line_of_others_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(LINES.read_text() + '{"header": {"n_ranks": 2}}\n')
    with refused("file-damaged", path):
        open_sources(path)
