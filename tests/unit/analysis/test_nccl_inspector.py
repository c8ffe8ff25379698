"""Lines of NCCL Inspector, and traces that are named and not read."""

from pathlib import Path

import pytest
from support.refusals import refused
from support.shared_files import OWN

from analysis.diagnose.explain import explain
from analysis.metrics.kernels.devices import LinkRates
from analysis.open import open_sources
from analysis.readers.nccl_inspector import read

LINES = OWN / "nccl" / "inspector.jsonl"


def test_calls_are_medians_by_collective_ranks_and_size() -> None:
    source = open_sources(LINES)
    assert source.kinds == ("nccl-inspector",) and source.problems == ()
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


def test_calls_are_shown_as_collectives_and_are_no_measured_links() -> None:
    found = {one.name for one in explain(open_sources(LINES))}
    assert any(name.startswith("collective_bandwidth") for name in found)
    assert not LinkRates.of(read(LINES)).measured


def test_a_line_of_others_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(LINES.read_text() + '{"header": {"n_ranks": 2}}\n')
    with refused("file-damaged", path, "line 6"):
        read(path)


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (
            b'[\n{"name": "Group API", "cat": "GROUP_API", "ph": "b", "id": 0, "pid": 1, "tid": 1, "ts": 3.5, '
            b'"args": {"groupApiId": 0, "groupDepth":1}},\n{}]\n',
            "NCCL Inspector",
        ),
        (b"<?xml version='1.0'?><nvvp-session/>", "nvprof --export-profile"),
        (b"\n\x0f\x18\x00\x50\x01\x40\x80\x80\x02\x32\x04\x0a\x02\x08\x06\n\x04\x18\x00\x50\x01", ".json"),
    ],
)
def test_a_known_format_that_is_not_read_is_named_with_what_to_give(tmp_path: Path, content: bytes, fact: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    with refused("file-format", path, fact):
        open_sources(path)
