"""Kernels of communication libraries besides NCCL, and RCCL's, whose names say nothing: counted, named and sized.

The traces are made here in Kineto's form; every expected number is worked out in the comments.
"""

from pathlib import Path
from typing import Any

import pytest
from support.kineto_events import event, write

from analysis.metrics.communication.exposure import communication_by_kind
from analysis.names import COLLECTIVES, family, kernel_collective
from analysis.readers.kineto.reader import read

MS = 1000.0  # Kineto counts in microseconds
GEMM = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT"
RCCL = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
RCCL_TEMPLATE = "void rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)"
ABOUT = {"deviceProperties": [{"id": 0, "name": "GPU", "numSms": 100}], "distributedInfo": {"rank": 0, "world_size": 8}}
SYMMETRIC = "void (anonymous namespace)::"
FLASHINFER = (
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<"
    "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, false, false>"
    "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionParams<__nv_bfloat16>)"
)


def kernel(name: str, start: float, duration: float, stream: int = 7, **arguments: Any) -> dict[str, Any]:
    """A kernel at so many ms."""
    return event(
        name, start * MS, duration * MS, "kernel", pid=0, tid=stream,
        args={"device": 0, "stream": stream, **arguments},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void deep_ep::internode_ll::dispatch<(bool)1, (bool)1, (int)6144>(void *, void *)", "dispatch"),
        ("void deep_ep::intranode::notify_dispatch<8>(int const*, int*, int const*)", "notify"),
        ("void dpsk::ep::internode::combine<(bool)0, c10::BFloat16>(int4*, float*)", "combine"),
        ("ep::internode::notify_dispatch<false>(int const*)", "notify"),
        ("void deep_ep::intranode::barrier<8>(int**, int)", "barrier"),
        ("void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)", "barrier"),
        ("void rdxn_on_stream_kernel<float, (rdxn_ops)4>(int, float*, float const*, unsigned long)", "all_reduce"),
        ("nvshmemi_proxy_quiet_entrypoint()", "other"),
        (SYMMETRIC + "multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)", "all_reduce"),
        (FLASHINFER, "all_reduce"),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
        ("mscclKernel_Sum_hip_bfloat16_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)", "other"),
        (RCCL, "other"),
        (RCCL_TEMPLATE, "other"),
        ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs)", "all_reduce"),
    ],
)
def test_kernels_of_known_libraries_are_communication_of_a_kind(name: str, kind: str) -> None:
    assert kernel_collective(name) == kind and kind in COLLECTIVES
    assert family(name) == "communication"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("combine_heads", "other"),
        ("void my_model::combine<8>(float*)", "other"),
        ("void router::dispatch<8>(float*)", "other"),
        ("void moe::notify_dispatch_done(float*)", "other"),
        ("void flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<64>>(Params)", "attention"),
        # One rank's own work, by the same library.
        ("void dpsk::ep::internode::get_dispatch_layout<256>(long const*)", "other"),
        ("void deep_ep::elastic::dispatch_copy_epilogue_impl<true, false>(void*, void*)", "copy"),
        ("void my_kernel<8>(deep_ep::internode::dispatch*)", "other"),
        # Compiled for one GPU, and named after the operators around it.
        ("triton_poi_fused_add_all_reduce_4", "elementwise"),
        ("__amd_rocclr_fillBufferAligned", "copy"),
        ("void at::native::reduce_kernel<512, 1, ReduceOp<float>>(ReduceOp<float>)", "reduction and sort"),
    ],
)
def test_names_that_only_resemble_them_are_no_communication(name: str, expected: str) -> None:
    assert family(name) == expected
    assert kernel_collective(name) is None


def deep_ep(path: Path) -> Path:
    """Six layers of 30 ms each, of a mixture of experts.

    In each, from its start: the layout 0 to 0.3 (computation), notify_dispatch 0.3 to 1.2, GEMM 1.0 to 25, dispatch 1.2
    to 9.7, cached_notify_combine 10 to 10.5, combine 10.5 to 19.5, nothing 25 to 30.
    """
    events = [event("ProfilerStep#3", 0, 180 * MS, "user_annotation")]
    for layer in range(6):
        at = 30 * layer
        events += [
            kernel("void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)", at, 0.3),
            kernel("void deep_ep::intranode::notify_dispatch<8>(int const*, int*)", at + 0.3, 0.9, 20),
            kernel(GEMM, at + 1.0, 24.0),
            kernel("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)", at + 1.2, 8.5, 20),
            kernel("void deep_ep::intranode::cached_notify_combine<8>(void**, int*, int)", at + 10, 0.5, 20),
            kernel("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(__nv_bfloat16*)", at + 10.5, 9.0, 20),
        ]
    about = {**ABOUT, "distributedInfo": {"rank": 0, "world_size": 8, "pg_config": [{"pg_name": "0", "pg_size": 8}]}}
    return write(path, events, **about)


def rccl(path: Path) -> Path:
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
    events = [kernel(GEMM, 0, 20, 0)]
    for number, (duration, arguments) in enumerate(said):
        name = RCCL_TEMPLATE if number % 2 else RCCL
        events.append(kernel(name, 5 * number, duration, 3, correlation=100 + number, **arguments))
    return write(path, events, **ABOUT)


def test_rccl_kernels_are_what_their_arguments_say(tmp_path: Path) -> None:
    found = read(rccl(tmp_path / "rank0.json"))
    assert len(found.collectives) == 17
    table = communication_by_kind([found]).set_index("collective")
    assert dict(table["count"]) == {"all_reduce": 6, "all_to_all": 4, "all_gather": 2, "other": 5}
    # 6 x 6,553,600 x 4 bytes; 4 x 1,000,000 x 2; of an all-gather what one rank receives, 2 x 4,000,000 x 2.
    sizes = {"all_reduce": 157_286_400, "all_to_all": 8_000_000, "all_gather": 16_000_000}
    assert {kind: table.loc[kind, "bytes"] for kind in sizes} == sizes
    # 26,214,400 bytes in 2 ms are 13.1072 GB/s, times 2 x 7/8; 2 MB in 1 ms x 7/8; 8 MB in 1.5 ms x 7/8.
    rates = {"all_reduce": 13.1072 * 1.75, "all_to_all": 2.0 * 0.875, "all_gather": 8 / 1.5 * 0.875}
    assert {kind: table.loc[kind, "busbw_gb_s"] for kind in rates} == pytest.approx(rates)
    assert {kind: table.loc[kind, "group_size"] for kind in sizes} == dict.fromkeys(sizes, 8)
    assert table.loc[["other"], ["bytes", "busbw_gb_s"]].isna().all(axis=None)
