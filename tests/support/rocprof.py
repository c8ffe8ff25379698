"""A trace in the form of rocprofv3's JSON (ROCm/rocprofiler-sdk, generateJSON.cpp)."""

from typing import Any

MS = 1_000_000  # it counts in nanoseconds
GEMM, COPY, RCCL = 11, 12, 13
# Numbers of kinds and operations, as in strings.buffer_records.
KINDS: list[dict[str, Any]] = [
    {"kind": "NONE", "operations": []},
    {"kind": "HIP_RUNTIME_API",
     "operations": ["hipMalloc", "hipLaunchKernel", "hipMemcpyAsync", "hipStreamSynchronize"]},
    {"kind": "MARKER_CORE_RANGE_API", "operations": ["roctxThreadRangeA"]},
    {"kind": "RCCL_API", "operations": ["ncclAllReduce", "ncclGroupEnd"]},
    {"kind": "MEMORY_COPY",
     "operations": ["MEMORY_COPY_NONE", "MEMORY_COPY_HOST_TO_HOST", "MEMORY_COPY_HOST_TO_DEVICE"]},
    {"kind": "KERNEL_DISPATCH", "operations": ["KERNEL_DISPATCH_NONE", "KERNEL_DISPATCH_ENQUEUE"]},
]  # fmt: skip


def record(kind: int, operation: int, start: float, end: float, correlation: int, **more: Any) -> dict[str, Any]:
    return {
        "size": 64, "kind": kind, "operation": operation, "thread_id": 44,
        "correlation_id": {"internal": correlation, "external": 0},
        "start_timestamp": round(start * MS), "end_timestamp": round(end * MS), **more,
    }  # fmt: skip


def dispatch(kernel: int, start: float, end: float, correlation: int, stream: int, agent: int = 502) -> dict[str, Any]:
    info = {
        "size": 64, "agent_id": {"handle": agent}, "queue_id": {"handle": 1}, "kernel_id": kernel, "dispatch_id": 1,
        "private_segment_size": 0, "group_segment_size": 0, "workgroup_size": {"x": 256, "y": 2, "z": 1},
        "grid_size": {"x": 4000, "y": 8, "z": 1},
    }  # fmt: skip
    return record(5, 1, start, end, correlation, dispatch_info=info, stream_id={"handle": stream})


def two_steps() -> dict[str, Any]:
    """Two marked steps of 100 ms on the second of two GPUs.

    In each, from its start: a copy to the device 1 to 3 (4 MiB), a GEMM 5 to 65, an all-reduce 55 to 85 on its own
    stream, whose kernel has no name for its operation.
    """
    kernels, copies, calls, ranges, rccl = [], [], [], [], []
    for step in range(2):
        at, number = 100 * step, 10 * step
        ranges.append(record(2, 0, at, at + 100, 1000 + step))
        calls += [
            record(1, 2, at + 0.5, at + 0.6, number + 1),
            record(1, 1, at + 1.0, at + 1.1, number + 2),
            record(1, 1, at + 2.0, at + 2.1, number + 3),
            record(1, 3, at + 2.5, at + 86, number + 4),
        ]
        rccl.append(record(3, 0, at + 1.9, at + 2.2, 500 + step))
        copies.append(
            record(4, 2, at + 1, at + 3, number + 1, dst_agent_id={"handle": 502}, src_agent_id={"handle": 500},
                   bytes=4 << 20, stream_id={"handle": 3})
        )  # fmt: skip
        kernels += [dispatch(GEMM, at + 5, at + 65, number + 2, 3), dispatch(RCCL, at + 55, at + 85, number + 3, 4)]
    symbols = [
        {"kernel_id": GEMM, "kernel_name": "Cijk_Alik_Bljk_BBS_BH_MT128x128.kd",
         "formatted_kernel_name": "Cijk_Alik_Bljk_BBS_BH_MT128x128.kd"},
        {"kernel_id": RCCL, "kernel_name": "_Z2.kd",
         "formatted_kernel_name": "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"},
    ]  # fmt: skip
    agents = [
        {"id": {"handle": 500}, "type": 1, "node_id": 0, "logical_node_type_id": 0, "name": "AMD EPYC"},
        {"id": {"handle": 501}, "type": 2, "node_id": 1, "logical_node_type_id": 0, "name": "gfx942", "cu_count": 304,
         "product_name": "AMD Instinct MI300X"},
        {"id": {"handle": 502}, "type": 2, "node_id": 2, "logical_node_type_id": 1, "name": "gfx942", "cu_count": 304,
         "product_name": "AMD Instinct MI300X"},
    ]  # fmt: skip
    messages = [{"key": 1000 + step, "value": f"step {step}"} for step in range(2)]
    tool = {
        "metadata": {"pid": 4242, "init_time": 1, "fini_time": 2, "command": ["train", "--token=s3cret"]},
        "agents": agents, "strings": {"buffer_records": KINDS, "marker_api": messages}, "kernel_symbols": symbols,
        "buffer_records": {"kernel_dispatch": kernels, "hip_api": calls, "hsa_api": [], "marker_api": ranges,
                           "rccl_api": rccl, "memory_copy": copies},
    }  # fmt: skip
    return {"rocprofiler-sdk-tool": [tool]}
