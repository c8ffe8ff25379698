"""`bertbench allreduce` on a folder of two ranks, as a user calls it."""

import csv
from pathlib import Path

from support.commands import document
from support.timelines import call, event, kernel, write

NAMES = ["window", "all_reduce_by_rank", "collectives", "stragglers", "buckets", "clock_offsets"]


def two_ranks(folder: Path) -> Path:
    """Rank 1 computes until 300 us, rank 0 until 100; the transfer takes 50, both go on until 450."""
    folder.mkdir()
    for rank, until in ((0, 100), (1, 300)):
        events = [
            event("ProfilerStep#1", 0, 460, "user_annotation"),
            *(call(start, 2, number) for number, start in enumerate((1, 4, 9), start=1)),
            call(12, 440, 10, "cudaDeviceSynchronize"),
            kernel("gemm", 5, until - 5, correlation=1),
            kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", until, 350 - until, 20, correlation=2),
            kernel("gemm", 350, 100, correlation=3),
        ]
        write(folder / f"rank{rank}.json", events, distributedInfo={"rank": rank, "world_size": 2})
    return folder


def test_a_folder_of_ranks_gives_every_table(tmp_path: Path) -> None:
    found = document("allreduce", two_ranks(tmp_path / "traces"), "--csv", tmp_path / "out")["findings"]
    assert list(found) == NAMES
    assert [row["exposed_wait_ms"] for row in found["all_reduce_by_rank"]["rows"]] == [0.2, 0.0]
    first = found["stragglers"]["rows"][0]
    assert (first["rank"], first["times_last"], first["wait_caused_ms"]) == (1, 1, 0.2)
    with (tmp_path / "out" / "stragglers.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 2
