"""`bertbench allreduce` on real traces and on small ones, as a user calls it."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from support import shared_files
from support.commands import document

KINETO = shared_files.TRACES / "kineto"
NAMES = ["window", "all_reduce_by_rank", "collectives", "stragglers", "buckets", "clock_offsets"]


def trace(path: Path, events: list[dict[str, Any]], rank: int = 0) -> Path:
    information = {"backend": "nccl", "rank": rank, "world_size": 2}
    path.write_text(json.dumps({"schemaVersion": 1, "distributedInfo": information, "traceEvents": events}))
    return path


def event(name: str, start: float, length: float, category: str, **args: object) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length, "args": args}


def two_ranks(folder: Path) -> Path:
    """Rank 1 computes until 300 us, rank 0 until 100; the transfer takes 50, both go on until 450."""
    for rank, until in ((0, 100), (1, 300)):
        gpu = {"device": 0, "stream": 7}
        talk = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
        events = [
            event("ProfilerStep#1", 0, 460, "user_annotation"),
            event("cudaLaunchKernel", 1, 2, "cuda_runtime", correlation=1),
            event("cudaLaunchKernel", 4, 2, "cuda_runtime", correlation=2),
            event("cudaStreamWaitEvent", 7, 1, "cuda_runtime", correlation=9),
            event("cudaLaunchKernel", 9, 2, "cuda_runtime", correlation=3),
            event("cudaDeviceSynchronize", 12, 440, "cuda_runtime", correlation=10),
            event("gemm", 5, until - 5, "kernel", correlation=1, **gpu),
            event(talk, until, 350 - until, "kernel", correlation=2, device=0, stream=20),
            event("gemm", 350, 100, "kernel", correlation=3, **gpu),
        ]
        trace(folder / f"rank{rank}.json", events, rank)
    return folder


def test_a_folder_of_ranks_gives_every_table(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    found = document("allreduce", two_ranks(tmp_path / "traces"), "--csv", tmp_path / "out")["findings"]
    assert list(found) == NAMES
    assert [row["exposed_wait_ms"] for row in found["all_reduce_by_rank"]["rows"]] == [0.2, 0.0]
    first = found["stragglers"]["rows"][0]
    assert (first["rank"], first["times_last"], first["wait_caused_ms"]) == (1, 1, 0.2)
    with (tmp_path / "out" / "stragglers.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 2


def test_one_rank_of_a_job_says_what_it_cannot_tell(tmp_path: Path) -> None:
    two_ranks(tmp_path)
    (row,) = document("allreduce", tmp_path / "rank0.json")["findings"]["all_reduce_by_rank"]["rows"]
    assert row["exposed_ms"] > 0 and row["exposed_wait_ms"] is row["exposed_transfer_ms"] is None


@pytest.mark.parametrize(
    ("folder", "ranks"),
    [
        (shared_files.OWN / "kineto/nccl-4-ranks", 4),
        pytest.param(KINETO / "dlrm-8-ranks", 8, marks=pytest.mark.public),
        pytest.param(KINETO / "megatron-8-ranks", 8, marks=[pytest.mark.public, pytest.mark.slow]),
    ],
    ids=["own", "dlrm", "megatron"],
)
def test_folders_of_ranks(folder: Path, ranks: int) -> None:
    found = document("allreduce", folder)["findings"]
    assert list(found) == NAMES
    assert len(found["all_reduce_by_rank"]["rows"]) == ranks


@pytest.mark.public
def test_a_real_trace_with_sizes_gives_bandwidths() -> None:
    path = KINETO / "hta/nccl_parser_config__nccl_data.json.gz"
    rows = document("allreduce", path)["findings"]["collectives"]["rows"]
    reduce = next(row for row in rows if row["collective"] == "all_reduce")
    assert reduce["group_size"] == 2
    assert reduce["busbw_gb_s"] == pytest.approx(reduce["algbw_gb_s"])  # 2 (2 - 1) / 2
