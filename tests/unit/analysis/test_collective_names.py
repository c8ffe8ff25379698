"""Names as libraries of several years wrote them."""

import pytest

from analysis.names import COLLECTIVES, collective


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce"),
        ("ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce"),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce"),
        ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs4K)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "send_recv"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevComm*)", "reduce"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "broadcast"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "other"),
        ("ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)", "other"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:_reduce_scatter_base", "reduce_scatter"),
        ("nccl:all_to_allv", "all_to_all"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("nccl:send 0->1", "send_recv"),
        ("nccl:recv 1<-0", "send_recv"),
        ("gloo:all_reduce", "all_reduce"),
        ("c10d::allreduce_", "all_reduce"),
        ("MPI_Allreduce", "all_reduce"),
        ("PMPI_Bcast", "broadcast"),
        ("MPI_Isend", "send_recv"),
        ("MPI_Reduce_scatter_block", "reduce_scatter"),
    ],
)
def test_a_collective_is_told_by_its_name(name: str, kind: str) -> None:
    assert collective(name) == kind
    assert kind in COLLECTIVES


@pytest.mark.parametrize(
    "name",
    [
        "aten::gather",
        "void at::native::reduce_kernel<512, 1>(ncclDevComm*)",
        "record_param_comms",
        "ncclCommInitRank",
        "ncclGroupEnd",
        "MPI_Init",
        "ampere_sgemm_128x64_nn",
        "scatter_add",
        "",
    ],
)
def test_what_is_no_collective_is_none(name: str) -> None:
    assert collective(name) is None
