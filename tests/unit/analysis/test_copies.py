"""Memory copies by direction, with bandwidth and what computation hides."""

import dataclasses

import pytest
from support.timelines import timeline

from analysis.metrics.kernels.tables import COPY_ROW_COLUMNS, copy_rows, direction, host_memory


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Memcpy HtoD (Pageable -> Device)", ("HtoD", "pageable")),
        ("Memcpy DtoH (Device -> Pinned)", ("DtoH", "pinned")),
        ("[CUDA memcpy DtoD]", ("DtoD", "")),
        ("Memcpy HtoD (managed)", ("HtoD", "")),
        ("CopyHostToDevice", ("unknown", "")),
        ("MEMORY_COPY HOST_TO_DEVICE", ("unknown", "")),
        ("Memcpy HostToDevice", ("HtoD", "")),
        ("Memset (Device)", ("memset", "")),
        ("Memcpy of kind 77", ("unknown", "")),
    ],
)
def test_the_name_of_a_copy_says_its_direction_and_memory(name: str, expected: tuple[str, str]) -> None:
    assert (direction(name), host_memory(name)) == expected


def sample(sizes: list[int]):
    trace = timeline(
        2,
        kernels=[
            ("Memcpy HtoD (Pageable -> Device)", 7, 0, 100, -1, "memcpy"),
            ("Memcpy HtoD (Pageable -> Device)", 7, 200, 500, -1, "memcpy"),
            ("Memcpy DtoH (Device -> Pinned)", 7, 600, 650, -1, "memcpy"),
            ("Memset (Device)", 7, 700, 710, -1, "memset"),
            ("sgemm", 8, 50, 250, -1),
        ],
    )
    order = trace.kernels.assign(bytes=sizes) if sizes else trace.kernels
    return dataclasses.replace(trace, kernels=order)


def test_bytes_bandwidth_and_overlap_by_hand() -> None:
    # in order of start: HtoD, sgemm, HtoD, DtoH, Memset
    rows = copy_rows(sample([1000, 0, 3000, 500, 10])).set_index("direction")
    assert list(rows.index) == ["HtoD", "DtoH", "memset"]
    row = rows.loc["HtoD"]
    assert (row["rank"], row["host_memory"], row["count"], row["bytes"]) == (2, "pageable", 2, 4000)
    assert row["total_ms"] == pytest.approx(400e-6)
    assert row["bandwidth_gb_s"] == pytest.approx(10.0), "4,000 bytes in 400 ns"
    assert row["overlapped_share"] == pytest.approx(100 / 400), "50..100 and 200..250"
    assert rows.loc["DtoH", "overlapped_share"] == 0


def test_unknown_sizes_give_no_bandwidth() -> None:
    rows = copy_rows(sample([])).set_index("direction")
    assert rows["bytes"].isna().all() and rows["bandwidth_gb_s"].isna().all()
    partly = copy_rows(sample([1000, 0, -1, 500, 10])).set_index("direction")
    assert partly["bytes"].isna().to_dict() == {"HtoD": True, "DtoH": False, "memset": False}


def test_no_copies_give_a_table_without_rows() -> None:
    for trace in (timeline(), timeline(kernels=[("sgemm", 7, 0, 10)])):
        rows = copy_rows(trace)
        assert list(rows.columns) == list(COPY_ROW_COLUMNS) and len(rows) == 0
