"""Process groups by name, the links that bandwidths compare with, and RCCL, whose kernels' names say nothing.

The traces are made here in Kineto's form; every expected number is worked out in the comments.
"""

from pathlib import Path
from typing import Any

import pytest
from support.timelines import event, kernel, write

from analysis.metrics.communication.exposure import communication_by_kind
from analysis.metrics.communication.matching import match_collectives
from analysis.open import open_sources
from analysis.readers.kineto.reader import read

MS = 1000.0  # Kineto counts in microseconds
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
GPUS = [{"id": number, "name": "NVIDIA A100-SXM4-80GB", "numSms": 108} for number in range(8)]
GROUPS = {
    "1": ("TENSOR_MODEL_PARALLEL_GROUP", [[0, 1], [2, 3]]),
    "2": ("DATA_PARALLEL_GROUP_WITH_CP", [[0, 2], [1, 3]]),
    "3": ("PIPELINE_MODEL_PARALLEL_GROUP", [[0, 2], [1, 3]]),
    "4": ("EXPERT_MODEL_PARALLEL_GROUP", [[0, 1, 2, 3]]),
}


def collective(name: str, start: float, duration: float, group: str, operation: str, elements: int) -> dict[str, Any]:
    size = len(GROUPS[group][1][0])
    said = {"Collective name": operation, "In msg nelems": elements, "Out msg nelems": elements, "dtype": "BFloat16",
            "Process Group Name": group, "Group size": size}  # fmt: skip
    return kernel(name, start * MS, duration * MS, 20, **said)


def four_ranks(folder: Path) -> Path:
    """A step of 100 ms on each of 4 ranks; ranks 1 and 3 arrive last in the tensor group.

    Computation 0 to 40 ms. data all-reduce 10 to 30, 20,000,000 elements of 2 bytes (hidden); tensor all-reduce 40 to
    50 (ranks 1, 3: 45 to 50), 5,000,000 elements; experts' all-to-all 50 to 54 and 54 to 58, 4,000,000 elements;
    pipeline send 60 to 61, 1,000,000 elements.
    """
    folder.mkdir()
    for rank in range(4):
        late = 5.0 if rank % 2 else 0.0
        events = [
            event("ProfilerStep#3", 0, 100 * MS, "user_annotation"),
            kernel("nvjet_gemm", 0, 40 * MS),
            collective(NCCL, 10, 20, "2", "allreduce", 20_000_000),
            collective(NCCL, 40 + late, 10 - late, "1", "allreduce", 5_000_000),
            collective(SEND, 50, 4, "4", "all_to_allv", 4_000_000),
            collective(SEND, 54, 4, "4", "all_to_allv", 4_000_000),
            collective(SEND, 60, 1, "3", "send", 1_000_000),
        ]
        listed = [
            {"pg_name": name, "pg_desc": said, "pg_size": len(sets[0]),
             "ranks": next(ranks for ranks in sets if rank in ranks)}
            for name, (said, sets) in GROUPS.items()
        ]  # fmt: skip
        about = {"rank": rank, "world_size": 4, "pg_config": listed}
        write(folder / f"rank{rank}.json", events, deviceProperties=GPUS[:4], distributedInfo=about)
    return folder


def test_collectives_of_a_group_have_its_ranks_and_links(tmp_path: Path) -> None:
    ranks = open_sources(four_ranks(tmp_path / "ranks")).timelines
    table = communication_by_kind(ranks, match_collectives(ranks))
    by_group = table.sort_values("rank").set_index("description")
    table = by_group.loc["TENSOR_MODEL_PARALLEL_GROUP"].set_index("rank")
    assert dict(table["group_ranks"]) == {0: "0,1", 1: "0,1", 2: "2,3", 3: "2,3"}
    assert dict(table["total_ms"]) == pytest.approx({0: 10, 1: 5, 2: 10, 3: 5})
    # The last rank to arrive shows the transfer: 10 MB in 5 ms.
    assert list(table["transfer_busbw_gb_s"]) == pytest.approx([2.0] * 4)
    # 4 ranks of the job, 4 GPUs in the trace: one node, so the published links of the GPU hold.
    assert list(table["link_gb_s"]) == [300] * 4 and list(table["link_share"]) == pytest.approx([2 / 300] * 4)
    expert = by_group.loc["EXPERT_MODEL_PARALLEL_GROUP"]
    # 8 MB in 4 ms x 3/4.
    assert list(expert["exposed_ms"]) == [8] * 4 and list(expert["busbw_gb_s"]) == pytest.approx([1.5] * 4)
    assert set(expert["collective"]) == {"all_to_all"} and set(expert["group_ranks"]) == {"0-3"}


def test_groups_without_a_list_are_what_the_kernels_say(tmp_path: Path) -> None:
    def said(name: str, **more: Any) -> dict[str, Any]:
        arguments = {"Process Group Name": name, "Group size": 4, "In msg nelems": 8, "dtype": "Float", **more}
        return kernel(NCCL, 10 * int(name), 5, **arguments)

    events = [
        said("1", **{"Process Group Description": "mesh_tp", "Process Group Ranks": "[0, 1, 2, 3]"}),
        said("2", **{"Process Group Description": "undefined", "Process Group Ranks": [0, 4, 8, 12]}),
        # PyTorch cuts long lists off.
        said("3", **{"Process Group Ranks": "[0, 2, ...]", "Global rank start": 2, "Global rank stride": 2}),
        said("4", **{"Process Group Ranks": "[0, 1, ...]"}),
    ]
    groups = read(write(tmp_path / "rank0.json", events, deviceProperties=GPUS)).groups
    assert {name: (one.description, one.size, one.ranks) for name, one in groups.items()} == {
        "1": ("mesh_tp", 4, (0, 1, 2, 3)), "2": ("", 4, (0, 4, 8, 12)), "3": ("", 4, (2, 4, 6, 8)), "4": ("", 4, ()),
    }  # fmt: skip
    assert [groups[name].listed for name in "1234"] == ["0-3", "0-12 by 4", "2-8 by 2", ""]


def test_rccl_kernels_are_what_their_arguments_say(tmp_path: Path) -> None:
    """17 kernels of RCCL one after another, 12 of which say what they are: 6 + 4 + 2."""
    group = {"Process Group Name": "1", "Group size": 8}
    said: list[tuple[float, dict[str, Any]]] = [
        *[(2.0, {"Collective name": "allreduce", "In msg nelems": 6_553_600, "Out msg nelems": 6_553_600,
                 "dtype": "Float", **group})] * 6,
        *[(1.0, {"Collective name": "all_to_allv", "In msg nelems": 1_000_000, "Out msg nelems": 900_000,
                 "dtype": "BFloat16", **group})] * 4,
        *[(1.5, {"Collective name": "_allgather_base", "In msg nelems": 500_000, "Out msg nelems": 4_000_000,
                 "dtype": "Half", **group})] * 2,
        *[(0.5, {})] * 5,
    ]  # fmt: skip
    name = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
    events = [kernel(name, 5 * n * MS, length * MS, 3, **args) for n, (length, args) in enumerate(said)]
    found = read(write(tmp_path / "rank0.json", events, distributedInfo={"rank": 0, "world_size": 8}))
    table = communication_by_kind([found]).set_index("collective")
    assert dict(table["count"]) == {"all_reduce": 6, "all_to_all": 4, "all_gather": 2, "other": 5}
    # 6 x 6,553,600 x 4 bytes; 4 x 1,000,000 x 2; of an all-gather what one rank receives, 2 x 4,000,000 x 2.
    sizes = {"all_reduce": 157_286_400, "all_to_all": 8_000_000, "all_gather": 16_000_000}
    assert {kind: table.loc[kind, "bytes"] for kind in sizes} == sizes
    # 26,214,400 bytes in 2 ms are 13.1072 GB/s, times 2 x 7/8; 2 MB in 1 ms x 7/8; 8 MB in 1.5 ms x 7/8.
    rates = {"all_reduce": 13.1072 * 1.75, "all_to_all": 2.0 * 0.875, "all_gather": 8 / 1.5 * 0.875}
    assert {kind: table.loc[kind, "busbw_gb_s"] for kind in rates} == pytest.approx(rates)
    assert table.loc[["other"], ["bytes", "busbw_gb_s"]].isna().all(axis=None)
