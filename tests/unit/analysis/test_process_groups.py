"""Process groups by name, and the links that bandwidths compare with.

The traces are made here in Kineto's form; every expected number is worked out in the comments.
"""

from pathlib import Path
from typing import Any

import pytest
from support.kineto_events import event, write

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
    return event(name, start * MS, duration * MS, "kernel", pid=0, tid=20, args={"device": 0, "stream": 20, **said})


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
            event("nvjet_gemm", 0, 40 * MS, "kernel", pid=0, tid=7, args={"device": 0, "stream": 7}),
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
        return event(NCCL, 10 * int(name), 5, "kernel", args={"device": 0, "stream": 3, **arguments})

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
